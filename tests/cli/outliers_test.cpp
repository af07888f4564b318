// What each method is for, on a model with planted outliers: a few channels 50 times as large, their readers 50
// times as small, the function unchanged. Plain rounding collapses where a scale has to cover outliers and the
// rest; methods that move scales between channels give back what the model without outliers gives.
// docs/methods.md has these figures as a table.
#include <gtest/gtest.h>

#include <cstdio>

#include "cli/planted_outliers.h"
#include "cli/program.h"

namespace llmq::testing {
namespace {

class PlantedOutliers : public ::testing::Test {
 protected:
  PlantedOutliers() { plant_outliers(planted_, {9, 40, 77, 110}, 50.0f); }

  double perplexity(const std::string& model) const {
    const Outcome outcome = run_llmq({"eval-ppl", model, "--max-windows", "8", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.json().at("ppl").as_double();
  }

  // Of `model` after `method` under `scheme`.
  double quantized(const std::string& model, const std::string& method, const std::string& scheme) {
    const std::string output = scratch_ / ("q" + std::to_string(++count_));
    const Outcome outcome = run_llmq({"quantize", "--model", model, "--output", output, "--set",
                                      "method=" + method, "--set", "scheme=" + scheme, "--set",
                                      "calibration.samples=8", "--set", "calibration.sequence_length=256"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const double found = perplexity(output);
    std::printf("%-24s %-20s %-10s %.4f\n", method.c_str(), scheme.c_str(),
                model == planted_ ? "outliers" : "original", found);
    return found;
  }

  Scratch scratch_;
  std::string planted_ = copy_of_model(scratch_, "planted");
  int count_ = 0;
};

TEST_F(PlantedOutliers, TheFunctionIsUnchanged) {
  EXPECT_NEAR(perplexity(planted_) / perplexity(tinystories()), 1, 1e-5);
}

TEST_F(PlantedOutliers, RoundingTo8BitsCollapsesAndSmoothQuantRecovers) {
  const double original = perplexity(tinystories());
  // One step for all tokens has to cover the outliers of the worst; a step for each is less often spoilt.
  const std::string token = "w8a8_channel_sym", tensor = "w8a8_channel_sym_static";
  EXPECT_GT(quantized(planted_, "rtn", token), 1.05 * original);
  EXPECT_GT(quantized(planted_, "rtn", tensor), 1.5 * original);
  EXPECT_LT(quantized(planted_, "smoothquant", token), 1.005 * original);
  EXPECT_LT(quantized(planted_, "smoothquant", tensor), 1.005 * original);
}

}  // namespace
}  // namespace llmq::testing
