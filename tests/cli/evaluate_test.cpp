// eval-ppl and generate on the small trained model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Outcome eval(std::vector<std::string> more, const std::vector<std::string>& environment = {}) {
  more.insert(more.begin(), {"eval-ppl"});
  more.insert(more.end(), {"--max-windows", "2", "--json"});
  return run_llmq(more, environment);
}

TEST(EvalPpl, HasEveryFieldOfTheContract) {
  const Outcome outcome = eval({tinystories()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json.at("schema").as_string(), "llmq.eval-ppl/1");
  for (const char* key :
       {"model", "device", "compute", "protocol", "text", "windows", "scored_tokens", "ppl", "ppl_stderr",
        "mean_nll", "seconds", "tokens_per_second", "peak_rss_bytes", "against", "gates"})
    EXPECT_NE(json.find(key), nullptr) << key;
  EXPECT_EQ(json.at("protocol").as_string(), "hf-512") << "the model has 512 positions";
  EXPECT_EQ(json.at("scored_tokens").as_integer(), 2 * 511);
  EXPECT_EQ(json.at("compute").as_string(), "float32");
  EXPECT_NEAR(json.at("ppl").as_double(), std::exp(json.at("mean_nll").as_double()),
              1e-9 * json.at("ppl").as_double());
}

TEST(EvalPpl, SameDigitsAtAnyThreadCount) {
  const std::string one = eval({tinystories(), "--threads", "1"}).json().at("mean_nll").dump();
  for (const char* threads : {"2", "3", "8"})
    EXPECT_EQ(eval({tinystories(), "--threads", threads}).json().at("mean_nll").dump(), one) << threads;
}

TEST(EvalPpl, AModelAgainstItsRenamedCopyIsExactlyEqual) {
  const Scratch scratch;
  const std::string copy = copy_of_model(scratch, "another-name");
  for (const char* compute : {"float32", "bfloat16"}) {
    const Json against = eval({tinystories(), "--against", copy, "--compute", compute}).json().at("against");
    EXPECT_EQ(against.at("kl_mean").as_double(), 0.0);
    EXPECT_EQ(against.at("kl_max").as_double(), 0.0);
    EXPECT_EQ(against.at("top1_agreement").as_double(), 1.0);
    EXPECT_EQ(against.at("delta_ppl").as_double(), 0.0);
  }
}

TEST(EvalPpl, GatesDecideTheExitCode) {
  const double ppl = eval({tinystories()}).json().at("ppl").as_double();
  EXPECT_EQ(eval({tinystories(), "--max-ppl", std::to_string(ppl + 1)}).exit_code, 0);
  const Outcome missed = eval({tinystories(), "--max-ppl", std::to_string(ppl - 1)});
  EXPECT_EQ(missed.exit_code, 3);
  EXPECT_FALSE(missed.json().at("gates").items()[0].at("met").as_bool());
  EXPECT_EQ(eval({tinystories(), "--max-kl", "1"}).exit_code, 2) << "a divergence needs --against";
}

TEST(EvalPpl, SeveralModelsAreMeasuredAtOnceAsEachAlone) {
  const Scratch scratch;
  const std::string rounded = rounded_model(scratch, "rounded", {"scheme=w4a16_g32_asym"});
  const std::string model = tinystories();
  const Outcome together = eval({rounded, model, "--against", model});
  ASSERT_EQ(together.exit_code, 0) << together.err;
  const Json json = together.json();
  EXPECT_EQ(json.at("schema").as_string(), "llmq.eval-ppl-models/1");
  const auto& models = json.at("models").items();
  ASSERT_EQ(models.size(), 2u);
  const Json alone = eval({rounded, "--against", model}).json();
  for (const char* key : {"schema", "model", "ppl", "ppl_stderr", "mean_nll", "scored_tokens", "against"})
    EXPECT_EQ(models[0].at(key).dump(), alone.at(key).dump()) << key;
  EXPECT_EQ(models[1].at("model").as_string(), model);
  EXPECT_EQ(models[1].at("against").at("kl_max").as_double(), 0.0);
  EXPECT_EQ(models[1].at("ppl_stderr").dump(), models[0].at("against").at("ppl_stderr").dump());
  const std::string between = std::to_string(models[0].at("against").at("kl_mean").as_double() / 2);
  EXPECT_EQ(eval({model, rounded, "--against", model, "--max-kl", between}).exit_code, 3);
}

TEST(EvalPpl, LlamaCppProtocolScoresTheSecondHalf) {
  const Json json = eval({tinystories(), "--protocol", "llama.cpp"}).json();
  EXPECT_EQ(json.at("protocol").as_string(), "llama.cpp-512");
  EXPECT_EQ(json.at("scored_tokens").as_integer(), 2 * 255);
}

TEST(EvalPpl, StrideScoresEachTokenOnce) {
  const Json json = eval({tinystories(), "--context", "256", "--stride", "128"}).json();
  EXPECT_EQ(json.at("protocol").as_string(), "hf-256-stride-128");
  EXPECT_EQ(json.at("scored_tokens").as_integer(), 255 + 128);
}

TEST(EvalPpl, LevelsAgreeClosely) {
  const double best = eval({tinystories()}).json().at("mean_nll").as_double();
  const double scalar = eval({tinystories()}, {"LLMQ_CPU_ISA=scalar"}).json().at("mean_nll").as_double();
  EXPECT_NEAR(scalar, best, 1e-5 * best);
  EXPECT_EQ(eval({tinystories()}, {"LLMQ_CPU_ISA=mmx"}).exit_code, 2);
}

// What is promised of int8, and what docs/guides/serving.md says of the other types; all change something,
// and the bytes are those of heads of 16.
TEST(EvalPpl, AKvCacheOfFewerBitsCostsLittle) {
  const Json plain = eval({tinystories()}).json();
  const double before = plain.at("ppl").as_double();
  // keys and values, 16 numbers of 4 bytes
  const std::int64_t layers_and_heads = plain.at("kv_cache").at("bytes_per_token").as_integer() / 128;
  EXPECT_EQ(eval({tinystories(), "--kv-cache-dtype", "f32"}).json().at("ppl").as_double(), before);
  for (const auto& [type, share, bytes] :
       {std::tuple{"bf16", 0.001, 64}, std::tuple{"fp16", 0.001, 64}, std::tuple{"int8", 0.001, 36},
        std::tuple{"int4", 0.025, 22}, std::tuple{"fp8", 0.01, 32}, std::tuple{"fp8_e5m2", 0.02, 32}}) {
    const Json json = eval({tinystories(), "--kv-cache-dtype", type}).json();
    const double ppl = json.at("ppl").as_double();
    EXPECT_NE(ppl, before) << type;
    EXPECT_LE(ppl, before * (1 + share)) << type;
    EXPECT_EQ(json.at("kv_cache").at("dtype").as_string(), type);
    EXPECT_EQ(json.at("kv_cache").at("bytes_per_token").as_integer(), bytes * layers_and_heads) << type;
  }
}

// Scales that calibration wrote beside the weights are those of FP8 pages of E4M3, and of no others.
TEST(EvalPpl, TheFilesScalesOfACacheAreUsed) {
  const Scratch scratch;
  const auto quantized = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"quantize",
                                          "--method",
                                          "awq",
                                          "--model",
                                          tinystories(),
                                          "--output",
                                          scratch / name,
                                          "--set",
                                          "scheme=w8a16_g64_sym",
                                          "--set",
                                          "calibration.samples=4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_llmq(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return scratch / name;
  };
  const std::string with = quantized("with", {"--set", "kv_cache.dtype=fp8"}),
                    without = quantized("without", {});
  const auto ppl = [](const std::string& model, const char* type) {
    return eval({model, "--kv-cache-dtype", type}).json().at("ppl").as_double();
  };
  EXPECT_EQ(ppl(with, "auto"), ppl(without, "auto"));
  EXPECT_EQ(ppl(with, "int8"), ppl(without, "int8"));
  EXPECT_EQ(ppl(with, "fp8_e5m2"), ppl(without, "fp8_e5m2"));
  EXPECT_NE(ppl(with, "fp8"), ppl(without, "fp8"));
  EXPECT_NEAR(ppl(with, "fp8"), ppl(with, "auto"), 0.01 * ppl(with, "auto"));
}

