// What is said on stderr, as text and as lines of JSON.
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <regex>
#include <sstream>

namespace llmq {
namespace {

using ::testing::HasSubstr;

// Lines that `act` writes to stderr, which is no terminal here.
std::vector<std::string> said(LogFormat format, Verbosity verbosity, const std::function<void(Log&)>& act) {
  Log& log = Log::get();
  ::testing::internal::CaptureStderr();
  log.set_format(format);
  log.set_verbosity(verbosity);
  act(log);
  log.set_format(LogFormat::kText);
  log.set_verbosity(Verbosity::kNormal);
  std::istringstream text(::testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

void everything(Log& log) {
  log.detail("d", Json::object({{"request_id", "r"}}));
  log.note("n", Json::object({{"seconds", 0.5}}));
  log.warn("w");
  log.progress_line("block 1/2", false);
  log.error("e", Json::object({{"kind", "usage"}}));
}

std::vector<std::string> without_times(std::vector<std::string> lines) {
  static const std::regex time(R"(^\{"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",)");
  for (std::string& line : lines) line = std::regex_replace(line, time, "{");
  return lines;
}

TEST(Log, TextIsSentences) {
  EXPECT_EQ(said(LogFormat::kText, Verbosity::kVerbose, everything),
            (std::vector<std::string>{"d", "n", "warning: w", "block 1/2", "llmq: e"}));
  EXPECT_EQ(said(LogFormat::kText, Verbosity::kNormal, everything).size(), 4u);
  EXPECT_EQ(said(LogFormat::kText, Verbosity::kQuiet, everything), std::vector<std::string>{"llmq: e"});
}

// A front end gets an object at each milestone, and one at the end, whose share is one.
TEST(Log, ProgressAsObjectsGrowsToOne) {
  const std::vector<std::string> lines = said(LogFormat::kJson, Verbosity::kNormal, [](Log& log) {
    log.set_progress(ProgressForm::kJson);
    {
      Progress progress("quantize", 4);
      progress.advance(1, "block 1/2", "loss 0.5", true);
      progress.advance(1, "block 1/2", "too soon for another line", false);
      progress.advance(2, "block 2/2", "", true);
    }
    log.set_progress(ProgressForm::kLine);
  });
  ASSERT_EQ(lines.size(), 2u);
  const Json first = Json::parse(lines[0], "line"), last = Json::parse(lines[1], "line");
  EXPECT_EQ(first.at("schema").as_string(), "llmq.progress/1");
  EXPECT_EQ(first.at("share").as_double(), 0.25);
  EXPECT_NEAR(first.at("seconds_left").as_double(), 3 * first.at("seconds").as_double(), 1e-9);
  EXPECT_EQ(first.at("figures").as_string(), "loss 0.5");
  EXPECT_EQ(last.at("share").as_double(), 1);
}

TEST(Log, JsonIsAnObjectALine) {
  EXPECT_EQ(
      without_times(said(LogFormat::kJson, Verbosity::kVerbose, everything)),
      (std::vector<std::string>{
          R"({"level":"debug","message":"d","request_id":"r"})",
          R"({"level":"info","message":"n","seconds":0.5})", R"({"level":"warning","message":"w"})",
          R"({"level":"info","message":"block 1/2"})", R"({"level":"error","message":"e","kind":"usage"})"}));
  EXPECT_EQ(said(LogFormat::kJson, Verbosity::kNormal, everything).size(), 4u);
  EXPECT_EQ(said(LogFormat::kJson, Verbosity::kQuiet, everything).size(), 1u);
}

// Names of files and words of clients may hold anything; a line stays one, and JSON.
TEST(Log, NothingBreaksALineOfJson) {
  const std::string hostile = "a\n{\"level\":\"error\"}\r\x1b[2K\xff\"\\";
  const std::vector<std::string> lines = said(LogFormat::kJson, Verbosity::kNormal, [&](Log& log) {
    log.note(hostile, Json::object({{"file", hostile}}));
  });
  ASSERT_EQ(lines.size(), 1u);
  const Json line = Json::parse(lines[0], "line");
  EXPECT_THAT(line.at("message").as_string(), HasSubstr("a\n{\"level\":\"error\"}\r\x1b[2K"));
  EXPECT_EQ(line.at("level"), Json("info"));
  EXPECT_EQ(line.at("file"), line.at("message"));
}

// The same in a text: it stays one line, and moves no cursor; what is no control stays as it is.
TEST(Log, NothingBreaksALineOfText) {
  const std::string hostile = "a\nllmq: all is well\r\x1b[2K\x7f\xc2\x9b\t\xc3\xa4\xc2\xb7";
  const std::string shown = R"(a\x0allmq: all is well\x0d\x1b[2K\x7f\x9b\x09)"
                            "\xc3\xa4\xc2\xb7";
  EXPECT_EQ(said(LogFormat::kText, Verbosity::kNormal,
                 [&](Log& log) {
                   log.note(hostile);
                   log.warn(hostile);
                   log.progress_line(hostile, true);
                   log.error(hostile);
                 }),
            (std::vector<std::string>{shown, "warning: " + shown, shown, "llmq: " + shown}));
}

}  // namespace
}  // namespace llmq
