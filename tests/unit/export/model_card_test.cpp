// The card and the report say what was measured, and only loaders that fit.
#include "export/report/model_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/yaml.h"
#include "export/formats/packed_formats.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunFacts facts() {
  RunFacts run;
  run.version = "0.1.0";
  run.command = "llmq quantize --recipe r.yaml";
  run.model = "Qwen/Qwen3-32B";
  run.method = "awq";
  run.scheme = "w4a16_g128_asym";
  run.format = "compressed-tensors";
  run.calibration = Json::object({{"samples", 128}, {"sha256", "abc"}});
  run.bits_per_weight = 4.15625;
  run.card.base_model = "Qwen/Qwen3-32B";
  run.card.licenses = {"apache-2.0"};
  return run;
}

CardFacts measured() {
  CardFacts card;
  card.title = "qwen3-32b-awq";
  card.protocol = "hf-2048";
  card.text = "WikiText-2 test";
  card.measured = {{"original", 65'000, 16, 7.6, 0.05, {}, {}},
                   {"this model", 18'000, 4.156, 7.75, 0.06, 0.031, 0.951}};
  return card;
}

const std::vector<LoaderVerdict> kLoaders = {
    {"vLLM 0.33 (INT8 kernels)", false, "q_proj has group size 48", "vllm serve out", ""},
    {"Transformers 5.23", true, "", "python -c load", "q_proj is padded, which is slower"}};

TEST(ModelCard, HasTheMeasuredTableAndTheFittingLoaders) {
  const std::string card = make_model_card(facts(), measured(), kLoaders);
  EXPECT_THAT(card, HasSubstr("base_model: \"Qwen/Qwen3-32B\"\nbase_model_relation: quantized\n"));
  EXPECT_THAT(card, HasSubstr("license: \"apache-2.0\""));
  EXPECT_THAT(card, HasSubstr("- \"w4a16\"\n"));
  EXPECT_THAT(card, HasSubstr("| this model | 18000 | 4.156 | 7.7500 ± 0.0600 | 0.0310 | 95.10 % |"));
  EXPECT_THAT(card, HasSubstr("python -c load\n```\n\nq_proj is padded, which is slower.\n"));
  EXPECT_THAT(card, HasSubstr("vLLM 0.33 (INT8 kernels): q_proj has group size 48"));
  EXPECT_THAT(card, Not(HasSubstr("vllm serve")));
}

// What the hub's documentation of model cards lists, as its YAML reader takes it.
TEST(ModelCard, HasWhatTheHubReads) {
  RunFacts run = facts();
  run.card.licenses = {"other"};
  run.card.license_name = "my-own";
  run.card.license_link = "https://example.org/licence";
  run.card.datasets = {"allenai/c4"};
  run.card.quantized_by = "A \"group\": of people";
  const std::string card = make_model_card(run, measured(), kLoaders);
  const std::string matter = card.substr(0, card.find("\n---\n", 4) + 1).substr(4);
  const Yaml yaml = Yaml::parse(matter, "README.md");
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, const char*>>{{"base_model", "Qwen/Qwen3-32B"},
                                                        {"base_model_relation", "quantized"},
                                                        {"license", "other"},
                                                        {"license_name", "my-own"},
                                                        {"license_link", "https://example.org/licence"},
                                                        {"quantized_by", "A \"group\": of people"}}) {
    ASSERT_NE(yaml.find(key), nullptr) << key;
    EXPECT_EQ(yaml.find(key)->as_string(), value);
  }
  ASSERT_NE(yaml.find("datasets"), nullptr);
  EXPECT_EQ(yaml.find("datasets")->items().at(0).as_string(), "allenai/c4");
  run.card.licenses = {"mit", "apache-2.0"};
  EXPECT_THAT(make_model_card(run, measured(), kLoaders),
              HasSubstr("license:\n- \"mit\"\n- \"apache-2.0\"\n"));
}

TEST(ModelCard, ClaimsNothingThatWasNotMeasured) {
  CardFacts card;
  card.title = "x";
  RunFacts run = facts();
  run.card = {};
  const std::string text = make_model_card(run, card, kLoaders);
  for (const char* unsaid : {"erplexity", "base_model", "license", "datasets", "quantized_by"})
    EXPECT_THAT(text, Not(HasSubstr(unsaid)));
}

TEST(Report, KeepsItsOwnKeysAndTheRuns) {
  const Json run = Json::object({{"modules", Json::array()}, {"seconds", 3}, {"schema", "not this one"}});
  const Json report = make_report(facts(), kLoaders, run);
  EXPECT_EQ(report.at("schema").as_string(), "llmq.report/1");
  EXPECT_EQ(report.at("seconds").as_integer(), 3);
  EXPECT_EQ(report.at("loaders").items().size(), 2u);
  EXPECT_EQ(report.at("loaders").items()[0].find("command"), nullptr);
  EXPECT_EQ(report.at("loaders").items()[0].find("note"), nullptr);
  EXPECT_EQ(report.at("loaders").items()[1].at("note").as_string(), "q_proj is padded, which is slower");
}

TEST(Report, BitsPerWeightCountsCodesScalesAndZeros) {
  PlannedModule module{"m", {}, 64, 256};
  module.scheme.bits = 4;
  module.scheme.group_size = 64;
  module.scheme.symmetric = true;
  EXPECT_EQ(stored_bits_per_weight("compressed-tensors", {&module, 1}), 4 + 16.0 / 64);
  module.scheme.symmetric = false;
  EXPECT_EQ(stored_bits_per_weight("compressed-tensors", {&module, 1}), 4 + 20.0 / 64);
  EXPECT_EQ(stored_bits_per_weight("awq", {&module, 1}), 4 + 20.0 / 64);
}

}  // namespace
}  // namespace llmq::testing
