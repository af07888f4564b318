// Scores in a card, in report.html and in the hub's form; names in them are hostile.
#include "export/report/score_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/yaml.h"
#include "export/report/html_report.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Json score_row(const std::string& task, const std::string& metric, double value) {
  return Json::object({{"task", task},
                       {"metric", metric},
                       {"filter", "none"},
                       {"version", "1.0"},
                       {"shots", 5},
                       {"documents", 1319},
                       {"asked", 1319},
                       {"value", value},
                       {"standard_error", 0.0125},
                       {"higher_is_better", true},
                       {"baseline", 0.5}});
}

Json scores_of(const Json& row) {
  return Json::object({{"model", "m"},
                       {"harness", "0.4.13"},
                       {"date", "2026-11-26"},
                       {"baseline", "original"},
                       {"rows", Json::array({row})}});
}

const std::string kCard = "---\ntags: []\n---\n\n# m\n\n## How it was made\n\nby llmq\n";

TEST(ScoreDocuments, TheCardGetsOneSectionAndKeepsTheRest) {
  const std::string once = card_with_scores(kCard, scores_of(score_row("arc_easy", "acc", 0.4875)));
  EXPECT_THAT(
      once,
      HasSubstr("# m\n\n## Task scores\n\nBy lm-evaluation-harness 0.4.13, 2026-11-26, beside original."));
  EXPECT_THAT(
      once,
      HasSubstr("| arc_easy | acc | 5 | 1319 | 0.4875 ± 0.013 | 0.5 |\n\n## How it was made\n\nby llmq\n"));
  const std::string twice = card_with_scores(once, scores_of(score_row("arc_easy", "acc", 0.25)));
  EXPECT_THAT(twice, HasSubstr("| 0.25 ±"));
  EXPECT_THAT(twice, Not(HasSubstr("0.4875")));
  EXPECT_THAT(card_with_scores("by hand", scores_of(score_row("t", "acc", 1))),
              HasSubstr("by hand\n## Task scores\n"));
}

TEST(ScoreDocuments, HostileNamesStayText) {
  const Json scores = scores_of(score_row("a|b<script>`x`[y](z)", "acc", 1));
  const std::string card = card_with_scores(kCard, scores);
  EXPECT_THAT(card, HasSubstr("| a\\|b&lt;script>\\`x\\`\\[y\\](z) | acc |"));
  const std::string page = make_html_report(Json::object({{"task_scores", scores}}));
  EXPECT_THAT(page, HasSubstr("a|b&lt;script&gt;"));
  EXPECT_THAT(page, HasSubstr("1 ± 0.013"));
}

TEST(ScoreDocuments, TheHubGetsItsBenchmarksInPerCent) {
  const auto files = hub_results(scores_of(score_row("gsm8k", "exact_match", 0.4875)));
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].first, "gsm8k.yaml");
  const std::string& text = files[0].second;
  EXPECT_THAT(
      text,
      HasSubstr(
          "- dataset:\n    id: openai/gsm8k\n    task_id: gsm8k\n  value: 48.75\n  date: \"2026-11-26\"\n"));
  EXPECT_THAT(text, HasSubstr("notes: \"gsm8k, exact_match (none), 5 shots\""));
  Json cut = score_row("gsm8k", "exact_match", 0.5);
  cut["asked"] = 100;
  EXPECT_THAT(hub_results(scores_of(cut)), IsEmpty()) << "asked with --limit";
  EXPECT_THAT(hub_results(scores_of(score_row("arc_easy", "acc", 0.5))), IsEmpty());
}

}  // namespace
}  // namespace llmq::testing
