// A device that runs out of memory in the middle of a run: what it computes in smaller parts has the bits of
// the whole.
#include "model/fitting_rows.h"

#include <gmock/gmock.h>

#include "captured_output.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/plan/plan.h"
#include "support/named_parts.h"
#include "support/short_device.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kLength = 16, kChunk = 3 * kLength;
constexpr std::size_t kHidden = 128, kMiddle = 384;  // of the model

// The rows of one stage, FP32 of so many columns, in one range of a profile. The first kChunk are refused,
// and of their halves the second, when the first have been computed.
class Refusals {
 public:
  Refusals(std::string range, std::size_t columns) : range_("/block 0/" + range + "/"), columns_(columns) {}
  bool operator()(std::size_t bytes, const std::string& ranges) {
    if (ranges.find(range_) == std::string::npos) return false;
    const bool first = refused == 0 && bytes == kChunk * columns_ * 4,
               second = refused == 1 && bytes == kChunk / 2 * columns_ * 4 && ++halves_ == 2;
    if (first || second) ++refused;
    return first || second;
  }
  int refused = 0;

 private:
  std::string range_;
  std::size_t columns_;
  int halves_ = 0;
};

struct ReportedRun {
  CapturedOutput output;
  QuantizeReport report;
};

ReportedRun quantize_in_chunks(const std::vector<std::shared_ptr<Backend>>& devices, std::int64_t chunks,
                               ResidualPlace place = ResidualPlace::kDevice) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  constexpr const char* kRecipe =
      "method: gptq\nscheme: w4a16_g32_sym\nignore: ['re:.*(layers.1.mlp|[qkv]_proj|gate|up_proj).*']\n"
      "gptq: {{upstream_share: 0.5, scale_search: minmax, descent_sweeps: 0, refit_scales: false, "
      "retry_scales: false}}\n"
      "calibration: {{samples: {}, sequence_length: {}}}\n";
  const Recipe recipe = Recipe::parse(fmt::format(kRecipe, chunks * kChunk / kLength, kLength), "r.yaml");
  Plan plan = make_plan(recipe, checkpoint, spec, Compute::kBFloat16, 1, 0);
  plan.chunk_tokens = kChunk;
  plan.activations_on_host = place == ResidualPlace::kHost;
  PipelineOptions options;
  options.further_devices.assign(devices.begin() + 1, devices.end());
  ReportedRun run;
  run.report = run_pipeline(plan, checkpoint, spec, some_samples(chunks * kChunk / kLength, kLength),
                            *devices.front(), run.output, options);
  return run;
}

void expect_same_o_and_down(const CapturedOutput& a, const CapturedOutput& b) {
  ASSERT_EQ(a.quantized.size(), 3u);  // o, down, and what comes after them
  ASSERT_EQ(a.quantized.size(), b.quantized.size());
  for (const auto& [name, matrix] : a.quantized) {
    const QuantizedMatrix& other = b.quantized.at(name);
    EXPECT_EQ(matrix.codes, other.codes) << name;
    EXPECT_EQ(matrix.scales, other.scales) << name;
    EXPECT_EQ(matrix.loss, other.loss) << name;
  }
}

std::vector<std::string> said(const ReportedRun& run) {
  std::vector<std::string> found;
  for (const std::string& warning : run.report.warnings)
    if (warning.find("ran out of memory") != std::string::npos) found.push_back(warning);
  return found;
}

