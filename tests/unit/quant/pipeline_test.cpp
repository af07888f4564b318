// The whole way over a real two-block model with grouped-query attention: what a fold must leave alone, what
// it may change, and that threads do not matter.
#include "quant/pipeline/pipeline.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/error.h"
#include "captured_output.h"
#include "model/run_sublayer.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/rtn.h"
#include "quant/pipeline/block_quantizer.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

struct Result {
  CapturedOutput output;
  QuantizeReport report;
};

Result quantize_stories(const std::string& recipe, Backend& backend, Compute compute = Compute::kFloat32) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, compute, 1, 0);
  Result result;
  result.report = run_pipeline(plan, checkpoint, spec, some_samples(2, 24), backend, result.output, {});
  return result;
}

constexpr const char* kFine = "method: awq\nscheme: w8a16_g32_asym\nawq: {grid: 5, clip: false}\n";

std::vector<float> floats(const CapturedOutput::Dense& dense) {
  std::vector<float> values(static_cast<std::size_t>(dense.shape.elements()));
  to_float32(TensorView(dense.bytes.data(), dense.dtype, dense.shape), values);
  return values;
}

// Block 0 with the captured weights, as a loader would build it.
BlockWeights captured_block(Backend& backend, const ModelSpec& spec, const CapturedOutput& output,
                            const LinearSource& source) {
  BlockWeights weights = load_block(backend, Compute::kFloat32, source, spec.blocks[0]);
  const BlockSpec& block = spec.blocks[0];
  for (const LinearSpec& linear : block.linears) {
    const auto found = output.quantized.find(linear.module);
    if (found == output.quantized.end()) continue;
    std::vector<float> value(found->second.codes.size());
    dequantize(found->second, value);
    set_weight(backend, Compute::kFloat32, linear,
               TensorView(value.data(), DType::kF32, {linear.out_features, linear.in_features}),
               weights.at(linear.id));
  }
  for (std::size_t i = 0; i < block.norms.size(); ++i)
    weights.norms[i] =
        load_norm(backend, block.norms[i], floats(output.dense.at(block.norms[i].gain.tensor)), {});
  return weights;
}

std::vector<float> what_it_adds(Backend& backend, const ModelSpec& spec, const BlockWeights& weights) {
  constexpr std::int64_t kTokens = 24;
  const ForwardContext context = make_forward_context(spec, backend, Compute::kFloat32, kTokens);
  std::vector<float> hidden(static_cast<std::size_t>(kTokens * spec.hidden_size));
  std::uint32_t state = 5;
  for (float& h : hidden)
    h = static_cast<float>((state = state * 1664525u + 1013904223u) >> 16) / 32768.0f - 1.0f;
  BatchRows rows;
  const std::vector<std::int32_t> table = {0, 1};
  for (std::int64_t t = 0; t < kTokens; ++t) {
    rows.positions.push_back(static_cast<std::int32_t>(t));
    rows.slots.push_back(t);
  }
  rows.sequences.push_back({0, kTokens, 0, table});
  const Shape shape{2, 16, spec.blocks[0].pages.kv_heads, spec.blocks[0].pages.head_dim};
  const Buffer keys = backend.allocate(static_cast<std::size_t>(shape.elements()) * 4),
               values = backend.allocate(static_cast<std::size_t>(shape.elements()) * 4);
  const KvPages pages{keys.view(DType::kF32, shape), values.view(DType::kF32, shape), 16};
  const Buffer buffer = backend.allocate(hidden.size() * sizeof(float));
  const TensorView view = buffer.view(DType::kF32, {kTokens, spec.hidden_size});
  backend.upload(view, hidden.data());
  run_block({&context, &weights, pages, view}, 0, rows);
  std::vector<float> out(hidden.size());
  backend.download(out.data(), view);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] -= hidden[i];  // what the block adds
  return out;
}