TEST(EvalPpl, RefusesWhatItCannotDo) {
  EXPECT_EQ(eval({tinystories(), "--context", "513"}).exit_code, 2);
  EXPECT_EQ(eval({tinystories(), "--context", "0"}).exit_code, 2);
  EXPECT_EQ(eval({tinystories(), "--stride", "-1"}).exit_code, 2);
  EXPECT_EQ(eval({tinystories(), "--protocol", "perplexity.ai"}).exit_code, 2);
  EXPECT_EQ(eval({tinystories(), "--kv-cache-dtype", "int5"}).exit_code, 2);
  EXPECT_EQ(eval({"/nowhere/at/all"}).exit_code, 2);
  const Scratch scratch;
  write_file(scratch / "short.txt", "too short");
  EXPECT_EQ(eval({tinystories(), "--text", scratch / "short.txt"}).exit_code, 2);
  EXPECT_EQ(eval({tinystories(), "--text", scratch / "missing.txt"}).exit_code, 2);
}

TEST(Generate, GreedyTextIsStableAndCounted) {
  const std::vector<std::string> arguments = {"generate",     tinystories(), "--prompt", "Once upon a time",
                                              "--max-tokens", "24",          "--json"};
  const Outcome outcome = run_llmq(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  for (const char* key : {"schema", "text", "prompt_tokens", "completion_tokens", "token_ids",
                          "finish_reason", "ttft_seconds", "tokens_per_second"})
    EXPECT_NE(json.find(key), nullptr) << key;
  EXPECT_EQ(json.at("completion_tokens").as_integer(), 24);
  EXPECT_EQ(json.at("token_ids").items().size(), 24u);
  EXPECT_EQ(json.at("finish_reason").as_string(), "length");
  EXPECT_EQ(run_llmq(arguments).json().at("text"), json.at("text"));
}

TEST(Generate, SameSeedSameText) {
  const auto sample = [](const char* seed) {
    return run_llmq({"generate", tinystories(), "--prompt", "The dog", "--max-tokens", "32", "--temperature",
                     "1", "--seed", seed, "--json"})
        .json()
        .at("text");
  };
  EXPECT_EQ(sample("7"), sample("7"));
  EXPECT_NE(sample("7"), sample("8"));
}

TEST(Generate, ADraftChangesNoTextAndIsCounted) {
  const auto run = [](std::vector<std::string> more) {
    std::vector<std::string> words = {
        "generate",     tinystories(), "--prompt",     "Once upon a time there was a",
        "--max-tokens", "100",         "--ignore-eos", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_llmq(words);
  };
  const Json alone = run({}).json();
  EXPECT_TRUE(alone.at("speculative").is_null());
  for (const std::string& draft : {std::string("ngram"), tinystories() + "/../tinystories-draft"}) {
    const Outcome outcome = run({"--draft", draft, "--num-draft-tokens", "3"});
    const Json json = outcome.json(), counted = json.at("speculative");
    EXPECT_EQ(json.at("token_ids"), alone.at("token_ids"));
    const std::int64_t proposed = counted.at("proposed").as_integer(),
                       accepted = counted.at("accepted").as_integer(),
                       rounds = counted.at("rounds").as_integer();
    EXPECT_EQ(proposed, 3 * rounds);
    EXPECT_GT(accepted, 0);
    EXPECT_LT(accepted, proposed);
    EXPECT_DOUBLE_EQ(counted.at("acceptance_rate").as_double(),
                     static_cast<double>(accepted) / static_cast<double>(proposed));
    EXPECT_DOUBLE_EQ(counted.at("mean_accepted_length").as_double(),
                     1 + static_cast<double>(accepted) / static_cast<double>(rounds));
    EXPECT_NE(outcome.err.find("guesses right"), std::string::npos);
  }
}

TEST(Generate, DraftsThatCannotGuessAreRefused) {
  EXPECT_EQ(run_llmq({"generate", tinystories()}).exit_code, 2) << "a prompt is needed";
  const auto refused = [](std::vector<std::string> more, const char* words) {
    more.insert(more.begin(), {"generate", tinystories(), "--prompt", "x"});
    const Outcome outcome = run_llmq(more);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
  };
  refused({"--num-draft-tokens", "3"}, "nobody makes the guesses");
  refused({"--draft", "ngram", "--num-draft-tokens", "65"}, "not between 1 and 64");
  refused({"--draft", "ngram", "--num-draft-tokens", "0"}, "not between 1 and 64");
  const Scratch scratch;
  const std::string other = copy_of_model(scratch);
  std::string tokenizer = read_file(other + "/tokenizer.json");
  const std::string words = R"("!": 4,
      "\"": 5,)",
                    swapped = R"("!": 5,
      "\"": 4,)";
  const std::size_t at = tokenizer.find(words);
  ASSERT_NE(at, std::string::npos);
  tokenizer.replace(at, words.size(), swapped);
  write_file(other + "/tokenizer.json", tokenizer);
  refused({"--draft", other}, "token 4 is '!' in the model and '\"' in the draft");
}

