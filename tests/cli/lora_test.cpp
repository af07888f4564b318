// Adapters through the program: folded into a model, and run beside one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cli/program.h"
#include "model/model_spec.h"
#include "model/open_checkpoint.h"
#include "support/tiny_adapter.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string adapter_in(const Scratch& scratch, const std::string& name = "adapter", std::uint64_t seed = 1) {
  return write_tiny_adapter(ModelSpec::read(open_checkpoint(system_io(), tinystories())), scratch / name,
                            seed, 0.1f);
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
  write_file(adapter + "/adapter_config.json",
             R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true})");
  EXPECT_THAT(said(adapter), HasSubstr("use_dora"));
  write_file(adapter + "/adapter_model.safetensors", "<html>");
  EXPECT_THAT(said(adapter), HasSubstr("adapter"));
}

// Beside the model and in it: the same answer and, to the roundings of a sum, the same perplexity.
TEST(Lora, RunsAsTheMergedModelDoes) {
  const Scratch scratch;
  const std::string adapter = adapter_in(scratch), merged = scratch / "merged";
  ASSERT_EQ(run_llmq({"merge", tinystories(), "--lora", adapter, merged}).exit_code, 0);
  const auto text = [](const std::string& model, const Words& more) {
    Words words = {"generate",  model,     "--prompt", "Once upon a time", "--max-tokens", "40",
                   "--compute", "float32", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.json().at("text").as_string();
  };
  EXPECT_EQ(text(tinystories(), {"--lora", adapter}), text(merged, {}));
  EXPECT_EQ(text(tinystories(), {"--lora", adapter, "--draft", "ngram"}), text(merged, {}));
  EXPECT_NE(text(tinystories(), {}), text(merged, {}));
  const auto loss = [](const std::string& model, const Words& more) {
    Words words = {"eval-ppl", model, "--context", "128", "--max-windows", "2", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.json().at("mean_nll").as_double();
  };
  const double beside = loss(tinystories(), {"--lora", adapter}), in_it = loss(merged, {});
  // The sums are taken in another order; the adapter itself moves it more than ten times as far.
  EXPECT_NEAR(beside, in_it, 1e-4 * in_it);
  EXPECT_GT(std::abs(loss(tinystories(), {}) - in_it), 1e-3 * in_it);
  EXPECT_EQ(run_llmq({"generate", tinystories(), "--prompt", "a", "--lora", scratch / "nowhere"}).exit_code,
            2);
}

// QLoRA: an adapter that was trained beside NF4 is folded into the numbers that NF4 stands for, and what
// comes of that is quantized anew, as if those numbers had been a dense model.
TEST(Merge, FoldsIntoWhatNf4StandsFor) {
  const Scratch scratch;
  const std::string adapter = adapter_in(scratch), base = scratch / "nf4";
  const auto done = [](const Words& words) {
    const Outcome outcome = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  };
  const auto same_weights = [&](const std::string& a, const std::string& b) {
    return read_file(scratch / (a + "/model.safetensors")) == read_file(scratch / (b + "/model.safetensors"));
  };
  done({"convert", tinystories(), base, "--to", "bitsandbytes", "--double-quant"});
  done({"convert", base, scratch / "dense", "--to", "safetensors"});
  for (const std::string from : {"nf4", "dense"}) {
    done({"merge", scratch / from, "--lora", adapter, scratch / (from + "-merged")});
    done({"quantize", "--method", "awq", "--model", scratch / (from + "-merged"), "--output",
          scratch / (from + "-awq"), "--set", "scheme=w4a16_g64_asym", "--set", "calibration.samples=2",
          "--set", "calibration.sequence_length=64"});
  }
  EXPECT_TRUE(same_weights("nf4-merged", "dense-merged"));
  EXPECT_TRUE(same_weights("nf4-awq", "dense-awq"));
  EXPECT_FALSE(same_weights("nf4-merged", "dense"));
  EXPECT_THAT(read_file(scratch / "nf4-merged/config.json"), Not(HasSubstr("quantization_config")));
}

// QLoRA's way in one recipe, which is a preset, and in two commands.
TEST(Merge, IsOneRecipeWithQuantize) {
  const Scratch scratch;
  const std::string adapter = adapter_in(scratch), base = scratch / "nf4", merged = scratch / "merged";
  ASSERT_EQ(run_llmq({"convert", tinystories(), base, "--to", "bitsandbytes", "--double-quant"}).exit_code,
            0);
  ASSERT_EQ(run_llmq({"merge", base, "--lora", adapter, merged}).exit_code, 0);
  const auto quantize = [&](const std::string& model, const std::string& folded, const std::string& to) {
    return run_llmq({"quantize", "--recipe", std::string(LLMQ_SOURCE_DIR) + "/recipes/qlora-awq.yaml",
                     "--model", model, "--set", "adapter=" + folded, "--output", scratch / to, "--set",
                     "calibration.samples=2", "--set", "calibration.sequence_length=64", "--json"});
  };
  const Outcome one = quantize(base, adapter, "one"), two = quantize(merged, "''", "two");
  ASSERT_EQ(one.exit_code, 0) << one.err;
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(one.json().at("digest"), two.json().at("digest"));
  EXPECT_THAT(read_file(scratch / "one/README.md"), HasSubstr(adapter + ": rank 4, 14 linears"));
  EXPECT_EQ(run_llmq({"verify", scratch / "one", "--rebuild"}).exit_code, 0);
  EXPECT_EQ(quantize(base, adapter, "one").json().at("status").as_string(), "unchanged");
  adapter_in(scratch, "adapter", 2);
  EXPECT_EQ(quantize(base, adapter, "one").exit_code, 2) << "another adapter is another job";
  write_file(adapter + "/adapter_model.safetensors", "<html>");
  const Outcome bad = quantize(base, adapter, "bad");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.out, HasSubstr("adapter_model.safetensors"));
}

// Rounding leaves what a linear reads as it was; AWQ and a rotation do not, and an adapter of the original
// would be applied to something else.
TEST(Lora, WarnsWhereInputsAreOthersThanTheOriginals) {
  const Scratch scratch;
  const std::string adapter = adapter_in(scratch);
  struct Case {
    std::string method, rotation, said;
  };
  for (const Case& one : {Case{"rtn", "none", ""}, Case{"awq", "none", "AWQ changed what linears of"},
                          Case{"rtn", "hadamard", "a rotation changed what linears of"}}) {
    const std::string quantized = scratch / one.method + one.rotation;
    ASSERT_EQ(run_llmq({"quantize", "--method", one.method, "--model", tinystories(), "--output", quantized,
                        "--set", "scheme=w4a16_g64_asym", "--set", "calibration.samples=2", "--set",
                        "calibration.sequence_length=64", "--set", "rotate.value=" + one.rotation})
                  .exit_code,
              0);
    // A change of the container changes nothing of that.
    const std::string converted = quantized + "-gptq";
    ASSERT_EQ(run_llmq({"convert", quantized, converted, "--to", "gptq_v2"}).exit_code, 0);
    for (const std::string& model : {quantized, converted}) {
      const Outcome outcome =
          run_llmq({"generate", model, "--lora", adapter, "--prompt", "Once", "--max-tokens", "2"});
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr("14 linears of rank up to 4"));
      if (one.said.empty())
        EXPECT_THAT(outcome.err, Not(HasSubstr("fits only if")));
      else
        EXPECT_THAT(outcome.err, HasSubstr(one.said));
    }
  }
}

}  // namespace
}  // namespace llmq::testing
