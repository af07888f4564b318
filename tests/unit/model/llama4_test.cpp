// Llama 4: which blocks turn, see chunks and have experts; how experts lie; what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/rope.h"
#include "scratch_golden.h"
#include "scratch_llama4.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string llama4_refusal(const ScratchModel& model) {
  try {
    ModelSpec::read(model.open());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Llama4, BlocksTurnAndSeeChunksOrGrowAndSeeAll) {
  const ScratchLlama4 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  const AttentionSpec &turning = *spec.blocks[0].attention(), &still = *spec.blocks[1].attention();
  EXPECT_EQ(turning.window, 7);
  EXPECT_TRUE(turning.chunks && spec.blocks[0].pages.chunks);
  EXPECT_EQ(turning.rope.pairs, RopePairs::kNeighbours);
  EXPECT_TRUE(turning.rope.of_keys);
  ASSERT_TRUE(turning.query_norm && turning.key_norm);
  EXPECT_FALSE(spec.blocks[0].at(*turning.query_norm).gain.exists());
  EXPECT_EQ(spec.blocks[0].at(*turning.query_norm).width, 4) << "over each head";
  EXPECT_EQ(still.window, 0);
  EXPECT_FALSE(still.chunks || still.query_norm || still.key_norm || still.rope.of_keys);
  ASSERT_EQ(spec.ropes.size(), 2u);
  EXPECT_EQ(still.rope.table, 1u);
}

// Scout was published with a number in place of a flag, and with what others' programs said of it; its
// instructed form has one length where angles change.
TEST(Llama4, IsReadAsItWasPublished) {
  ScratchLlama4 model;
  model.config["attn_temperature_tuning"] = 4;
  model.config["for_llm_compressor"] = false;
  model.config["cache_implementation"] = "hybrid";
  model.config["rope_scaling"] = Json::object({{"rope_type", "llama3"},
                                               {"factor", 16.0},
                                               {"low_freq_factor", 1.0},
                                               {"high_freq_factor", 1.0},
                                               {"original_max_position_embeddings", 32}});
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.ropes.size(), 2u) << "queries grow";
  for (const float cosine : make_rope_table(spec.ropes[0], spec.max_position, 10).cosines)
    EXPECT_TRUE(std::isfinite(cosine));
  model.config["attn_temperature_tuning"] = 0;
  EXPECT_EQ(ModelSpec::read(model.open()).ropes.size(), 1u);
}

// The factor changes at positions 4, 9, 14: (p + 1) / 5 as a whole number. Nothing turns.
TEST(Llama4, QueriesGrowWithTheirPosition) {
  const ScratchLlama4 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  const RopeTable table = make_rope_table(spec.ropes[1], spec.max_position, 10);
  const auto at = [&](std::size_t p) { return table.cosines[p * 2]; };
  for (std::size_t p = 0; p < 4; ++p) EXPECT_EQ(at(p), 1) << p;
  for (std::size_t p = 4; p < 9; ++p) EXPECT_FLOAT_EQ(at(p), 1 + 0.7f * std::log(2.0f)) << p;
  EXPECT_FLOAT_EQ(at(9), 1 + 0.7f * std::log(3.0f));
  for (const float sine : table.sines) EXPECT_EQ(sine, 0);
}

TEST(Llama4, ExpertsAreInTheBlocksOfEitherKey) {
  const ScratchGolden step("llama4_text-step"), lists("llama4_text-lists");
  const auto sparse = [](const ScratchModel& model) {
    std::vector<bool> blocks;
    for (const BlockSpec& block : ModelSpec::read(model.open()).blocks)
      blocks.push_back(block.mixture() != nullptr);
    return blocks;
  };
  EXPECT_THAT(sparse(step), ElementsAre(false, true, false, true, false, true));
  EXPECT_THAT(sparse(lists), ElementsAre(true, false, true));
  ScratchGolden counted("llama4_text-step");
  counted.config.erase("moe_layers");
  EXPECT_THAT(sparse(counted), ElementsAre(false, true, false, true, false, true));
  const BlockSpec dense = ModelSpec::read(step.open()).blocks[0];
  EXPECT_EQ(dense.mlp()->width, 56) << "intermediate_size_mlp";
  EXPECT_EQ(ModelSpec::read(step.open()).blocks[1].mixture()->width, 40) << "intermediate_size";
}

