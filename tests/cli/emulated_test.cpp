// Whole commands through the CUDA backend, its kernels emulated by the host (--device emulated): what a GPU
// would compute, but for what docs/adr/0013 says an emulation cannot show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace llmq::testing {
namespace {

std::string written_text(const Scratch& scratch) {
  const std::string text = scratch / "text.txt";
  write_file(text,
             "Once upon a time there was a little dog who liked to play in the park with his friends. One "
             "day he found a red ball, and "
             "he was very happy, because he had never seen such a big ball before.");
  return text;
}

Outcome evaluate_model(const std::string& model, const std::string& compute, const std::string& device,
                       const std::string& text, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"eval-ppl", model,           "--text", text,        "--context",
                                    "32",       "--max-windows", "1",      "--compute", compute,
                                    "--device", device,          "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return run_llmq(words);
}

Outcome evaluate(const std::string& device, const std::string& text,
                 const std::vector<std::string>& more = {}) {
  return evaluate_model(tinystories(), "float32", device, text, more);
}

double perplexity_on(const std::string& device, const std::string& text,
                     const std::vector<std::string>& more = {}) {
  const Outcome outcome = evaluate(device, text, more);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.json().at("ppl").as_double();
}

TEST(EmulatedCuda, PerplexityIsTheCpus) {
  const Scratch scratch;
  const std::string text = written_text(scratch);
  const double cpu = perplexity_on("cpu", text);
  const double emulated = perplexity_on("emulated", text);
  EXPECT_NEAR(emulated, cpu, 5e-5 * cpu);  // four digits
  EXPECT_EQ(perplexity_on("emulated", text, {"--tensor-parallel-size", "2"}), emulated);
  const Outcome split = evaluate("emulated", text, {"--gpu-layers", "1"});
  ASSERT_EQ(split.exit_code, 0) << split.err;
  EXPECT_NEAR(split.json().at("ppl").as_double(), cpu, 5e-5 * cpu);
  EXPECT_THAT(split.json().at("device").as_string(),
              ::testing::AllOf(::testing::StartsWith("cpu"),
                               ::testing::HasSubstr("cuda (emulated) for the first 1 of 2 blocks")));
  EXPECT_EQ(perplexity_on("emulated", text, {"--gpu-layers", "0"}), cpu);
  const Outcome refused = run_llmq({"eval-ppl", tinystories(), "--device", "cpu", "--gpu-layers", "1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, ::testing::HasSubstr("add --device cuda"));
}

// FP4 beside inputs of 16 bits and of 4, from codes: the CPU's figures to four digits in float32 and to a
// thousandth in bfloat16 (scripts/device_check.sh), the same on one device and two.
TEST(EmulatedCuda, FloatsOfFourBitsRunFromTheirCodes) {
  const Scratch scratch;
  const std::string text = written_text(scratch);
  for (const auto& [scheme, scale_group] : {std::pair{"nvfp4a16", 16}, {"mxfp4", 32}, {"mxfp4a4", 32}}) {
    const std::string model = rounded_model(scratch, scheme, {std::string("scheme=") + scheme});
    for (const std::string compute : {"float32", "bfloat16"}) {
      SCOPED_TRACE(scheme + (" in " + compute));
      const auto perplexity = [&](const std::string& device, const std::vector<std::string>& more = {}) {
        const Outcome outcome = evaluate_model(model, compute, device, text, more);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        return outcome.json().at("ppl").as_double();
      };
      const double cpu = perplexity("cpu"), emulated = perplexity("emulated");
      EXPECT_NEAR(emulated, cpu, (compute == "float32" ? 5e-5 : 1e-3) * cpu);
      EXPECT_EQ(perplexity("emulated", {"--tensor-parallel-size", "2"}), emulated);
    }
    const Outcome said = run_llmq(
        {"generate", model, "--prompt", "Once", "--max-tokens", "2", "--device", "emulated", "--json"});
    ASSERT_EQ(said.exit_code, 0) << said.err;
    const Json document = said.json();
    const Json& kernel = document.at("kernels").items()[0];
    EXPECT_EQ(kernel.at("weights").as_string(), scheme);
    EXPECT_EQ(kernel.at("kernel").as_string(), "e2m1 codes in fragments");
    // 393,216 weights of two blocks, whose sides are multiples of 64.
    EXPECT_EQ(kernel.at("bytes").as_integer(), 393216 / 2 + 393216 / scale_group);
  }
}

TEST(EmulatedCuda, QuantizeSaysWhatTheDeviceHeld) {
  const Scratch scratch;
  const Outcome outcome = run_llmq(
      {"quantize", "--method", "gptq", "--model", tinystories(), "--output", scratch / "q", "--device",
       "emulated", "--json", "--set", "scheme=w4a16_g32_sym", "--set", "calibration.samples=1", "--set",
       "calibration.sequence_length=16", "--set", "ignore=['re:.*(mlp|layers.1).*']"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  // The same bytes on every processor: kernels that the host emulates and those on host memory have no level.
  // Found at the scalar level, with AVX2 and on aarch64. A change that has to give others says so
  // (CHANGELOG).
  EXPECT_EQ(outcome.json().at("digest").as_string(),
            "sha256:c39c289c546aaec43f29ba4e0a69491c2adfd002c55cd335c47a69bc82d4ed99");
  // One linear of the model's, at the least: 192 x 64 numbers.
  EXPECT_GT(outcome.json().at("peak_device_bytes").as_integer(), 192 * 64 * 4);
  // on the device of the manifest
  const Outcome again = run_llmq({"verify", scratch / "q", "--rebuild", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(again.json().at("rebuild").at("ok").as_bool());
  EXPECT_THAT(again.err, ::testing::Not(::testing::HasSubstr("arithmetic was")));
}

TEST(EmulatedCuda, ARunThatTheDeviceHasNoRoomForIsRefusedBeforeItBegins) {
  const Scratch scratch;
  const std::vector<std::string> job = {"quantize",
                                        "--method",
                                        "gptq",
                                        "--model",
                                        tinystories(),
                                        "--output",
                                        scratch / "q",
                                        "--device",
                                        "emulated",
                                        "--json",
                                        "--dry-run",
                                        "--set",
                                        "scheme=w4a16_g32_sym",
                                        "--set",
                                        "calibration.samples=8",
                                        "--set",
                                        "calibration.sequence_length=64"};
  const Outcome plan = run_llmq(job);
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const Json document = plan.json();
  const std::int64_t needed = document.at("device_bytes").as_integer();
  std::int64_t parts = 0;
  for (const Json& item : document.at("device_memory").items()) parts += item.at("bytes").as_integer();
  EXPECT_EQ(parts, needed);
  const Outcome refused = run_llmq(job, {"LLMQ_EMULATED_MEMORY=" + std::to_string(needed / 4)});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.out + refused.err,
              ::testing::AllOf(::testing::HasSubstr("MB on its device"), ::testing::HasSubstr("would do")));
  EXPECT_EQ(run_llmq(job, {"LLMQ_EMULATED_MEMORY=few"}).exit_code, 2);
}

}  // namespace
}  // namespace llmq::testing
