// Adapters through the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"
#include "model/model_spec.h"
#include "support/tiny_adapter.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

std::string adapter_in(const Scratch& scratch, const std::string& name = "adapter", std::uint64_t seed = 1) {
  return write_tiny_adapter(ModelSpec::read(Checkpoint::open(system_io(), tinystories())), scratch / name, seed, 0.1f);
}

TEST(Merge, MakesAModelThatIsVerifiedAndMadeAgain) {
  const Scratch scratch;
  const std::string adapter = adapter_in(scratch), output = scratch / "merged";
  const Words job = {"merge", tinystories(), "--lora", adapter, output, "--json"};
  const Outcome made = run_llmq(job);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(made.json().at("schema").as_string(), "llmq.merge/1");
  EXPECT_EQ(made.json().at("status").as_string(), "done");
  EXPECT_GT(made.json().at("folded").as_integer(), 0);
  EXPECT_EQ(run_llmq(job).json().at("status").as_string(), "unchanged");
  EXPECT_NE(run_llmq({"diff", tinystories(), output}).out, "");
  const Outcome again = run_llmq({"verify", output, "--rebuild", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.out << again.err;
  EXPECT_TRUE(again.json().at("rebuild").at("ok").as_bool());
  // Another adapter in the same place is another input.
  adapter_in(scratch, "adapter", 2);
  EXPECT_EQ(run_llmq(job).exit_code, 2);
  const Outcome changed = run_llmq({"verify", output, "--rebuild"});
  EXPECT_EQ(changed.exit_code, 2);
  EXPECT_THAT(changed.out, HasSubstr("input differs: adapter/adapter_model.safetensors"));
}

TEST(Merge, MistakesAreOneSentenceAndLeaveNothing) {
  const Scratch scratch;
  const auto said = [&](const std::string& adapter) {
    const Outcome outcome = run_llmq({"merge", tinystories(), "--lora", adapter, scratch / "out"});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(run_llmq({"inspect", scratch / "out"}).exit_code, 2) << "nothing is there";
    return outcome.err;
  };
  EXPECT_THAT(said(scratch / "nowhere"), HasSubstr("no such directory"));
  const std::string adapter = adapter_in(scratch);
  write_file(adapter + "/adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true})");
  EXPECT_THAT(said(adapter), HasSubstr("use_dora"));
  write_file(adapter + "/adapter_model.safetensors", "<html>");
  EXPECT_THAT(said(adapter), HasSubstr("adapter"));
}

}  // namespace
}  // namespace llmq::testing
