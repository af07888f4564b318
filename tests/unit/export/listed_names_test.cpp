// Names that configs list fit what each program calls a module: the checkpoint, Transformers, vLLM.
#include "export/formats/listed_names.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/pattern.h"
#include "export/formats/packed_formats.h"
#include "model/model_spec.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;

constexpr const char* kDecoders[] = {"model", "model.language_model", "language_model.model"};

WrapperSpec wrapper_under(const std::string& prefix) {
  WrapperSpec wrapper;
  wrapper.prefix = prefix;
  return wrapper;
}

CarriedSpec tower_in(const std::string& prefix) {
  return {{prefix == "model.language_model" ? "model.visual" : "visual"}};
}

bool any_fits(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& text) { return NamePattern(text).matches(name); });
}

TEST(ListedNames, OfADecoderAloneAreTheCheckpoints) {
  const std::vector<std::string> dense = {"model.layers.0.mlp.gate", "lm_head"};
  EXPECT_EQ(compressed_ignore({{}, dense}), dense);
  EXPECT_EQ(awq_ignore({{}, dense}), dense);
  EXPECT_EQ(compressed_target(dense[0], nullptr), dense[0]);
  EXPECT_EQ(name_expression(dense[0], nullptr), "^model\\.layers\\.0\\.mlp\\.gate$");
}

TEST(ListedNames, OfAWrapperFitEachProgramsName) {
  for (const char* const stored : kDecoders) {
    const WrapperSpec wrapper = wrapper_under(stored);
    const CarriedSpec tower = tower_in(stored);
    const std::vector<std::string> dense = {stored + std::string(".layers.1.mlp.down_proj"), "lm_head"};
    const std::vector<std::string> ignore = compressed_ignore({{}, dense, &wrapper, &tower});
    for (const char* const decoder : kDecoders) {
      const std::string layers = decoder + std::string(".layers.");
      EXPECT_TRUE(any_fits(ignore, layers + "1.mlp.down_proj")) << stored << " as " << decoder;
      for (const char* const packed :
           {"0.mlp.down_proj", "11.mlp.down_proj", "1.mlp.down_proj_a", "1.mlp.up_proj"})
        EXPECT_FALSE(any_fits(ignore, layers + packed)) << stored << " as " << decoder << ": " << packed;
    }
    for (const char* const carried :
         {"visual.blocks.0.attn.qkv", "model.visual.merger.mlp.0", "lm_head", "language_model.lm_head"})
      EXPECT_TRUE(any_fits(ignore, carried)) << stored << ": " << carried;
    EXPECT_FALSE(any_fits(ignore, "visualizer.proj"));
    EXPECT_THAT(awq_ignore({{}, dense, &wrapper, &tower}),
                ElementsAre("visual", "model.visual", "layers.1.mlp.down_proj", "lm_head"));
  }
}

TEST(ListedNames, GptqLeavesAWrappersPartsAlone) {
  const WrapperSpec wrapper = wrapper_under("language_model.model");
  const CarriedSpec tower = tower_in("language_model.model");
  PlannedModule module;
  module.module = "language_model.model.layers.0.mlp.down_proj";
  module.in_features = module.out_features = 64;
  const std::vector<PlannedModule> modules = {module};
  const std::vector<std::string> dense = {"language_model.model.layers.0.self_attn.v_proj"};
  const Json config = packed_format("gptq").config({modules, dense, &wrapper, &tower});
  std::vector<std::string> rules;
  for (const auto& [rule, value] : config.at("dynamic").members()) rules.push_back(rule);
  const std::string layers =
      "-:^(?:model|model\\.language_model|language_model\\.model)\\.layers\\.0\\.self_attn\\.";
  EXPECT_THAT(rules, ElementsAre("-:^(?:model\\.)?visual\\.", layers + "v_proj$", layers + "qkv_proj$"));
  EXPECT_EQ(packed_format("gptq").config({modules, {}}).find("dynamic"), nullptr);
}