TEST(Generate, ConstraintsAreKept) {
  const Scratch scratch;
  write_file(scratch / "schema.json", R"({"type": "string", "pattern": "^[a-z]{3,9}$"})");
  const auto run = [](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"generate", tinystories(), "--prompt", "Once upon a time", "--max-tokens", "30"});
    return run_llmq(more);
  };
  EXPECT_THAT(run({"--choice", "No.", "--choice", "Yes, please."}).out, AnyOf("No.\n", "Yes, please.\n"));
  EXPECT_THAT(run({"--regex", "[0-9]{3}-[a-z]{2}"}).out, MatchesRegex("[0-9][0-9][0-9]-[a-z][a-z]\n"));
  EXPECT_THAT(run({"--json-schema", scratch / "schema.json", "--draft", "ngram"}).out,
              MatchesRegex("\"[a-z]+\"\n"));
  const auto refused = [&](const std::vector<std::string>& more, const char* words) {
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  refused({"--json-object"}, "--json-object: no text of this model's vocabulary can satisfy it");
  refused({"--regex", "(a)\\1"}, "--regex: this escape at byte 4 of the expression is not supported");
  refused({"--regex", "a", "--choice", "b"}, "the text is constrained twice");
  write_file(scratch / "schema.json", R"({"type": "string", "contentEncoding": "base64"})");
  refused({"--json-schema", scratch / "schema.json"},
          "--json-schema.contentEncoding: 'contentEncoding' is not supported");
}

