// Qwen3-Next and Qwen3.5: what is read, what is carried along, and what is refused. Logits are golden
// (tests/golden/models).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch_golden.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec spec_of(const ScratchModel& model) { return ModelSpec::read(model.open()); }
std::string delta_refusal(const ScratchModel& model) {
  return error_of([&] { spec_of(model); });
}

TEST(DeltaNets, ABlockHasAttentionOrAState) {
  const ModelSpec spec = spec_of(ScratchGolden("qwen3_5_text"));
  const DeltaSpec* const delta = spec.blocks[0].delta();
  ASSERT_NE(delta, nullptr);
  EXPECT_EQ(spec.blocks[0].attention(), nullptr);
  EXPECT_EQ(spec.blocks[0].pages.kv_heads, 0);
  EXPECT_EQ(delta->heads.key_heads, 2);
  EXPECT_EQ(delta->heads.value_heads, 4);
  EXPECT_EQ(delta->convolved(), 2 * 2 * 8 + 4 * 12);
  const AttentionSpec* const attention = spec.blocks[1].attention();
  ASSERT_NE(attention, nullptr);
  EXPECT_EQ(spec.blocks[1].delta(), nullptr);
  EXPECT_TRUE(attention->gated);
  EXPECT_EQ(attention->rope.dims, 8);
  EXPECT_EQ(linear_named(spec.blocks[1], "q_proj").out_features, 2 * 4 * 16);
  // Of a sequence: 4 heads of 8 x 12, and 3 rows before the convolution; its pages are those of one block.
  EXPECT_EQ(spec.state_bytes(), 4u * (4 * 8 * 12 + 3 * 80));
  EXPECT_EQ(spec.kv_bytes({DType::kF32}), 2u * 2 * 16 * 4);
  EXPECT_EQ(spec_of(ScratchModel()).state_bytes(), 0u);
}

TEST(DeltaNets, LinearsOfFewRowsAreNeverQuantized) {
  for (const auto& [model, dense] :
       {std::pair<std::string, std::set<std::string>>{"qwen3_5_text", {"in_proj_a", "in_proj_b"}},
        {"qwen3_next", {"in_proj_ba", "gate", "shared_expert_gate"}}}) {
    const ModelSpec spec = spec_of(ScratchGolden(model));
    std::set<std::string> found;
    for (const LinearSpec& linear : spec.blocks[0].linears)
      if (!linear.quantizable) found.insert(linear.module.substr(linear.module.rfind('.') + 1));
    EXPECT_EQ(found, dense);
  }
}

TEST(DeltaNets, WhatPredictsFurtherTokensIsCarriedAlong) {
  const ModelSpec with = spec_of(ScratchGolden("qwen3_next")),
                  without = spec_of(ScratchGolden("qwen3_next-interval"));
  EXPECT_FALSE(with.wrapper.has_value());
  EXPECT_THAT(with.carried.parts, ElementsAre("mtp"));
  EXPECT_EQ(with.carried.tensors, 4);
  EXPECT_TRUE(without.carried.parts.empty());
  // Its stacks of experts stay one tensor each: they are copied byte for byte.
  const Checkpoint checkpoint = ScratchGolden("qwen3_5_moe_text").open();
  EXPECT_NE(checkpoint.find("mtp.layers.0.mlp.experts.gate_up_proj"), nullptr);

  ScratchGolden wrapped("qwen3_5");
  wrapped.tensors["mtp.fc.weight"] = scratch_ramp({4, 8});
  wrapped.tensors["mtp.layers.0.mlp.experts.0.down_proj.weight"] = scratch_ramp({4, 3});
  EXPECT_THAT(spec_of(wrapped).carried.parts, ElementsAre("mtp", "model.visual"));
  wrapped.tensors["mtp.layers.2.mlp.experts.0.down_proj.weight"] = scratch_ramp({4, 3});
  EXPECT_THAT(delta_refusal(wrapped), HasSubstr("mtp.layers.1: is missing"));
  ScratchModel other;  // a family that has none
  other.tensors["mtp.fc.weight"] = scratch_ramp({4, 8});
  EXPECT_THAT(delta_refusal(other), HasSubstr("nothing in this family reads this tensor"));
}

