// Packed checkpoints run from their codes: the same figures as dequantized, in about their size, and the
// program says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

double perplexity_of(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"eval-ppl", "--max-windows", "1", "--context", "256", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_llmq(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.json().at("ppl").as_double();
}

// Float32 values of codes are those of the dense checkpoint, and so is every sum.
TEST(Packed, EvaluatesInFloat32ToTheBitsOfTheDenseCheckpoint) {
  const Scratch scratch;
  for (const std::string scheme : {"w4a16_g32_asym", "w8a16_channel_sym", "nvfp4a16", "mxfp4"}) {
    const std::string packed = rounded_model(scratch, scheme, {"scheme=" + scheme}),
                      dense = scratch / (scheme + "-dense");
    const Outcome made = run_llmq({"convert", packed, dense, "--dtype", "f32"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(perplexity_of({packed}), perplexity_of({dense}));
  }
}

// Blocks run from their codes, around one zero or above a minimum, q's and k's rows put in the model's order.
TEST(Packed, EvaluatesAGgufInFloat32ToTheBitsOfTheDenseCheckpoint) {
  const Scratch scratch;
  const std::vector<std::pair<std::string, std::string>> types = {{"q4_0", "Q4_0 linears as 4-bit codes"},
                                                                  {"q8_0", "Q8_0 linears as 8-bit codes"},
                                                                  {"q4_1", "Q4_1 linears as 4-bit codes"},
                                                                  {"q5_1", "Q5_1 linears as 5-bit codes"}};
  for (const auto& [type, served] : types) {
    const std::string packed = scratch / (type + ".gguf"), dense = scratch / (type + "-dense");
    const Outcome made = run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output",
                                   packed, "--set", "format=gguf", "--set", "scheme=" + type});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const Outcome converted = run_llmq({"convert", packed, dense, "--dtype", "f32"});
    ASSERT_EQ(converted.exit_code, 0) << converted.err;
    EXPECT_EQ(perplexity_of({packed}), perplexity_of({dense}));
    const Outcome generated = run_llmq({"generate", packed, "--prompt", "Once", "--max-tokens", "2"});
    EXPECT_THAT(generated.err, HasSubstr(served));
  }
}

TEST(Packed, SaysWhichKernelServesWhatAndTakesTheBytesOfTheCodes) {
  const Scratch scratch;
  const std::string packed = rounded_model(scratch, "w4a16_g32_asym", {"scheme=w4a16_g32_asym"});
  const Outcome outcome =
      run_llmq({"generate", packed, "--prompt", "Once", "--max-tokens", "4", "--head", "int8", "--json"},
               {"LLMQ_CPU_ISA=avx2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("w4a16_g32_asym linears as 4-bit codes; head, rounded to 8 bits as 8-bit codes"));
  const Json document = outcome.json();
  const Json& kernels = document.at("kernels");
  ASSERT_EQ(kernels.items().size(), 2u);
  EXPECT_EQ(kernels.items()[0].at("weights").as_string(), "w4a16_g32_asym");
  EXPECT_EQ(kernels.items()[0].at("kernel").as_string(), "4-bit codes");
  // 4 bits of code, and in each group of 32 a BF16 scale and a byte of zero, for every weight of the linears.
  const Outcome inspected = run_llmq({"inspect", packed, "--tensors", "--json"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  std::int64_t codes = 0;
  const Json inspection = inspected.json();
  for (const Json& tensor : inspection.at("tensors").items())
    if (tensor.at("name").as_string().ends_with(".weight_packed")) codes += tensor.at("bytes").as_integer();
  EXPECT_GT(codes, 0);
  const std::int64_t expected = codes + codes * 2 / 32 * 3;
  EXPECT_GE(kernels.items()[0].at("bytes").as_integer(), expected);
  EXPECT_LE(kernels.items()[0].at("bytes").as_integer(), expected + expected / 10) << "panels are filled up";
}

TEST(Packed, ASlowerLevelThanTheProcessorHasIsAWarning) {
  const std::vector<std::string> arguments = {"generate", tinystories(),  "--prompt",
                                              "Once",     "--max-tokens", "2"};
  EXPECT_THAT(run_llmq(arguments, {"LLMQ_CPU_ISA="}).err, Not(HasSubstr("warning")));
  const Outcome forced = run_llmq(arguments, {"LLMQ_CPU_ISA=scalar"});
  EXPECT_EQ(forced.exit_code, 0);
  const Json version = run_llmq({"--version", "--json"}, {"LLMQ_CPU_ISA="}).json();
  if (version.at("cpu_levels").items().size() == 1) GTEST_SKIP() << "this processor has no other level";
  EXPECT_THAT(forced.err, HasSubstr("warning: LLMQ_CPU_ISA chose the CPU level scalar"));
}

TEST(Packed, AnUnknownHeadIsRefused) {
  const Outcome outcome = run_llmq({"generate", tinystories(), "--prompt", "Once", "--head", "int4"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--head"));
}

}  // namespace
}  // namespace llmq::testing
