// DeepSeek V2 and V3, Kimi-K2 and GLM-4.7-Flash: what is read, and what is refused. Logits are golden
// (tests/golden/models), chunks and taps are in run_sublayer_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/block_weights.h"
#include "scratch_golden.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec latent_spec(const ScratchModel& model) { return ModelSpec::read(model.open()); }

std::string latent_refusal(const char* name, const char* key, const Json& value) {
  ScratchGolden model(name);
  model.config[key] = value;
  return error_of([&] { latent_spec(model); });
}

std::vector<std::string> site_names(const BlockSpec& block, const SublayerSpec& part) {
  std::vector<std::string> names;
  for (const SiteId site : part.sites) names.push_back(block.at(site).name);
  return names;
}

TEST(Latents, PagesHoldOneRowForAllHeads) {
  const ModelSpec spec = latent_spec(ScratchGolden("deepseek_v3"));
  const BlockSpec& block = spec.blocks[0];
  const LatentAttentionSpec* const latent = block.latent_attention();
  ASSERT_NE(latent, nullptr);
  EXPECT_EQ(block.attention(), nullptr);
  EXPECT_EQ(block.pages.kv_heads, 1);
  EXPECT_EQ(block.pages.head_dim, 16 + 4);
  EXPECT_EQ(spec.kv_bytes({DType::kF32}), 2u * 2 * 20 * 4);  // two blocks, as keys and as values
  EXPECT_THAT(site_names(block, block.sublayers[0]), ElementsAre("x_attn", "x_q", "x_kv", "x_o"));
  EXPECT_EQ(block.at(*latent->query_norm).eps, 1e-6f);
  const double mscale = 0.1 * 0.7 * std::log(4.0) + 1;
  EXPECT_FLOAT_EQ(latent->scale, static_cast<float>(mscale * mscale / std::sqrt(10.0)));
  EXPECT_TRUE(linear_named(block, "kv_b_proj").absorbed);
  EXPECT_EQ(linear_named(block, "kv_b_proj").parts.size(), 8u);
  const BlockSpec plain = latent_spec(ScratchGolden("deepseek_v3-halves")).blocks[0];
  EXPECT_THAT(site_names(plain, plain.sublayers[0]), ElementsAre("x_attn", "x_kv", "x_o"));
  EXPECT_EQ(plain.latent_attention()->rope.pairs, RopePairs::kHalves);
}

// Row c of the values of a head lies behind the rows that its queries are multiplied by.
TEST(Latents, ValuesAreEveryHeadsLastRows) {
  const BlockSpec block = latent_spec(ScratchGolden("deepseek_v3")).blocks[0];
  const auto& made = std::get<LinearRows>(block.at(block.latent_attention()->inner).producer);
  EXPECT_EQ(made.row_of(0), 6);
  EXPECT_EQ(made.row_of(9), 15);
  EXPECT_EQ(made.row_of(10), 16 + 6);
}

TEST(Latents, KimiIsDeepSeekByAnotherName) {
  ScratchGolden model("kimi_k2");
  const ModelSpec kimi = latent_spec(model);
  EXPECT_EQ(kimi.family, "kimi_k2");
  EXPECT_EQ(kimi.architecture, "DeepseekV3ForCausalLM");
  model.config["model_type"] = "deepseek_v3";
  EXPECT_EQ(latent_spec(model).parameters(), kimi.parameters());
}

// As DeepSeek publishes them: every linear is FP8 in blocks, and nothing else is.
TEST(Latents, ReleasesInFloat8AreRead) {
  const Checkpoint checkpoint = ScratchGolden("deepseek_v3-fp8").open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      EXPECT_EQ(checkpoint.at(linear.weight.tensor).block_scales.has_value(), linear.quantizable)
          << linear.module;
}

TEST(Latents, WhichBlocksAreDenseIsSaidOnceOrAlike) {
  ScratchGolden model("glm4_moe_lite-groups");  // block 1 is dense
  EXPECT_NE(latent_spec(model).blocks[0].mixture(), nullptr);
  EXPECT_EQ(latent_spec(model).blocks[1].mixture(), nullptr);
  EXPECT_EQ(latent_spec(model).blocks[0].mixture()->groups, 3);
  EXPECT_THAT(latent_refusal("glm4_moe_lite", "first_k_dense_replace", 0),
              HasSubstr("mlp_layer_types: differs from first_k_dense_replace in block 0"));
  model.config["mlp_layer_types"] = Json::array({"sparse"});
  EXPECT_THAT(error_of([&] { latent_spec(model); }), HasSubstr("mlp_layer_types: is no list of 2 kinds"));
  model.config["mlp_layer_types"] = Json::array({"sparse", "latent"});
  EXPECT_THAT(error_of([&] { latent_spec(model); }), HasSubstr("holds \"latent\""));
}

TEST(Latents, WhatPredictsFurtherTokensIsCarriedAlong) {
  const ModelSpec spec = latent_spec(ScratchGolden("deepseek_v3"));
  EXPECT_THAT(spec.carried.parts, ElementsAre("model.layers.2"));
  EXPECT_TRUE(spec.carried.carries("model.layers.2.self_attn.kv_b_proj.weight"));
  EXPECT_TRUE(latent_spec(ScratchGolden("kimi_k2")).carried.parts.empty());
}

