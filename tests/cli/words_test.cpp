// Help, version, completion, manual, usage mistakes: the words of the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

const char* const kCommands[] = {"quantize", "eval-ppl", "generate", "bench",      "inspect",
                                 "diff",     "convert",  "estimate", "verify",     "sign",
                                 "pack",     "publish",  "tokenize", "completion", "man",
                                 "serve",    "merge",    "report",   "deploy"};

TEST(Words, HelpNamesEveryCommandAndLeavesWithZero) {
  const Outcome help = run_llmq({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : kCommands) EXPECT_THAT(help.out, HasSubstr(command));
  EXPECT_EQ(help.err, "");
}

TEST(Words, EveryCommandHasHelp) {
  for (const char* command : kCommands) {
    const Outcome help = run_llmq({command, "--help"});
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Usage: llmq " + std::string(command)));
  }
}

TEST(Words, NoCommandPrintsHelpAndLeavesWithTwo) { EXPECT_EQ(run_llmq({}).exit_code, 2); }

TEST(Words, VersionSaysWhatItWasBuiltFrom) {
  EXPECT_THAT(run_llmq({"--version"}).out, HasSubstr("llmq 0."));
  const Json json = run_llmq({"--version", "--json"}).json();
  EXPECT_EQ(json.at("schema").as_string(), "llmq.version/1");
  for (const char* key : {"version", "commit", "compiler", "cpu_levels", "cuda", "libraries"})
    EXPECT_NE(json.find(key), nullptr) << key;
}

TEST(Words, UnknownFlagIsOneSentenceAndExitTwo) {
  const Outcome outcome = run_llmq({"eval-ppl", "model", "--contxt", "5"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--contxt"));
  EXPECT_EQ(outcome.out, "");
}

TEST(Words, UsageMistakeInJsonModeIsAJsonError) {
  const Outcome outcome = run_llmq({"eval-ppl", "--json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.json().at("schema").as_string(), "llmq.error/1");
  for (const char* key : {"kind", "message", "file", "where", "hint"})
    EXPECT_NE(outcome.json().find(key), nullptr) << key;
}

// Lines of stderr as JSON, all of them.
std::vector<Json> logged(const Outcome& outcome) {
  std::vector<Json> lines;
  std::istringstream text(outcome.err);
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line, "stderr"));
  return lines;
}

TEST(Words, TheLogIsJsonWhereItIsAsked) {
  const Scratch scratch;
  const Outcome job = run_llmq({"quantize", "--model", tinystories(), "--output", scratch / "out", "--method",
                                "rtn", "--log-format", "json"});
  EXPECT_EQ(job.exit_code, 0) << job.err;
  bool progress = false;
  for (const Json& line : logged(job)) {
    for (const char* key : {"time", "level", "message"}) EXPECT_NE(line.find(key), nullptr) << line.dump();
    progress |= line.at("message").as_string().find("done in") != std::string::npos;
  }
  EXPECT_TRUE(progress) << job.err;
  for (const Words& words : {Words{"--log-format=json", "eval-ppl", "nowhere"},
                             Words{"eval-ppl", "nowhere", "--contxt", "5", "--log-format", "json"},
                             Words{"--log-format", "json", "fly"}}) {
    const Outcome failed = run_llmq(words);
    EXPECT_EQ(failed.exit_code, 2);
    EXPECT_EQ(failed.out, "");
    const std::vector<Json> lines = logged(failed);
    ASSERT_FALSE(lines.empty());
    EXPECT_EQ(lines.back().at("level"), Json("error"));
    for (const char* key : {"message", "kind", "file", "where", "hint"})
      EXPECT_NE(lines.back().find(key), nullptr) << lines.back().dump();
  }
  const Outcome both = run_llmq({"eval-ppl", "nowhere", "--log-format", "json", "--json"});
  EXPECT_EQ(both.json().at("schema").as_string(), "llmq.error/1") << "an error is a document on stdout there";
  EXPECT_EQ(run_llmq({"eval-ppl", "nowhere", "--log-format", "yaml"}).exit_code, 2);
}

TEST(Words, CompletionKnowsEveryCommandAndItsFlags) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome script = run_llmq({"completion", shell});
    EXPECT_EQ(script.exit_code, 0);
    for (const char* command : kCommands) EXPECT_THAT(script.out, HasSubstr(command)) << shell;
    EXPECT_THAT(script.out, HasSubstr("max-windows")) << shell;
  }
  EXPECT_EQ(run_llmq({"completion", "tcsh"}).exit_code, 2);
}

TEST(Words, BashAcceptsItsCompletionScript) {
  const Scratch scratch;
  write_file(scratch / "llmq.bash", run_llmq({"completion", "bash"}).out);
  const std::string check =
      "bash -c 'source " + (scratch / "llmq.bash") +
      "; COMP_WORDS=(llmq eval-ppl --max-w); COMP_CWORD=2; _llmq; [ \"${COMPREPLY[0]}\" = --max-windows ]'";
  EXPECT_EQ(std::system(check.c_str()), 0);
}

TEST(Words, ManualPageHoldsEveryCommand) {
  const Outcome page = run_llmq({"man"});
  EXPECT_THAT(page.out, HasSubstr(".TH LLMQ 1"));
  for (const char* command : kCommands) EXPECT_THAT(page.out, HasSubstr(".SS llmq " + std::string(command)));
}

TEST(Words, AbsentDeviceIsRefusedPlainly) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has an NVIDIA device";
  const Outcome outcome = run_llmq({"eval-ppl", tinystories(), "--device", "cuda"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--device: device cuda:0 is asked for, and this "));
  EXPECT_THAT(outcome.err, HasSubstr("use --device cpu"));
}

}  // namespace
}  // namespace llmq::testing
