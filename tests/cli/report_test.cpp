// llmq report --lm-eval: results of the real lm-evaluation-harness (tests/fixtures/lm_eval) into the
// documents of an output, which stays what its manifest says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/program.h"
#include "tests/support/new_key.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFixtures = std::string(LLMQ_SOURCE_DIR) + "/tests/fixtures/lm_eval/";
const std::string kResults = kFixtures + "quantized.json", kOriginal = kFixtures + "original.json";

TEST(Report, ScoresStandInReportPageCardAndManifest) {
  const Scratch scratch;
  const std::string output = rounded_model(scratch, "tiny-rtn", {"scheme=w4a16_g64_asym"});
  const Json before = Json::parse(read_file(output + "/report.json"), "report.json");
  const Outcome outcome = run_llmq({"report", output, "--lm-eval", kResults, "--lm-eval-baseline", kOriginal,
                                    "--max-acc-drop", "0.05", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.json().at("scores").at("gates").items().size(), 3u);
  const Json report = Json::parse(read_file(output + "/report.json"), "report.json");
  EXPECT_EQ(report.at("task_scores"), outcome.json().at("scores"));
  EXPECT_EQ(report.at("digest"), before.at("digest"));
  EXPECT_THAT(read_file(output + "/README.md"),
              HasSubstr("| llmq_choice | acc_norm | 0 | 100 | 0.23 ± 0.042 | 0.27 |"));
  EXPECT_THAT(read_file(output + "/report.html"), HasSubstr("<h2>Task scores</h2>"));
  EXPECT_EQ(run_llmq({"verify", output}).exit_code, 0) << "the manifest has the new digests";
  const std::string manifest = read_file(output + "/manifest.json");
  const Outcome again = run_llmq(
      {"report", output, "--lm-eval", kResults, "--lm-eval-baseline", kOriginal, "--max-acc-drop", "0.05"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(output + "/manifest.json"), manifest) << "the same scores, the same documents";
}

TEST(Report, AGateThatIsMissedIsExit3AndStandsInThePage) {
  const Scratch scratch;
  const std::string output = rounded_model(scratch, "tiny-rtn", {"scheme=w4a16_g64_asym"});
  const Outcome outcome = run_llmq(
      {"report", output, "--lm-eval", kResults, "--lm-eval-baseline", kOriginal, "--max-acc-drop", "0.01"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("gate max-acc-drop llmq_choice acc_norm (none): limit 0.01, found 0.04: NOT met"));
  EXPECT_THAT(read_file(output + "/report.html"), HasSubstr("not met"));
}

TEST(Report, RefusesWhatItCannotVouchFor) {
  const Scratch scratch;
  const std::string output = rounded_model(scratch, "other", {"scheme=w4a16_g64_asym"});
  const std::string card = read_file(output + "/README.md");
  const auto said = [&](const Words& more) {
    Words words = {"report", output, "--lm-eval", kResults};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_llmq(words);
    return std::to_string(outcome.exit_code) + " " + outcome.err;
  };
  EXPECT_THAT(said({}), HasSubstr("the scores are of 'tiny-rtn', and not of " + output));
  EXPECT_THAT(said({}), HasSubstr("add --lm-eval-model 'tiny-rtn'"));
  EXPECT_THAT(said({"--lm-eval-model", "third"}), HasSubstr("2 llmq: "));
  EXPECT_THAT(said({"--max-acc-drop", "0.1"}), HasSubstr("a drop needs something to drop from"));
  EXPECT_THAT(said({"--lm-eval-model", "tiny-rtn", "--lm-eval-baseline", kOriginal, "--max-acc-drop", "nan"}),
              HasSubstr("that is no limit"));
  EXPECT_EQ(read_file(output + "/README.md"), card) << "nothing was written";
  const Outcome plain = run_llmq({"report", tinystories(), "--lm-eval", kOriginal});
  EXPECT_EQ(plain.exit_code, 2);
  EXPECT_THAT(plain.err, HasSubstr("has no report"));
  write_file(scratch / "key.pem", new_key().private_pem);
  ASSERT_EQ(run_llmq({"sign", output, "--key", scratch / "key.pem"}).exit_code, 0);
  EXPECT_THAT(said({"--lm-eval-model", "tiny-rtn"}), HasSubstr("is signed"));
  std::filesystem::remove(output + "/model.sig");
  EXPECT_THAT(said({"--lm-eval-model", "tiny-rtn"}), HasSubstr("0 "));
  write_file(output + "/report.json", read_file(output + "/report.json") + " ");
  EXPECT_THAT(said({"--lm-eval-model", "tiny-rtn"}), HasSubstr("is not what the manifest says"));
}

TEST(Report, VersionsAndTheHubsFiles) {
  const Scratch scratch;
  const Outcome made = run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output",
                                 scratch / "tiny-rtn", "--set", "output.versioned=true"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Outcome none =
      run_llmq({"report", scratch / "tiny-rtn", "--lm-eval", kResults, "--eval-results", scratch / "hub"});
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.err, HasSubstr("no benchmark of the hub"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "hub"));
  std::string text = read_file(kResults);
  for (std::size_t at; (at = text.find("llmq_choice")) != std::string::npos;)
    text.replace(at, 11, "gpqa_diamond_zeroshot");
  for (std::size_t at; (at = text.find("\"effective\": 100")) != std::string::npos;)
    text.replace(at, 16, "\"effective\": 200");
  write_file(scratch / "r.json", text);
  const Outcome some = run_llmq({"report", scratch / "tiny-rtn/latest", "--lm-eval", scratch / "r.json",
                                 "--eval-results", scratch / "hub"});
  EXPECT_EQ(some.exit_code, 0) << some.err;
  EXPECT_THAT(read_file(scratch / "hub/gpqa.yaml"),
              HasSubstr("id: Idavidrein/gpqa\n    task_id: gpqa_diamond\n  value: 25\n"));
  EXPECT_EQ(run_llmq({"verify", scratch / "tiny-rtn/latest"}).exit_code, 0);
}

}  // namespace
}  // namespace llmq::testing