// Scales of a fold cancel exactly in real arithmetic, so what is left is the rounding of 8-bit codes. Each
// linear's relative error is the reported weight_error (below 1 %: asserted); four linears follow one another
// and errors at most add in norm up to the layers' gain, for which a factor of 5 is allowed. A reader that
// missed its scale is off by the scale itself, several 10 %.
TEST(Pipeline, FoldsLeaveTheFunctionAlone) {
  const auto backend = make_cpu_backend(2);
  const Result result = quantize_stories(kFine, *backend);
  double largest = 0;
  for (const ModuleReport& m : result.report.modules) largest = std::max(largest, m.weight_error);
  EXPECT_GT(largest, 0);
  EXPECT_LT(largest, 0.01);
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  const std::vector<float> before =
      what_it_adds(*backend, spec, load_block(*backend, Compute::kFloat32, source, spec.blocks[0]));
  const std::vector<float> after =
      what_it_adds(*backend, spec, captured_block(*backend, spec, result.output, source));
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    difference += std::pow(static_cast<double>(after[i]) - before[i], 2);
    norm += std::pow(static_cast<double>(before[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 4 * 5 * largest);
}

TEST(Pipeline, FoldsHappenAtEverySite) {
  const auto backend = make_cpu_backend(2);
  const Result result = quantize_stories(kFine, *backend);
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  // A folded producer differs from the original by more than rounding (8 bits: half a step of 1/255 of a
  // range).
  const auto moved = [&](const char* name) {
    const LinearSpec& linear = linear_named(spec.blocks[1], name);
    std::vector<float> value(result.output.quantized.at(linear.module).codes.size());
    dequantize(result.output.quantized.at(linear.module), value);
    const ZeroedNumbers<float> original = source.weight(linear, backend->workers());
    double d = 0, n = 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      d += std::pow(static_cast<double>(value[i]) - original[i], 2);
      n += std::pow(static_cast<double>(original[i]), 2);
    }
    return std::sqrt(d / n);
  };
  EXPECT_GT(moved("o_proj"), 0.02);
  EXPECT_GT(moved("down_proj"), 0.02);
  int norms = 0;
  for (const BlockSpec& block : spec.blocks)
    for (const NormSpec& norm : block.norms)
      norms += floats(result.output.dense.at(norm.gain.tensor)) != source.tensor(norm.gain.tensor);
  EXPECT_GE(norms, 2);
}

TEST(Pipeline, EveryTensorIsWrittenOnce) {
  const auto backend = make_cpu_backend(2);
  const Result result = quantize_stories(
      "method: rtn\nscheme: w4a16_g32_asym\nignore: [lm_head, 're:.*layers.1.*o_proj']\n", *backend);
  const Checkpoint checkpoint = stories();
  EXPECT_EQ(result.output.quantized.size(), 13u);
  EXPECT_EQ(result.output.quantized.size() + result.output.dense.size(), checkpoint.tensors().size());
  for (const auto& [name, dense] : result.output.dense) {
    const StoredTensor& tensor = checkpoint.at(name);
    EXPECT_EQ(dense.shape, tensor.view.shape);
    EXPECT_EQ(0, std::memcmp(dense.bytes.data(), tensor.view.pointer, dense.bytes.size()))
        << name;  // rounding folds nothing
  }
  EXPECT_EQ(result.report.modules.size(), 13u);
  EXPECT_EQ(result.report.modules[0].method, "rtn");
}

TEST(Pipeline, WhatIsIgnoredKeepsItsBytes) {
  const auto backend = make_cpu_backend(2);
  const Result result = quantize_stories(
      "method: awq\nscheme: w4a16_g32_asym\nawq: {grid: 3}\nignore: [lm_head, 're:.*k_proj', 're:.*up_proj', "
      "'re:.*v_proj']\n",
      *backend);
  const Checkpoint checkpoint = stories();
  for (const auto& [name, dense] : result.output.dense)
    EXPECT_EQ(0, std::memcmp(dense.bytes.data(), checkpoint.at(name).view.pointer, dense.bytes.size()))
        << name;  // no fold is possible
  EXPECT_EQ(result.output.quantized.size(), 8u);
}

TEST(Pipeline, AwqLosesLessThanRoundingOverall) {
  const auto backend = make_cpu_backend(2);
  const Result result = quantize_stories("method: awq\nscheme: w4a16_g32_asym\nawq: {grid: 8}\n", *backend);
  double loss = 0, rtn = 0;
  for (const ModuleReport& m : result.report.modules) {
    EXPECT_GT(m.rtn_loss, 0) << m.module;
    loss += m.loss;
    rtn += m.rtn_loss;
  }
  EXPECT_LT(loss, 0.9 * rtn);
}

TEST(Pipeline, SameBytesAtAnyThreadCount) {
  try {
    make_cpu_backend(1);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kUnsupported) throw;
    GTEST_SKIP() << e.what();
  }
  for (const char* recipe :
       {"method: awq\nscheme: w4a16_g32_asym\n", "method: [awq, gptq]\nscheme: w4a16_g32_asym\n",
        "method: [smoothquant, rtn]\nscheme: w8a8_channel_sym_static\n"}) {
    const Result expected = quantize_stories(recipe, *make_cpu_backend(1), Compute::kBFloat16);
    for (const int threads : {2, 3, 8}) {
      const Result result = quantize_stories(recipe, *make_cpu_backend(threads), Compute::kBFloat16);
      EXPECT_EQ(result.output.dense, expected.output.dense);
      for (const auto& [module, matrix] : expected.output.quantized) {
        EXPECT_EQ(result.output.quantized.at(module).codes, matrix.codes) << module;
        EXPECT_EQ(result.output.quantized.at(module).scales, matrix.scales) << module;
        EXPECT_EQ(result.output.quantized.at(module).zeros, matrix.zeros) << module;
        EXPECT_EQ(result.output.quantized.at(module).input_scale, matrix.input_scale) << module;
      }
    }
  }
}

