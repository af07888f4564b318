// What SmoothQuant's search takes of rows, on the host and on an emulated device: the same bits for rows of
// any width and number, for every kind of activation scale; the same scales for whole problems.
#include "quant/methods/smoothquant/sampled_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "captured_output.h"
#include "device/cuda/cuda_backend.h"
#include "quant/methods/smoothquant/device_rows.h"
#include "quant/methods/smoothquant/smoothquant.h"
#include "support/recording_device.h"

namespace llmq {
namespace {

QuantScheme activation_scheme(ActivationScale scale, WeightType type,
                              Granularity granularity = Granularity::kChannel) {
  QuantScheme scheme;
  scheme.bits = scheme.activation_bits = 8;
  scheme.activation_scale = scale;
  scheme.weight_type = type;
  scheme.granularity = granularity;
  scheme.symmetric = true;
  return scheme;
}

std::vector<float> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

// Rows of zeros, of one number and of huge ones among them; groups of 4 bits beside channels of 8.
struct Sampled {
  std::vector<float> x, w, s, inverse;
  std::vector<double> factor;
  QuantScheme activations, narrow;
  SmoothProblem problem;

  Sampled(std::size_t tokens, std::size_t rows, std::size_t channels, const QuantScheme& scheme)
      : x(random_values(tokens * channels, 1)),
        w(random_values(rows * channels, 2)),
        s(channels),
        inverse(channels),
        factor(channels),
        activations(scheme),
        narrow(scheme) {
    for (std::size_t k = 0; k < channels; ++k) {
      s[k] = 0.3f + 0.013f * static_cast<float>(k % 97);
      inverse[k] = 1.0f / s[k];
      factor[k] = 1 / static_cast<double>(s[k]);
      if (tokens > 2) x[2 * channels + k] *= 1e20f;
      if (rows > 3) w[3 * channels + k] = k == channels / 2 ? -5.0f : 0.0f;
      if (tokens > 1) x[channels + k] = 0;
    }
    narrow.granularity = Granularity::kGroup, narrow.group_size = 64, narrow.bits = 4,
    narrow.weight_type = WeightType::kInteger, narrow.symmetric = false;
    problem.channels = channels;
    problem.group =
        scheme.activation_scale == ActivationScale::kTokenGroup ? std::size_t{kFloat8Block} : channels;
    problem.activations = &activations;
    for (std::size_t t = 0; t < tokens; ++t) problem.inputs.values.push_back(x.data() + t * channels);
    for (std::size_t n = 0; n < rows; ++n) {
      problem.weights.values.push_back(w.data() + n * channels);
      problem.weight_scheme.push_back(n < rows / 3 ? &narrow : &activations);
    }
    const auto positive = [](std::size_t count, std::uint32_t seed) {
      std::vector<double> values;
      for (const float value : random_values(count, seed))
        values.push_back(static_cast<double>(value) * static_cast<double>(value));
      return values;
    };
    problem.inputs.step_weight = positive(tokens, 3);
    problem.weights.step_weight = positive(rows, 4);
    problem.weight_energy = positive(channels, 5);
    problem.input_energy = positive(channels, 6);
  }

