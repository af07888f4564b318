// Manifests hold what a checkpoint's headers say, every text of them quoted; what a target or an engine
// cannot do is one sentence and exit 2. Other programs read them in tests/interop/full/deploy.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Outcome deploy(const std::string& model, const Words& more) {
  Words words = {"deploy", model};
  words.insert(words.end(), more.begin(), more.end());
  return run_llmq(words);
}

TEST(Deploy, KubernetesGetsTheMemoryThatEstimateSays) {
  const Json estimate = run_llmq({"estimate", tinystories(), "--machine", "l4", "--scheme", "original",
                                  "--context", "512", "--batch", "8", "--kv-cache-dtype", "int8", "--json"})
                            .json();
  const Json& original = estimate.at("schemes").items().front();
  const Json document =
      deploy(tinystories(), {"--to", "kubernetes", "--replicas", "3", "--kv-cache-dtype", "int8", "--json"})
          .json();
  EXPECT_EQ(document.at("schema").as_string(), "llmq.deploy/1");
  EXPECT_EQ(document.at("context").as_integer(), 512);
  EXPECT_EQ(document.at("weight_bytes").as_integer(), original.at("weight_bytes").as_integer());
  EXPECT_EQ(document.at("kv_bytes").as_integer(),
            original.at("cells").items().front().at("kv_bytes").as_integer());
  const std::string manifest = document.at("manifest").as_string();
  EXPECT_THAT(manifest, HasSubstr("replicas: 3\n"));
  EXPECT_THAT(manifest, HasSubstr("- \"int8_per_token_head\"\n"));
  EXPECT_THAT(manifest, HasSubstr("nvidia.com/gpu: \"1\"\n"));
  EXPECT_THAT(manifest,
              HasSubstr("memory: \"" + std::to_string(document.at("memory_bytes").as_integer()) + "\"\n"));
}

// Either engine has both types of FP8, and the room of the one that was asked for.
TEST(Deploy, BothTypesOfFp8AreServed) {
  for (const char* const engine : {"vllm", "llmq"})
    for (const char* const type : {"fp8", "fp8_e5m2"}) {
      const std::string manifest =
          deploy(tinystories(), {"--to", "compose", "--engine", engine, "--kv-cache-dtype", type}).out;
      EXPECT_THAT(manifest, HasSubstr("- \"" + std::string(type) + "\"\n")) << engine;
      EXPECT_THAT(manifest, HasSubstr("positions in " + std::string(type) + ",")) << engine;
    }
}

TEST(Deploy, ADigestStandsInTheManifest) {
  const Scratch scratch;
  const std::string model = rounded_model(scratch, "rounded", {"scheme=w8a16_g64_sym"});
  const std::string digest =
      Json::parse(read_file(model + "/report.json"), "report").at("digest").as_string();
  EXPECT_THAT(deploy(model, {"--to", "compose", "--engine", "llmq"}).out,
              HasSubstr("llmq.digest: \"" + digest + "\"\n"));
}

TEST(Deploy, NamesOfDirectoriesStayTexts) {
  const Scratch scratch;
  const std::string odd = "a\"b: $(X) ${Y}\n- z";
  const std::string model = copy_of_model(scratch, odd);
  EXPECT_THAT(deploy(model, {"--to", "kubernetes"}).out,
              HasSubstr("- \"/models/a\\\"b: $$(X) ${Y}\\x0a- z\"\n"));
  const std::string compose = deploy(model, {"--to", "compose"}).out;
  EXPECT_THAT(compose, HasSubstr("- \"/models/a\\\"b: $$(X) $${Y}\\x0a- z\"\n"));
  EXPECT_THAT(compose, Not(HasSubstr("\n- z")));
}

TEST(Deploy, WhatCannotBeIsOneSentence) {
  const Scratch scratch;
  const std::string three_bits = rounded_model(scratch, "gptq", {"scheme=w3a16_g64_sym", "format=gptq"}),
                    scales = rounded_model(
                        scratch, "scales",
                        {"scheme=w8a16_g64_sym", "kv_cache.dtype=fp8", "calibration.samples=2"}),
                    modelopt = rounded_model(scratch, "modelopt", {"scheme=fp8", "format=modelopt"});
  const struct {
    std::string model;
    Words words;
    const char* says;
  } cases[] = {
      {tinystories(), {"--to", "compose", "--disaggregate", "2:1"}, "has no router"},
      {tinystories(), {"--to", "kserve", "--disaggregate", "2:0"}, "is not two numbers of servers"},
      {tinystories(), {"--to", "kserve", "--engine", "llmq", "--disaggregate", "2:1"}, "does not hand"},
      {tinystories(), {"--to", "vllm-stack", "--engine", "llmq"}, "starts `vllm serve`"},
      {tinystories(), {"--to", "kserve", "--kv-cache-dtype", "q8"}, "of type 'q8'"},
      {scales, {"--to", "compose", "--kv-cache-dtype", "fp8_e5m2"}, "vLLM keeps no E5M2 beside"},
      {modelopt, {"--to", "compose", "--kv-cache-dtype", "fp8_e5m2"}, "quant_method fp8 or modelopt"},
      {tinystories(), {"--to", "compose", "--draft", tinystories()}, "are both called"},
      {tinystories(), {"--to", "nomad"}, "--to"},
      {three_bits, {"--to", "compose"}, "does not load in vLLM 0.33"},
  };
  for (const auto& one : cases) {
    const Outcome refused = deploy(one.model, one.words);
    EXPECT_EQ(refused.exit_code, 2) << one.says;
    EXPECT_THAT(refused.err, HasSubstr(one.says));
    EXPECT_EQ(refused.out, "");
  }
  EXPECT_EQ(deploy(three_bits, {"--to", "compose", "--engine", "llmq"}).exit_code, 0);
}

}  // namespace
}  // namespace llmq::testing
