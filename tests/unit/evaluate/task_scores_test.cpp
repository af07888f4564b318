// lm-evaluation-harness's own results (tests/fixtures/lm_eval, written by 0.4.13), and what is refused.
#include "evaluate/task_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/io.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

std::string results_text(const std::string& name) {
  return read_text(system_io(), Path(LLMQ_SOURCE_DIR) / "tests/fixtures/lm_eval" / (name + ".json"));
}

TaskScores stored_scores(const std::string& name) { return parse_task_scores(results_text(name), name); }

// What parse_task_scores() says of the results with one piece of text replaced.
std::string refusal_with(const std::string& piece, const std::string& by) {
  std::string text = results_text("quantized");
  const std::size_t at = text.find(piece);
  if (at == std::string::npos) return "no such text: " + piece;
  text.replace(at, piece.size(), by);
  try {
    parse_task_scores(text, "r.json");
  } catch (const Error& error) {
    return error.detail().file + ": " + error.detail().where + ": " + error.detail().message;
  }
  return "taken";
}

TEST(TaskScores, AreReadFromWhatLmEvalWrites) {
  const TaskScores scores = stored_scores("quantized");
  EXPECT_EQ(scores.model, "tiny-rtn");
  EXPECT_EQ(scores.harness, "0.4.13");
  EXPECT_EQ(scores.date, "2026-11-26");
  ASSERT_EQ(scores.tasks.size(), 3u);
  const TaskScore& choice = scores.tasks[1];
  EXPECT_EQ(choice.task, "llmq_choice");
  EXPECT_EQ(choice.version, "1.0");
  EXPECT_EQ(choice.shots, 0);
  EXPECT_EQ(choice.documents, 200);
  EXPECT_EQ(choice.asked, 100);
  ASSERT_EQ(choice.metrics.size(), 2u);
  EXPECT_EQ(choice.metrics[1].name, "acc_norm");
  EXPECT_EQ(choice.metrics[1].filter, "none");
  EXPECT_DOUBLE_EQ(choice.metrics[1].value, 0.23);
  EXPECT_NEAR(choice.metrics[1].standard_error.value(), 0.0423, 1e-4);
  EXPECT_EQ(choice.metrics[1].higher_is_better, true);
  EXPECT_EQ(scores.tasks[0].metrics[0].standard_error, std::nullopt) << "N/A";
}

TEST(TaskScores, DropsAreOfSharesOfRightAnswers) {
  const auto drops =
      accuracy_drops(stored_scores("quantized"), stored_scores("original"), "quantized", "original");
  ASSERT_EQ(drops.size(), 3u) << "acc and acc_norm of one task, acc of the other, and no perplexity";
  EXPECT_EQ(drops[1].metric, "acc_norm");
  EXPECT_NEAR(drops[1].drop, 0.27 - 0.23, 1e-12) << "lower than the original is a drop above 0";
}

TEST(TaskScores, OtherQuestionsAreNotCompared) {
  const TaskScores scores = stored_scores("quantized");
  const auto refused = [&](const std::function<void(TaskScores&)>& change) {
    TaskScores baseline = stored_scores("original");
    change(baseline);
    try {
      accuracy_drops(scores, baseline, "quantized", "original");
    } catch (const Error& error) {
      return error.detail().where + ": " + error.detail().message;
    }
    return std::string("taken");
  };
  EXPECT_THAT(refused([](TaskScores& b) { b.tasks[1].asked = 40; }),
              HasSubstr("llmq_choice: was asked of 40"));
  EXPECT_THAT(refused([](TaskScores& b) { b.tasks[1].shots = 5; }), HasSubstr("with 5 shots"));
  EXPECT_THAT(refused([](TaskScores& b) { b.tasks[1].version = "2"; }), HasSubstr("version 2"));
  EXPECT_THAT(refused([](TaskScores& b) { b.tasks.pop_back(); }), HasSubstr("llmq_cloze: has no acc"));
  TaskScores none = scores;
  none.tasks.resize(1);
  EXPECT_THROW(accuracy_drops(none, none, "a", "b"), Error) << "a gate that holds nothing";
}

TEST(TaskScores, AFileOfAnotherFormIsRefusedByItsKey) {
  EXPECT_EQ(refusal_with("tiny-rtn", "tiny-rtn"), "taken");
  EXPECT_THAT(refusal_with("\"results\"", "\"outcomes\""), HasSubstr("r.json: results: has no results"));
  EXPECT_THAT(refusal_with("\"model_name\"", "\"name_of_model\""), HasSubstr("model_name: a name has"));
  EXPECT_THAT(refusal_with("\"acc,none\": 0.25", "\"acc,none\": 25"), HasSubstr("25 is no share"));
  EXPECT_THAT(refusal_with("\"llmq_choice\": {", "\"llmq\\u0007choice\": {"),
              HasSubstr("no control character"));
  EXPECT_THAT(refusal_with("\"versions\": {", "\"versions\": 3, \"v\": {"),
              HasSubstr("versions: expected an object, found an integer"));
  EXPECT_THROW(parse_task_scores("{}", "r.json"), Error);
  EXPECT_THROW(parse_task_scores("[]", "r.json"), Error);
  EXPECT_THROW(parse_task_scores(R"({"model_name": "m", "results": {"t": {"alias": "t"}}})", "r.json"),
               Error);
}

}  // namespace
}  // namespace llmq