  // What the rows give, one thing after another.
  std::vector<std::vector<double>> all(SmoothRows& rows) const {
    const std::size_t tokens = problem.inputs.values.size(), weights = problem.weights.values.size();
    std::vector<std::vector<double>> found;
    const auto of = [&](std::size_t count) { return std::span(found.emplace_back(count, -1.0)); };
    rows.input_errors(s, inverse, {}, of(tokens * problem.groups()));
    rows.input_errors(s, inverse, 0.01f, of(tokens * problem.groups()));
    rows.input_errors(inverse, s, 0.0f, of(tokens * problem.groups()));
    rows.weight_errors(s, inverse, of(weights));
    for (const auto side : {SmoothRows::Side::kInputs, SmoothRows::Side::kWeights}) {
      std::vector<double> energy(side == SmoothRows::Side::kInputs ? tokens : weights),
          share(problem.channels);
      rows.soften(side, factor, energy, share);
      found.push_back(energy);
      found.push_back(share);
    }
    return found;
  }
};

TEST(SmoothRows, ADeviceHasTheBitsOfTheHost) {
  const struct {
    std::size_t tokens, weights, channels;
  } sizes[] = {{1, 1, 1}, {5, 7, 12}, {33, 2, 130}, {300, 290, 41}, {3, 40, 2100}, {0, 5, 64}, {6, 0, 256}};
  const QuantScheme schemes[] = {
      activation_scheme(ActivationScale::kToken, WeightType::kInteger),
      activation_scheme(ActivationScale::kToken, WeightType::kFloat8),
      activation_scheme(ActivationScale::kTokenGroup, WeightType::kFloat8, Granularity::kBlock),
      activation_scheme(ActivationScale::kTensor, WeightType::kInteger),
      activation_scheme(ActivationScale::kTensor, WeightType::kFloat8)};
  for (const auto& [tokens, weights, channels] : sizes)
    for (const QuantScheme& scheme : schemes) {
      const Sampled sampled(tokens, weights, channels, scheme);
      ThreadPool pool(2);
      const auto backend = make_emulated_cuda_backend(1);
      const auto host = make_smooth_rows(sampled.problem, pool, nullptr),
                 there = make_smooth_rows(sampled.problem, pool, backend.get());
      if (tokens != 0 && weights != 0) {
        EXPECT_EQ(backend->peak_bytes(),
                  device_smooth_bytes({tokens, weights, channels, sampled.problem.groups()}))
            << "as planned";
      }
      EXPECT_EQ(sampled.all(*there), sampled.all(*host))
          << scheme.text() << ": " << tokens << " tokens, " << weights << " rows of " << channels;
    }
}

TEST(SmoothRows, ADeviceWithoutRoomSaysSo) {
  const Sampled sampled(5, 6, 32, activation_scheme(ActivationScale::kToken, WeightType::kInteger));
  ThreadPool pool(1);
  const std::uint64_t needed = device_smooth_bytes({5, 6, 32, 1});
  const auto enough = make_emulated_cuda_backend(1, {0, needed, {}}),
             less = make_emulated_cuda_backend(1, {0, needed - 1, {}});
  EXPECT_NO_THROW(make_smooth_rows(sampled.problem, pool, enough.get()));
  try {
    make_smooth_rows(sampled.problem, pool, less.get());
    ADD_FAILURE() << "it had room";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
  }
}

TEST(SmoothRows, SumsAreOfBlocksInOrder) {
  std::vector<double> rows(70, 0x1p-53);
  rows[0] = 1;  // swallows the rest of its block, not the sums of the others
  EXPECT_EQ(sum_of_rows(rows), (1 + 32 * 0x1p-53) + 6 * 0x1p-53);
  EXPECT_EQ(sum_of_rows({}), 0);
}

struct Reader {
  std::int64_t rows;
  QuantScheme scheme;
};

// Scales, losses and all, found by a search on `device`.
SmoothScales found_on(const std::string& device, std::int64_t tokens, std::int64_t channels,
                      const std::vector<Reader>& readers, const std::vector<std::int32_t>& producers) {
  const auto reference = make_reference_backend();
  std::vector<float> x = random_values(static_cast<std::size_t>(tokens * channels), 7);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] *= i % static_cast<std::size_t>(channels) == 3 ? 40.0f : 1.0f;
  InputStats stats(channels);
  RowSample rows(tokens, channels);
  stats.add(*reference, TensorView(x.data(), DType::kF32, {tokens, channels}));
  rows.add(*reference, TensorView(x.data(), DType::kF32, {tokens, channels}), 0);
  std::vector<std::vector<float>> weights;
  ScaleProblem problem;
  for (const Reader& reader : readers)
    weights.push_back(random_values(static_cast<std::size_t>(reader.rows * channels),
                                    8 + static_cast<std::uint32_t>(weights.size())));
  for (std::size_t i = 0; i < readers.size(); ++i)
    problem.readers.push_back({weights[i], readers[i].rows, readers[i].scheme});
  problem.stats = &stats;
  problem.rows = &rows;
  problem.producer_of = producers;
  return search_smooth_scales(problem, {}, *make_backend({device, 1}));
}

void expect_found_alike(std::int64_t tokens, std::int64_t channels, const std::vector<Reader>& readers,
                        const std::vector<std::int32_t>& producers = {}) {
  const SmoothScales host = found_on("cpu", tokens, channels, readers, producers),
                     there = found_on("emulated", tokens, channels, readers, producers);
  EXPECT_FALSE(host.identity);
  EXPECT_EQ(there.s, host.s);
  EXPECT_EQ(there.loss.activations, host.loss.activations);
  EXPECT_EQ(there.loss.weights, host.loss.weights);
  EXPECT_EQ(there.identity_loss.whole(), host.identity_loss.whole());
}

TEST(SmoothRows, ASearchOnADeviceFindsTheHostsScales) {
  const QuantScheme token = activation_scheme(ActivationScale::kToken, WeightType::kInteger),
                    none = activation_scheme(ActivationScale::kNone, WeightType::kInteger),
                    tensor = activation_scheme(ActivationScale::kTensor, WeightType::kInteger),
                    float8 = activation_scheme(ActivationScale::kToken, WeightType::kFloat8),
                    block = activation_scheme(ActivationScale::kTokenGroup, WeightType::kFloat8,
                                              Granularity::kBlock);
  QuantScheme narrow = token;
  narrow.bits = 4, narrow.granularity = Granularity::kGroup, narrow.group_size = 4;
  expect_found_alike(40, 20, {{9, token}, {300, token}, {5, narrow}});  // 314 rows: all are judged
  expect_found_alike(20, 13, {{600, tensor}});                          // every second one
  expect_found_alike(20, 150, {{12, float8}});
  expect_found_alike(10, 300, {{20, block}});
  expect_found_alike(30, 12, {{8, none}});
  expect_found_alike(1, 12, {{8, token}});
  // two heads of queries read one of values
  expect_found_alike(30, 12, {{8, token}}, {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});
}

TEST(SmoothRows, RowsCrossToADeviceOnce) {
  const Sampled sampled(40, 50, 64, activation_scheme(ActivationScale::kToken, WeightType::kInteger));
  testing::DeviceNotes notes;
  const std::shared_ptr<Backend> backend = testing::recording_backend(notes);
  ThreadPool pool(1);
  const auto rows = make_smooth_rows(sampled.problem, pool, backend.get());
  EXPECT_GE(notes.up, (40u + 50u) * 64 * sizeof(float));
  notes = {};
  sampled.all(*rows);
  EXPECT_EQ(notes.up, 4 * 2 * 64 * sizeof(float) + 2 * 64 * sizeof(double));
  EXPECT_EQ(notes.down,
            (3 * 40 + 50) * sizeof(double) + (40 + 50) * sizeof(SoftRow) + 2 * 64 * sizeof(double));
}

// A device whose rows cannot be softened.
class Unsoftened final : public testing::RecordingDevice {
 public:
  explicit Unsoftened(testing::DeviceNotes& notes)
      : RecordingDevice(notes, 0), kernels_(cuda::emulated_kernels()) {
    kernels_.soften_rows = [](const SoftRows&, void*) { return 719; };
  }
  const cuda::CudaKernels& kernels() const override { return kernels_; }