TEST(ListedNames, BlocksBehindTheLastAreLeftAlone) {
  const CarriedSpec further{{"model.layers.46"}};
  const std::vector<std::string> dense = {"model.layers.3.mlp.gate"};
  const ListedModules listed{{}, dense, nullptr, &further};
  const std::vector<std::string> ignore = compressed_ignore(listed);
  for (const char* const left :
       {"model.layers.46.mlp.experts.0.up_proj", "layers.46.eh_proj", "model.layers.3.mlp.gate"})
    EXPECT_TRUE(any_fits(ignore, left)) << left;
  for (const char* const packed :
       {"model.layers.4.mlp.up_proj", "model.layers.6.mlp.up_proj", "model.layers.3.mlp.gate_proj"})
    EXPECT_FALSE(any_fits({ignore.front()}, packed)) << packed;
  EXPECT_THAT(awq_ignore(listed), ElementsAre("layers.46", "model.layers.46", dense.front()));
  EXPECT_THAT(modelopt_ignore(listed),
              ElementsAre("layers.46", "model.layers.46", dense.front(), "layers.46.*", "model.layers.46.*"));
}

// Attention has one fate to vLLM, which asks of q_proj, k_proj and v_proj whatever a model stores.
TEST(ListedNames, ValuesThatAreKeysAndKeysThatNobodyReadAreNamed) {
  for (const char* const stored : kDecoders) {
    const WrapperSpec wrapper = wrapper_under(stored);
    const std::string attention = stored + std::string(".layers.5.self_attn."),
                      shared = stored + std::string(".layers.7.self_attn.");
    const CarriedSpec unread{{shared + "k_proj", shared + "v_proj"}};
    const std::vector<std::string> dense = {attention + "q_proj", attention + "k_proj", attention + "o_proj",
                                            shared + "q_proj"};
    const std::vector<std::string> ignore = compressed_ignore({{}, dense, &wrapper, &unread});
    for (const char* const decoder : kDecoders)
      for (const char* const part : {"q_proj", "k_proj", "v_proj"})
        for (const int layer : {5, 7})
          EXPECT_TRUE(any_fits(ignore, fmt::format("{}.layers.{}.self_attn.{}", decoder, layer, part)))
              << stored << " as " << decoder << ", " << layer << ": " << part;
    EXPECT_FALSE(any_fits(ignore, attention + "v_norm"));
  }
  const std::vector<std::string> both = {"model.layers.0.self_attn.k_proj",
                                         "model.layers.0.self_attn.v_proj"};
  EXPECT_EQ(compressed_ignore({{}, both}), both);
}

PlannedModule packed_as(const std::string& name, int bits) {
  PlannedModule module;
  module.module = name;
  module.in_features = module.out_features = 64;
  module.scheme.bits = bits;
  module.scheme.symmetric = true;
  module.scheme.granularity = Granularity::kGroup;
  module.scheme.group_size = 32;
  return module;
}

// So it is of the names that mixed outputs list.
TEST(ListedNames, ValuesThatAreKeysAreTargetsBesideThem) {
  for (const char* const stored : kDecoders) {
    const WrapperSpec wrapper = wrapper_under(stored);
    const std::string attention = stored + std::string(".layers.5.self_attn.");
    const std::vector<PlannedModule> modules = {packed_as(attention + "q_proj", 8),
                                                packed_as(attention + "k_proj", 8),
                                                packed_as(stored + std::string(".layers.5.mlp.up_proj"), 4)};
    const Json config = packed_format("compressed-tensors").config({modules, {}, &wrapper});
    std::vector<std::string> targets;
    for (const Json& target : config.at("config_groups").at("group_0").at("targets").items())
      targets.push_back(target.as_string());
    ASSERT_EQ(targets.size(), 3u);
    for (const char* const decoder : kDecoders)
      for (const char* const part : {"q_proj", "k_proj", "v_proj"})
        EXPECT_TRUE(any_fits(targets, fmt::format("{}.layers.5.self_attn.{}", decoder, part)))
            << stored << " as " << decoder << ": " << part;
  }
  PlannedModule queries = packed_as("model.layers.0.self_attn.q_proj", 4), keys = queries, other = queries;
  keys.module = "model.layers.0.self_attn.k_proj", other.module = "model.layers.0.mlp.up_proj";
  for (PlannedModule* m : {&queries, &keys})
    m->scheme.weight_type = WeightType::kFloat4, m->scheme.group_size = kNvfp4Group;
  other.scheme.weight_type = WeightType::kFloat8, other.scheme.bits = 8;
  other.scheme.granularity = Granularity::kTensor, other.scheme.activation_bits = 8;
  other.scheme.activation_scale = ActivationScale::kTensor;
  const std::vector<PlannedModule> modules = {queries, keys, other};
  const Json config = packed_format("modelopt").config({modules, {}});
  const Json layers =
      Json::parse(R"({"model.layers.0.self_attn.q_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    "model.layers.0.self_attn.v_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    "model.layers.0.self_attn.k_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}})",
                  "layers");
  EXPECT_EQ(config.at("quantized_layers").dump(), layers.dump());
}