TEST(Pipeline, CalibratedScalesCoverWhatWasAskedFor) {
  const auto backend = make_cpu_backend(2);
  const std::string scheme =
      "method: smoothquant\nscheme: w8a8_channel_sym_static\nsmoothquant: {alpha: 0.5}\n";
  const Result whole = quantize_stories(scheme, *backend),
               most =
                   quantize_stories(scheme + "activations: {range: percentile, percentile: 99}\n", *backend);
  for (const auto& [module, matrix] : whole.output.quantized) {
    EXPECT_GT(most.output.quantized.at(module).input_scale, 0) << module;
    EXPECT_GT(matrix.input_scale, 0) << module;
  }
  // The first input is the same in both runs: there the percentile really clips.
  const std::string first = "model.layers.0.self_attn.q_proj";
  EXPECT_GT(whole.output.quantized.at(first).input_scale, most.output.quantized.at(first).input_scale);
  for (const ModuleReport& m : whole.report.modules) EXPECT_GT(m.input_error, 0) << m.module;
}

// Inputs as floats in groups: one global scale by the largest magnitude that calibration sees, for all that
// read an input; of modelopt a power of two. What rounding costs is in the report.
TEST(Pipeline, InputsOfTwoLevelsHaveTheGlobalScaleOfTheirLargest) {
  const auto backend = make_cpu_backend(2);
  const Result nvfp4 = quantize_stories("method: rtn\nscheme: nvfp4\n", *backend),
               fp8 = quantize_stories("method: rtn\nscheme: fp8_static\n", *backend),
               modelopt = quantize_stories("method: rtn\nscheme: nvfp4\nformat: modelopt\n", *backend),
               folded = quantize_stories("method: [awq, gptq]\nscheme: nvfp4\nawq: {grid: 4}\n", *backend);
  const auto scale = [](const Result& result, const char* linear) {
    return result.output.quantized.at(std::string("model.layers.0.") + linear).input_scale;
  };
  const float first = scale(nvfp4, "self_attn.q_proj"), largest = scale(fp8, "self_attn.q_proj") * 448;
  EXPECT_NEAR(first * largest / (448 * 6), 1, 1.0 / 256) << "FP8 scales are stored as BF16";
  EXPECT_EQ(scale(modelopt, "self_attn.q_proj"), std::exp2(std::floor(std::log2(first))));
  for (const Result* result : {&nvfp4, &modelopt, &folded}) {
    EXPECT_EQ(scale(*result, "self_attn.q_proj"), scale(*result, "self_attn.k_proj"));
    EXPECT_EQ(scale(*result, "self_attn.q_proj"), scale(*result, "self_attn.v_proj"));
    EXPECT_EQ(scale(*result, "mlp.gate_proj"), scale(*result, "mlp.up_proj"));
  }
  EXPECT_NE(scale(folded, "self_attn.q_proj"), first) << "the fold changed the input";
  const auto input_error = [&](const std::string& scheme) {
    double sum = 0;
    for (const ModuleReport& m :
         quantize_stories("method: gptq\nscheme: " + scheme + "\n", *backend).report.modules)
      sum += m.input_error;
    return sum;
  };
  const double of_8 = input_error("mxfp8"), of_16 = input_error("nvfp4"), of_32 = input_error("mxfp4a4");
  EXPECT_GT(of_8, 0);
  EXPECT_LT(8 * of_8, of_16);
  EXPECT_LT(of_16, of_32);
  EXPECT_LT(of_32, 14 * 0.1);
}