 private:
  cuda::CudaKernels kernels_;
};

CapturedOutput quantized_on(const std::shared_ptr<Backend>& backend, const std::string& options = "") {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Recipe recipe = Recipe::parse("method: smoothquant\nscheme: w8a8\nignore: ['re:.*layers.1.*']\n" +
                                          options + "calibration: {samples: 2, sequence_length: 16}\n",
                                      "r.yaml");
  CapturedOutput output;
  run_pipeline(make_plan(recipe, checkpoint, spec, Compute::kFloat32, 1, 0), checkpoint, spec,
               some_samples(2, 16), *backend, output, {});
  return output;
}

// The forward pass of a device is its own: only what nothing was quantized before sees the same inputs, but
// for the rounding of a norm, which moved scales by 3.3e-7; thirty times that is allowed.
TEST(SmoothRows, APipelineOnADeviceSearchesThere) {
  testing::DeviceNotes notes;
  const auto refusing = make_backend_on(std::make_unique<Unsoftened>(notes), 1);
  EXPECT_THROW(quantized_on(refusing), Error);
  EXPECT_NO_THROW(quantized_on(refusing, "smoothquant: {alpha: 0.5}\n"));

  const CapturedOutput host = quantized_on(make_cpu_backend(1)),
                       there = quantized_on(make_emulated_cuda_backend(1));
  ASSERT_EQ(host.quantized.size(), 7u);
  const std::string gain = "model.layers.0.input_layernorm.weight";
  const CapturedOutput::Dense &want = host.dense.at(gain), &got = there.dense.at(gain);
  ASSERT_EQ(want.dtype, DType::kF32);
  ASSERT_EQ(want.bytes.size(), got.bytes.size());
  const auto value = [](const CapturedOutput::Dense& tensor, std::size_t k) {
    float number = 0;
    std::memcpy(&number, tensor.bytes.data() + k * sizeof(float), sizeof(float));
    return number;
  };
  for (std::size_t k = 0; k < want.bytes.size() / sizeof(float); ++k)
    EXPECT_NEAR(value(got, k), value(want, k), 1e-5f * std::fabs(value(want, k))) << k;
}

}  // namespace
}  // namespace llmq