TEST(Llama4, AReaderOfTheNormIsEveryExpertTheRouterAndTheSharedOne) {
  const ScratchLlama4 model;
  const BlockSpec block = ModelSpec::read(model.open()).blocks[0];
  const MixtureSpec& mixture = *block.mixture();
  EXPECT_TRUE(mixture.weighs_input);
  EXPECT_EQ(mixture.score, RouterScore::kSigmoidOfChosen);
  EXPECT_EQ(block.at(mixture.input).readers.size(), 1u + 2 * 6) << "router, and gate and up of six";
  EXPECT_FALSE(mixture.shared_gate);
  EXPECT_FALSE(block.at(mixture.router).quantizable);
}

// Stacks of matrices, each transposed, are the experts that lie alone.
TEST(Llama4, StacksHoldWhatLiesAlone) {
  const ScratchGolden model("llama4");
  const Checkpoint checkpoint = model.open();
  EXPECT_EQ(ModelSpec::read(checkpoint).family, "llama4");
  const std::string at = "language_model.model.layers.0.feed_forward.experts.";
  const std::vector<float> stack = floats_of(model.tensors.at(at + "gate_up_proj"));
  const std::vector<float> up = checkpoint.read_float32(checkpoint.at(at + "2.up_proj.weight"));
  for (std::size_t row : {0u, 17u, 39u})
    for (std::size_t column : {0u, 31u})
      EXPECT_EQ(up[row * 32 + column], stack[(2 * 32 + column) * 80 + 40 + row]);
}

TEST(Llama4, TheTowerAndTheProjectorAreCarried) {
  const ScratchGolden model("llama4-parted");
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_THAT(spec.carried.parts, ElementsAre("vision_model", "multi_modal_projector"));
  EXPECT_EQ(spec.head_module, "language_model.lm_head");
  EXPECT_EQ(spec.wrapper->prefix, "language_model.model");
  ScratchGolden broken("llama4-parted");
  broken.tensors.erase("multi_modal_projector.linear_1.weight");
  EXPECT_THAT(llama4_refusal(broken), HasSubstr("multi_modal_projector"));
}

TEST(Llama4, WhatDoesNotFitIsRefusedByName) {
  const auto with = [](const char* key, Json value) {
    ScratchLlama4 model;
    model.config[key] = std::move(value);
    return llama4_refusal(model);
  };
  EXPECT_EQ(with("router_aux_loss_coef", 0.5), "") << "read in training alone";
  EXPECT_THAT(with("no_rope_layers", Json::array({1})), HasSubstr("no_rope_layers: is no list of 2 numbers"));
  EXPECT_THAT(with("no_rope_layers", Json::array({1, 2})), HasSubstr("no_rope_layers: holds 2 for block 1"));
  EXPECT_THAT(with("moe_layers", Json::array({2})), HasSubstr("moe_layers: names block 2, and there are 2"));
  EXPECT_THAT(with("moe_layers", 1), HasSubstr("moe_layers: expected an array"));
  EXPECT_THAT(with("attention_chunk_size", 0), HasSubstr("attention_chunk_size"));
  EXPECT_THAT(with("attention_chunk_size", nullptr), HasSubstr("is null, and block 0 is chunked_attention"));
  EXPECT_THAT(with("layer_types", Json::array({"sliding_attention", "full_attention"})),
              HasSubstr("names the kind sliding_attention"));
  EXPECT_THAT(with("floor_scale", 0), HasSubstr("floor_scale"));
  EXPECT_THAT(with("num_experts_per_tok", 6), HasSubstr("is 6, and there are 5 experts"));
  EXPECT_THAT(
      with("rope_scaling",
           Json::object({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}})),
      HasSubstr("use_qk_norm: takes the length of heads behind a rope that changes it"));
}

}  // namespace
}  // namespace llmq