TEST(FittingRows, AStageThatDoesNotFitIsComputedInPartsWithTheSameResult) {
  const ReportedRun whole = quantize_in_chunks({make_emulated_cuda_backend(1)}, 1);
  EXPECT_TRUE(said(whole).empty());
  const struct {
    const char* range;
    std::size_t columns;
  } stages[] = {{"x_o statistics", kHidden},
                {"x_o forward", kHidden},
                {"x_down statistics", kMiddle},
                {"x_down forward", kHidden}};
  for (const auto& stage : stages) {
    SCOPED_TRACE(stage.range);
    Refusals refusals(stage.range, stage.columns);
    const ReportedRun run = quantize_in_chunks({testing::short_backend(0, std::ref(refusals))}, 1);
    EXPECT_EQ(refusals.refused, 2);
    expect_same_o_and_down(run.output, whole.output);
    EXPECT_THAT(said(run), ::testing::ElementsAre(
                               AllOf(HasSubstr("in block 1/2"), HasSubstr("16 rows of a chunk at a time"))));
  }
}

TEST(FittingRows, OneOfTwoDevicesGoesOnWithFewerRows) {
  Refusals refusals("x_o forward", kHidden);
  const ReportedRun run =
      quantize_in_chunks({testing::short_backend(0, std::ref(refusals)), make_emulated_cuda_backend(1, {1})},
                         2, ResidualPlace::kHost);
  EXPECT_EQ(refusals.refused, 2);
  expect_same_o_and_down(run.output, quantize_in_chunks({make_emulated_cuda_backend(1)}, 2).output);
  EXPECT_EQ(said(run).size(), 1u);
}

TEST(FittingRows, ARunThatNoPartFitsEndsWithWhatWouldDo) {
  const auto refuse = [](std::size_t bytes, const std::string& ranges) {
    return ranges.find("/block 0/x_down forward/") != std::string::npos &&
           bytes >= FittingRows::kFewest * kHidden * 4;
  };
  try {
    quantize_in_chunks({testing::short_backend(0, refuse)}, 1);
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_EQ(exit_code(error.kind()), 1);
    EXPECT_THAT(error.what(), HasSubstr("no room for 8192 more bytes, with no more than 16 rows of a chunk "
                                        "at a time; the same command goes on"));
  }
}

// Where samples are shown and where they are finished, every allocation may be the one that fails.
TEST(FittingRows, AnyAllocationOfTheForwardPassMayFail) {
  const Checkpoint checkpoint = stories();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  constexpr std::int64_t kFewRows = 2 * FittingRows::kFewest;
  const CalibrationSet samples = some_samples(1, kFewRows);
  std::size_t allocations = 0, refused = SIZE_MAX;
  const auto seen = [&] {
    bool counts = false;
    const auto backend = testing::short_backend(
        0, [&](std::size_t, const std::string&) { return counts && allocations++ == refused; });
    const BlockWeights weights = load_block(*backend, Compute::kBFloat16, source, spec.blocks[0]);
    ForwardContext context = make_forward_context(spec, *backend, Compute::kBFloat16, kFewRows);
    context.fitting = std::make_unique<FittingRows>();
    ActivationStream stream(context, samples, kFewRows, false);
    stream.measure_kv();
    stream.embed(checkpoint, samples);
    std::vector<std::byte> bytes;
    const auto take = [&](const char* name) {
      stream.each_input(site_named(spec.blocks[0], name), 0, weights, Samples::kAll,
                        [&](const TensorView& x) {
                          const std::size_t before = bytes.size();
                          bytes.resize(before + x.bytes());
                          backend->download(bytes.data() + before, x);
                        });
    };
    allocations = 0;
    counts = true;
    stream.finish(0, 0, weights);
    const KvExtremes extremes = stream.kv_extremes();
    stream.finish(1, 0, weights);
    counts = false;
    EXPECT_EQ(context.fitting->news().value_or(kFewRows), refused == SIZE_MAX ? kFewRows : kFewRows / 2);
    take("x_attn");
    take("x_o");
    return std::tuple(bytes, extremes.keys, extremes.values);
  };
  const auto whole = seen();
  const std::size_t all = allocations;
  EXPECT_GT(all, 10u);
  for (refused = 0; refused < all; ++refused)
    EXPECT_TRUE(seen() == whole) << "allocation " << refused << " of " << all;
}

}  // namespace
}  // namespace llmq