// vLLM asks for the stack, or for experts.0.gate_proj, whatever the checkpoint calls it.
TEST(ListedNames, ExpertsOfALayerAreListedAsOne) {
  std::vector<PlannedModule> modules = {packed_as("model.layers.0.self_attn.q_proj", 4)};
  std::vector<std::string> dense = {"model.layers.0.block_sparse_moe.gate", "lm_head"};
  for (int e = 0; e < 2; ++e)
    for (const char* linear : {"w1", "w2", "w3"}) {
      for (const auto& [layer, bits] : {std::pair{1, 4}, {2, 8}, {21, 4}})
        modules.push_back(
            packed_as(fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}", layer, e, linear), bits));
      dense.push_back(fmt::format("model.layers.3.block_sparse_moe.experts.{}.{}", e, linear));
    }
  modules.push_back(packed_as("model.layers.4.block_sparse_moe.experts.0.w1", 8));
  dense.emplace_back("model.layers.4.block_sparse_moe.experts.0.w2");
  const ListedModules listed{modules, dense};
  const auto expression = [](int layer) {
    return fmt::format("^model\\.layers\\.{}\\.block_sparse_moe\\.experts(?:\\.|$)", layer);
  };
  const Json config = packed_format("compressed-tensors").config(listed);
  EXPECT_EQ(
      config.at("config_groups").at("group_0").at("targets").dump(),
      Json::array({"model.layers.0.self_attn.q_proj", "re:" + expression(1), "re:" + expression(21)}).dump());
  EXPECT_EQ(config.at("config_groups").at("group_1").at("targets").dump(),
            Json::array({"re:" + expression(2), "model.layers.4.block_sparse_moe.experts.0.w1"}).dump());
  EXPECT_THAT(compressed_ignore(listed),
              ElementsAre("model.layers.0.block_sparse_moe.gate", "lm_head", "re:" + expression(3),
                          "model.layers.4.block_sparse_moe.experts.0.w2"));
  EXPECT_THAT(awq_ignore(listed), ElementsAre("model.layers.0.block_sparse_moe.gate", "lm_head",
                                              "model.layers.3.block_sparse_moe.experts",
                                              "model.layers.4.block_sparse_moe.experts.0.w2"));
  const NamePattern second("re:" + expression(2));
  EXPECT_TRUE(second.matches("model.layers.2.block_sparse_moe.experts"));
  EXPECT_TRUE(second.matches("model.layers.2.block_sparse_moe.experts.0.gate_proj"));
  EXPECT_FALSE(second.matches("model.layers.21.block_sparse_moe.experts.0.w1"));
  EXPECT_FALSE(second.matches("model.layers.2.block_sparse_moe.experts_gate"));
  std::vector<std::string> rules;
  const Json gptq = packed_format("gptq").config(listed);
  for (const auto& [rule, value] : gptq.at("dynamic").members()) rules.push_back(rule);
  EXPECT_THAT(
      rules, ElementsAre("+:" + expression(2), "+:^model\\.layers\\.4\\.block_sparse_moe\\.experts\\.0\\.w1$",
                         "-:^model\\.layers\\.0\\.block_sparse_moe\\.gate$", "-:" + expression(3),
                         "-:^model\\.layers\\.4\\.block_sparse_moe\\.experts\\.0\\.w2$"));
}

}  // namespace
}  // namespace llmq
