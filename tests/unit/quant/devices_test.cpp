// Several devices of one kind and one of them: the same bytes, whatever the samples' length and whoever is
// late.
#include <gmock/gmock.h>

#include "base/error.h"
#include "captured_output.h"
#include "device/cuda/cuda_backend.h"
#include "quant/pipeline/activation_stream.h"
#include "support/named_parts.h"
#include "support/recording_device.h"

namespace llmq {
namespace {

std::vector<std::shared_ptr<Backend>> devices_of(const std::string& kind, int count) {
  std::vector<std::shared_ptr<Backend>> devices;
  for (int i = 0; i < count; ++i)
    devices.push_back(kind == "cpu" ? make_cpu_backend(1) : make_emulated_cuda_backend(1, {i}));
  return devices;
}

struct Work {
  std::string kind, recipe;
  std::int64_t samples, length, chunk;
  Compute compute = Compute::kFloat32;
};

CapturedOutput quantize_work(const Work& work, int count) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Recipe recipe =
      Recipe::parse(work.recipe + fmt::format("calibration: {{samples: {}, sequence_length: {}}}\n",
                                              work.samples, work.length),
                    "r.yaml");
  Plan plan = make_plan(recipe, checkpoint, spec, work.compute, 1, 0);
  plan.chunk_tokens = work.chunk;
  const std::vector<std::shared_ptr<Backend>> devices = devices_of(work.kind, count);
  PipelineOptions options;
  options.further_devices.assign(devices.begin() + 1, devices.end());
  CapturedOutput output;
  run_pipeline(plan, checkpoint, spec, some_samples(work.samples, work.length), *devices.front(), output,
               options);
  return output;
}

void expect_same_output(const CapturedOutput& a, const CapturedOutput& b) {
  ASSERT_EQ(a.quantized.size(), b.quantized.size());
  for (const auto& [name, matrix] : a.quantized) {
    const QuantizedMatrix& other = b.quantized.at(name);
    EXPECT_EQ(matrix.codes, other.codes) << name;
    EXPECT_EQ(matrix.scales, other.scales) << name;
    EXPECT_EQ(matrix.zeros, other.zeros) << name;
    EXPECT_EQ(matrix.input_scale, other.input_scale) << name;
    EXPECT_EQ(matrix.loss, other.loss) << name;
  }
  EXPECT_EQ(a.dense, b.dense);
}

TEST(Devices, AProfileNamesBlocksAndStages) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Recipe recipe = Recipe::parse(
      "method: gptq\nscheme: w4a16_g32_sym\ncalibration: {samples: 1, sequence_length: 16}\n", "r.yaml");
  testing::DeviceNotes notes;
  CapturedOutput output;
  run_pipeline(make_plan(recipe, checkpoint, spec, Compute::kFloat32, 1, 0), checkpoint, spec,
               some_samples(1, 16), *testing::recording_backend(notes), output, {});
  EXPECT_EQ(notes.open, 0);
  for (const std::size_t block : {0, 1}) {
    const auto begin = std::find(notes.ranges.begin(), notes.ranges.end(), fmt::format("block {}", block));
    ASSERT_NE(begin, notes.ranges.end());
    for (const std::string& stage :
         {std::string("x_attn statistics"), fmt::format("model.layers.{}.self_attn.q_proj", block),
          std::string("x_o forward")})
      EXPECT_NE(std::find(begin, notes.ranges.end(), " " + stage), notes.ranges.end()) << stage;
  }
}

// Chunks of 20 tokens end inside what is summed at once, and three chunks are no multiple of two devices.
// awq,gptq folds, takes back upstream error from every second chunk or from all, and the cache's scales are
// maxima over all chunks.
TEST(Devices, SumsThatEndInsideAChunkAreThoseOfOneDevice) {
  for (const char* recipe :
       {"method: [awq, gptq]\nscheme: w4a16_g32_asym\nformat: compressed-tensors\nkv_cache: {dtype: "
        "fp8}\nawq: {grid: 3}\n",
        "method: smoothquant\nscheme: w8a8_channel_sym_static\nformat: compressed-tensors\n"}) {
    const Work work{"cpu", recipe, 5, 20, 20};
    const CapturedOutput one = quantize_work(work, 1);
    for (const int count : {2, 3}) expect_same_output(quantize_work(work, count), one);
  }
}

// Nothing of one device is given to another: their memory has different names, which every operation checks.
TEST(Devices, EmulatedOnesGiveTheBytesOfOne) {
  const Work work{"emulated",
                  "method: [awq, gptq]\nscheme: w4a16_g32_sym\nawq: {grid: 2}\nignore: ['re:.*layers.1.*', "
                  "'re:.*(q|k|v|gate|up)_proj']\n",
                  3, 16, 16};
  expect_same_output(quantize_work(work, 2), quantize_work(work, 1));
}

// Chunks of 4,096 tokens and of fewer, and a rest.
TEST(Devices, StatisticsOfSeveralCollectorsHaveTheBitsOfOne) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  for (const std::int64_t length : {std::int64_t{512}, std::int64_t{200}}) {
    const CalibrationSet samples = some_samples(11000 / length, length);
    std::vector<std::byte> expected;
    for (const int count : {1, 2, 3}) {
      const std::vector<std::shared_ptr<Backend>> devices = devices_of("cpu", count);
      std::vector<ForwardContext> contexts;
      std::vector<BlockWeights> weights;
      for (const auto& device : devices) {
        contexts.push_back(make_forward_context(spec, *device, Compute::kBFloat16, length));
        weights.push_back(load_block(*device, Compute::kBFloat16, source, spec.blocks[0]));
      }
      ActivationStream stream(contexts, samples, 4096 / length * length, {});
      stream.embed(checkpoint, samples);
      const InputStats stats =
          stream.statistics(site_named(spec.blocks[0], "x_attn"), 0, weights, Samples::kAll);
      if (count == 1) expected = stats.save();
      EXPECT_EQ(stats.tokens(), samples.tokens());
      EXPECT_TRUE(stats.save() == expected) << count << " devices, samples of " << length;
    }
  }
}

}  // namespace
}  // namespace llmq