TEST(Generate, AChatNeedsATemplate) {
  const Outcome run = run_llmq({"generate", tinystories(), "--chat"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("the model has no chat template"), std::string::npos) << run.err;
}

TEST(Tokenize, AChatIsRenderedAndCounted) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch), chat = scratch / "chat.json";
  write_file(model + "/chat_template.jinja",
             "{% for m in messages %}{{ m.content | trim }}.{% endfor %}{% if add_generation_prompt %} "
             "Then{% endif %}");
  write_file(chat, R"([{"role": "user", "content": " Once "}])");
  EXPECT_EQ(run_llmq({"tokenize", model, "--chat", chat}).out, "Once. Then");
  const Json json = Json::parse(run_llmq({"tokenize", model, "--chat", chat, "--json"}).out, "stdout");
  EXPECT_EQ(json.at("text").as_string(), "Once. Then");
  EXPECT_EQ(json.at("count").as_integer(), static_cast<std::int64_t>(json.at("ids").items().size()));
  write_file(chat, R"({"messages": [{"role": "user", "content": "Once"}], "add_generation_prompt": false})");
  EXPECT_EQ(run_llmq({"tokenize", model, "--chat", chat}).out, "Once.");
  EXPECT_EQ(run_llmq({"tokenize", tinystories(), "--chat", chat}).exit_code, 2);
  EXPECT_EQ(run_llmq({"tokenize", model, "--chat", chat, "--decode"}).exit_code, 2);
  EXPECT_NE(run_llmq({"generate", model, "--chat", "--max-tokens", "3"}, {}, "Once upon a time\n").out, "");
}

}  // namespace
}  // namespace llmq::testing