TEST(Latents, WhatChangesTheMathematicsIsRefused) {
  const auto v3 = [](const char* key, const Json& value) {
    return latent_refusal("deepseek_v3", key, value);
  };
  const auto v2 = [](const char* key, const Json& value) {
    return latent_refusal("deepseek_v2", key, value);
  };
  EXPECT_THAT(v3("q_lora_rank", 0), HasSubstr("q_lora_rank: is 0"));
  EXPECT_THAT(v3("q_lora_rank", nullptr), HasSubstr("self_attn.q_proj.weight: is missing"));
  EXPECT_THAT(v3("kv_lora_rank", 10), HasSubstr("kv_a_layernorm.weight: has shape [16]"));
  EXPECT_THAT(v3("qk_rope_head_dim", 5), HasSubstr("qk_rope_head_dim: is 5; rope turns pairs"));
  EXPECT_THAT(v3("qk_head_dim", 12), HasSubstr("qk_head_dim: is 12"));
  EXPECT_THAT(v3("v_head_dim", 11), HasSubstr("kv_b_proj.weight"));
  EXPECT_THAT(v3("num_key_value_heads", 2), HasSubstr("num_key_value_heads: is 2, and each of the 4 heads"));
  ScratchGolden many("deepseek_v3");
  many.config["num_attention_heads"] = many.config["num_key_value_heads"] = 5000;
  EXPECT_THAT(error_of([&] { latent_spec(many); }),
              HasSubstr("num_attention_heads: is 5000, and 4096 are the most"));
  EXPECT_THAT(v3("scoring_func", "softmax"), HasSubstr("scoring_func: is \"softmax\""));
  EXPECT_THAT(v3("topk_method", "greedy"), HasSubstr("topk_method: is \"greedy\""));
  EXPECT_THAT(v3("n_group", 4), HasSubstr("n_group: is 4, and groups of 6 experts"));
  EXPECT_THAT(v3("num_experts_per_tok", 4), HasSubstr("leaves 3 experts, and a row has 4"));
  EXPECT_THAT(v3("num_experts_per_tok", 7), HasSubstr("num_experts_per_tok: is 7, and there are 6 experts"));
  EXPECT_THAT(v3("index_topk", 64), HasSubstr("index_topk: this field is not known"));
  EXPECT_THAT(v3("moe_layer_freq", 2), HasSubstr("moe_layer_freq: is 2"));
  EXPECT_THAT(v2("topk_method", "noaux_tc"), HasSubstr("topk_method: is \"noaux_tc\", which is not known"));
  EXPECT_THAT(v2("scoring_func", "sigmoid"), HasSubstr("scoring_func: is \"sigmoid\""));
  EXPECT_THAT(v2("norm_topk_prob", true), HasSubstr("norm_topk_prob: is true"));
  EXPECT_THAT(v2("num_experts_per_tok", nullptr), HasSubstr("num_experts_per_tok: is missing"));
}

// From dense tensors as from codes: the parts in even places are turned, of any type that a weight has.
TEST(Latents, WhatIsAbsorbedIsPreparedFromEitherSide) {
  LinearSpec linear;
  linear.out_features = 5, linear.in_features = 4, linear.parts = {2, 3}, linear.absorbed = true;
  std::vector<float> values;
  for (int i = 0; i < 20; ++i) values.push_back(static_cast<float>(i % 7 - 3));
  const auto backend = make_reference_backend();
  const auto products = [&](const BlockLinear& made, std::size_t part, const std::vector<float>& x) {
    const PreparedWeight& weight = *made.parts.at(part).weight;
    std::vector<float> y(static_cast<std::size_t>(weight.out_features));
    const TensorView from(x.data(), DType::kF32, Shape{1, weight.in_features}),
        to(y.data(), DType::kF32, Shape{1, weight.out_features});
    backend->linear(to, from, weight, {});
    return y;
  };
  const auto expect_sides = [&](const BlockLinear& made) {
    std::vector<float> turned(4), straight(3);
    for (std::size_t c = 0; c < 4; ++c) turned[c] = 2 * values[c] - values[4 + c];
    for (std::size_t r = 0; r < 3; ++r) straight[r] = values[(2 + r) * 4 + 1] + 3 * values[(2 + r) * 4 + 3];
    EXPECT_EQ(products(made, 0, {2, -1}), turned);
    EXPECT_EQ(products(made, 1, {0, 1, 0, 3}), straight);
  };
  BlockLinear plain, rounded, of_codes;
  set_weight(*backend, Compute::kFloat32, linear, TensorView(values.data(), DType::kF32, Shape{5, 4}), plain);
  expect_sides(plain);
  std::vector<std::uint16_t> halves;
  for (const float value : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    halves.push_back(static_cast<std::uint16_t>(bits >> 16));
  }
  set_weight(*backend, Compute::kFloat32, linear, TensorView(halves.data(), DType::kBF16, Shape{5, 4}),
             rounded);
  expect_sides(rounded);
  QuantizedMatrix codes;
  codes.scheme.granularity = Granularity::kChannel, codes.scheme.bits = 8, codes.scheme.symmetric = true;
  codes.scheme.activation_bits = 8;  // which nothing here is rounded to
  codes.out_features = 5, codes.in_features = 4;
  codes.scales.assign(5, 1.0f), codes.zeros.assign(5, 128);
  for (const float value : values) codes.codes.push_back(static_cast<std::uint8_t>(value + 128));
  set_weight(*backend, Compute::kFloat32, linear, codes, of_codes);
  expect_sides(of_codes);
}

}  // namespace
}  // namespace llmq
