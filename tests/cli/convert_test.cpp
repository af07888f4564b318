// llmq convert as a job: its manifest, its signature, made again, done already, and stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

Outcome converted(const std::string& from, const std::string& to, const Words& more = {}) {
  Words words = {"convert", from, to, "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return run_llmq(words);
}

TEST(Convert, EveryOutputIsVerifiedAndMadeAgain) {
  const Scratch scratch;
  ASSERT_EQ(run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output", scratch / "ct",
                      "--set", "scheme=w4a16_g32_asym"})
                .exit_code,
            0);
  const std::vector<std::pair<std::string, Words>> jobs = {
      {"dense", {"--to", "safetensors", "--dtype", "f32"}},
      {"awq", {"--to", "awq"}},
      {"q4_k_m.gguf", {"--to", "gguf", "--dtype", "q4_k_m"}}};
  for (const auto& [name, more] : jobs) {
    SCOPED_TRACE(name);
    const std::string from = name == "q4_k_m.gguf" ? tinystories() : scratch / "ct", output = scratch / name;
    const Outcome made = converted(from, output, more);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(made.json().at("status").as_string(), "done");
    const Outcome again = run_llmq({"verify", output, "--rebuild", "--json", "--threads", "1"});
    ASSERT_EQ(again.exit_code, 0) << again.out << again.err;
    EXPECT_TRUE(again.json().at("rebuild").at("ok").as_bool());
    EXPECT_GT(again.json().at("rebuild").at("compared").as_integer(), name == "q4_k_m.gguf" ? 0 : 3);

    const Outcome second = converted(from, output, more);
    EXPECT_EQ(second.exit_code, 0) << second.err;
    EXPECT_EQ(second.json().at("status").as_string(), "unchanged");
    EXPECT_EQ(second.json().at("digest"), made.json().at("digest"));
    EXPECT_EQ(converted(from, output, {"--to", "safetensors", "--dtype", "bf16"}).exit_code, 2)
        << "another job does not take its place unasked";
  }
  EXPECT_EQ(names_in(scratch.path()), (Words{"awq", "ct", "dense", "q4_k_m.gguf", "q4_k_m.gguf.manifest.json",
                                             "q4_k_m.gguf.report.json"}));
}

TEST(Convert, ARebuildNamesTheTensorThatWasNeverConvertedSo) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch), output = scratch / "m.gguf";
  ASSERT_EQ(converted(model, output, {"--to", "gguf", "--dtype", "q8_0"}).exit_code, 0);
  std::string bytes = read_file(output);
  bytes[bytes.size() - 40] = static_cast<char>(bytes[bytes.size() - 40] ^ 1);
  write_file(output, bytes);
  EXPECT_EQ(run_llmq({"verify", output}).exit_code, 1);
  // A manifest that fits: only the rebuild sees it.
  const Json found = run_llmq({"verify", output, "--json"}).json().at("mismatches").items()[0];
  std::string manifest = read_file(output + ".manifest.json");
  const std::string expected = found.at("expected").as_string();
  manifest.replace(manifest.find(expected), expected.size(), found.at("found").as_string());
  write_file(output + ".manifest.json", manifest);
  ASSERT_EQ(run_llmq({"verify", output}).exit_code, 0);
  const Outcome outcome = run_llmq({"verify", output, "--rebuild", "--json"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_EQ(outcome.json().at("rebuild").at("outputs").items().size(), 1u);
  EXPECT_FALSE(outcome.json().at("rebuild").at("first_tensor").is_null());
  // Of a model that is not the one that was read nothing is made.
  write_file(model + "/config.json", read_file(model + "/config.json") + "\n");
  const Outcome changed = run_llmq({"verify", output, "--rebuild"});
  EXPECT_EQ(changed.exit_code, 2);
  EXPECT_THAT(changed.out, HasSubstr("input differs: model/config.json"));
  EXPECT_EQ(names_in(scratch.path()),
            (Words{"m.gguf", "m.gguf.manifest.json", "m.gguf.report.json", "model"}));
}

// A directory whose manifest speaks of a file would have nothing compared, and be found equal.
TEST(Convert, AManifestOfTheOtherFormIsRefused) {
  const Scratch scratch;
  ASSERT_EQ(converted(tinystories(), scratch / "d", {"--dtype", "f32"}).exit_code, 0);
  std::string manifest = read_file(scratch / "d/manifest.json");
  const std::string said = "\"to\": \"safetensors\"";
  ASSERT_NE(manifest.find(said), std::string::npos);
  manifest.replace(manifest.find(said), said.size(), "\"to\": \"gguf\"");
  write_file(scratch / "d/manifest.json", manifest);
  const Outcome outcome = run_llmq({"verify", scratch / "d", "--rebuild"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("manifest.json"));
}

}  // namespace
}  // namespace llmq::testing
