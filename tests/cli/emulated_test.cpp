// Whole commands through the CUDA backend, its kernels emulated by the host (--device emulated): what a GPU would compute, but for
// what docs/adr/0013 says an emulation cannot show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace llmq::testing {
namespace {

double perplexity(const std::string& device, const std::string& text) {
  const Outcome outcome = run_llmq({"eval-ppl", tinystories(), "--text", text, "--context", "32", "--max-windows", "1", "--compute",
                                    "float32", "--device", device, "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.json().at("ppl").as_double();
}

TEST(EmulatedCuda, PerplexityIsTheCpus) {
  const Scratch scratch;
  const std::string text = scratch / "text.txt";
  write_file(text, "Once upon a time there was a little dog who liked to play in the park with his friends. One day he found a red ball, and "
                   "he was very happy, because he had never seen such a big ball before.");
  const double cpu = perplexity("cpu", text);
  EXPECT_NEAR(perplexity("emulated", text), cpu, 5e-5 * cpu);  // four digits
}

}  // namespace
}  // namespace llmq::testing