// Of a packed checkpoint whose config takes experts beside the model for packed ones.
TEST(DeltaNets, ForgottenExpertsBesideTheModelAreRefused) {
  for (const char* tensor :
       {"mtp.layers.0.mlp.experts.0.up_proj.weight", "mtp.layers.0.mlp.experts.down_proj"}) {
    ScratchGolden model("qwen3_next");
    model.tensors[tensor] = scratch_ramp({2, 4, 8});
    if (std::string(tensor).ends_with(".weight")) model.tensors[tensor] = scratch_ramp({4, 8});
    const auto ignoring = [&](const Json& ignore) {
      const Json weights =
          Json::object({{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}});
      const Json group = Json::object({{"targets", Json::array({"Linear"})}, {"weights", weights}});
      model.config["quantization_config"] =
          Json::object({{"quant_method", "compressed-tensors"},
                        {"format", "pack-quantized"},
                        {"config_groups", Json::object({{"group_0", group}})},
                        {"ignore", ignore}});
      return delta_refusal(model);
    };
    EXPECT_THAT(
        ignoring(Json::array({"lm_head", "re:^model\\."})),
        ::testing::AllOf(HasSubstr("mtp.layers.0.mlp.experts.0."), HasSubstr("name the module under ignore")))
        << tensor;
    EXPECT_EQ(ignoring(Json::array({"lm_head", "re:^model\\.", "re:^mtp\\."})), "") << tensor;
  }
}

TEST(DeltaNets, BothLayoutsOfExpertsAreRead) {
  ScratchGolden model("qwen3_5_moe");
  const ModelSpec stacked = spec_of(model);
  EXPECT_EQ(stacked.blocks[0].mixture()->experts.size(), 4u);
  EXPECT_TRUE(stacked.blocks[0].mixture()->normalized);
  EXPECT_EQ(stacked.blocks[0].prefix, "model.language_model.layers.0");
  EXPECT_EQ(stacked.blocks[0].tensors[0].place.tensor,
            "model.language_model.layers.0.linear_attn.conv1d.weight");
}

TEST(DeltaNets, WhatChangesTheMathematicsIsRefused) {
  const auto refused = [](const char* key, const Json& value) {
    ScratchGolden model("qwen3_5_text");
    model.config[key] = value;
    return delta_refusal(model);
  };
  EXPECT_THAT(refused("linear_num_value_heads", 3), HasSubstr("linear_num_value_heads: is 3"));
  EXPECT_THAT(refused("linear_conv_kernel_dim", 1), HasSubstr("linear_conv_kernel_dim: is 1"));
  EXPECT_THAT(refused("attn_output_gate", false), HasSubstr("attn_output_gate: is false"));
  EXPECT_THAT(refused("output_gate_type", "sigmoid"), HasSubstr("output_gate_type: is \"sigmoid\""));
  EXPECT_THAT(refused("hidden_act", "gelu_pytorch_tanh"), HasSubstr("hidden_act"));
  EXPECT_THAT(refused("layer_types", Json::array({"linear_attention", "linear_attention"})),
              HasSubstr("layer_types: has no full_attention"));
  EXPECT_THAT(refused("layer_types", Json::array({"linear_attention", "mamba"})),
              HasSubstr("layer_types: names the kind mamba"));
  EXPECT_THAT(refused("layer_types", Json::array({"full_attention"})), HasSubstr("has 1 entries"));
  EXPECT_THAT(refused("full_attention_interval", 0), HasSubstr("full_attention_interval: is 0"));
  EXPECT_THAT(refused("delta_order", 2), HasSubstr("delta_order: this field is not known"));
}

TEST(DeltaNets, SectionsAreAllAnglesThatTurn) {
  ScratchGolden model("qwen3_5_text");
  model.config["rope_parameters"]["mrope_section"] = Json::array({2, 1, 2});
  EXPECT_THAT(delta_refusal(model),
              HasSubstr("mrope_section: is [2,1,2], and a head of 16 turns by 4 angles"));
  model.config["rope_parameters"]["mrope_section"] = Json::array({2, 1, 1});
  model.config["rope_parameters"]["partial_rotary_factor"] = 1;
  EXPECT_THAT(delta_refusal(model), HasSubstr("turns by 8 angles"));
}

TEST(DeltaNets, TensorsThatDisagreeAreRefusedByName) {
  ScratchGolden model("qwen3_next");
  model.tensors["model.layers.0.linear_attn.conv1d.weight"] = scratch_ramp({80, 4});
  EXPECT_THAT(delta_refusal(model), HasSubstr("linear_attn.conv1d.weight: has shape [80, 4]"));
  model.tensors.erase("model.layers.0.linear_attn.conv1d.weight");
  EXPECT_THAT(delta_refusal(model), HasSubstr("linear_attn.conv1d.weight: is missing"));
  ScratchGolden longer("qwen3_next");
  longer.tensors["model.layers.0.linear_attn.A_log"] = scratch_ramp({5});
  EXPECT_THAT(delta_refusal(longer), HasSubstr("linear_attn.A_log: has shape [5]"));
}

}  // namespace
}  // namespace llmq