TEST(Pipeline, RunsWhereTheDevicesMemoryIsClosed) {
  for (const char* recipe : {kFine,
                             "method: gptq\nscheme: w4a16_g32_sym\ngptq: {upstream_share: 0.5}\nignore: "
                             "[lm_head, \"re:.*layers.0.*\", "
                             "\"re:.*(gate|up|q|k|v)_proj\"]\n"}) {
    const Result open = quantize_stories(recipe, *make_reference_backend()),
                 closed = quantize_stories(recipe, *make_fake_backend());
    EXPECT_EQ(open.output.dense, closed.output.dense);
    for (const auto& [module, matrix] : open.output.quantized)
      EXPECT_EQ(closed.output.quantized.at(module).codes, matrix.codes) << module;
  }
}

// Rounds to nearest, and spoils it where the input is widest: every code one step off, loss told truly.
class SpoilsDown final : public Method {
 public:
  QuantizedMatrix quantize(const RoundingProblem& p, Backend& backend) const override {
    ThreadPool pool(1);
    QuantizedMatrix matrix = round_to_nearest(p.weight, p.out_features, p.in_features, p.scheme, pool);
    if (p.in_features == 384)
      for (std::uint8_t& code : matrix.codes) code = static_cast<std::uint8_t>(code == 0 ? 1 : code - 1);
    GramLoss gram(*p.stats, backend, Compute::kFloat32);
    matrix.loss = sum_in_order(row_losses(matrix, p.weight, gram, pool));
    return matrix;
  }
};

TEST(Pipeline, WhatLosesMoreThanPlainRoundingIsRoundedPlainlyAndSaid) {
  const auto backend = make_cpu_backend(1);
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Plan plan = make_plan(Recipe::parse("method: gptq\nscheme: w4a16_g64_asym\n", "r.yaml"), checkpoint,
                              spec, Compute::kFloat32, 1, 0);
  const LinearSource source = LinearSource::open(checkpoint);
  const CalibrationSet samples = some_samples(2, 24);
  CapturedOutput output;
  QuantizeReport report;
  PartClock clock;
  const PipelineOptions options;
  BackgroundWriter writing(output);
  QuantizeRun run(plan, source, spec, *backend, options, report, clock, std::make_unique<SpoilsDown>(),
                  writing);
  const ForwardContext context = make_forward_context(spec, *backend, Compute::kFloat32, 24);
  ActivationStream stream(context, samples, plan.chunk_tokens, true);
  stream.embed(checkpoint, samples);
  for (int block = 0; block < 2; ++block) quantize_block_on_samples(run, block, stream);
  writing.finish();

  std::vector<std::string> fallen;
  for (const Fallback& fallback : report.fallbacks) {
    fallen.push_back(fallback.module);
    EXPECT_THAT(fallback.reason, ::testing::HasSubstr("it is rounded plainly"));
  }
  EXPECT_THAT(fallen, ::testing::ElementsAre("model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"));
  for (const ModuleReport& m : report.modules) {
    EXPECT_LE(m.loss, m.rtn_loss) << m.module;
    EXPECT_EQ(m.method == "rtn", m.module.ends_with("down_proj")) << m.module;
  }
  for (const BlockSpec& block : spec.blocks) {
    const LinearSpec& down = linear_named(block, "down_proj");
    const QuantizedMatrix& written = output.quantized.at(down.module);
    const QuantizedMatrix plain =
        round_to_nearest(source.weight(down, backend->workers()), down.out_features, down.in_features,
                         plan.modules.front().scheme, backend->workers());
    EXPECT_EQ(written.codes, plain.codes);
    EXPECT_EQ(written.scales, plain.scales);
  }
}

}  // namespace
}  // namespace llmq
