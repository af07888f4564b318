// What relatives of Llama say that it does not: blocks that do not turn, tables of rope by kind of attention,
// biases of their own. Their numbers are held by tests/golden/models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "model/model_spec.h"
#include "tests/unit/model/scratch_golden.h"
#include "tests/unit/model/scratch_model.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string sentence_of(const ScratchModel& model) {
  return error_of([&] { ModelSpec::read(model.open()); });
}

// Per block.
std::vector<std::int64_t> turning(const ModelSpec& spec) {
  std::vector<std::int64_t> dims;
  for (const BlockSpec& block : spec.blocks) dims.push_back(block.attention()->rope.dims);
  return dims;
}
ScratchModel& like_smollm3(ScratchModel& model) {
  model.config["no_rope_layers"] = Json::array({0, 1});
  return model;
}

TEST(SmolLm3, BlocksTurnWhereTheListSaysSo) {
  ScratchModel model("smollm3", "SmolLM3ForCausalLM");
  EXPECT_THAT(turning(ModelSpec::read(model.open())), ElementsAre(4, 4)) << "every fourth does not";
  model.config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(turning(ModelSpec::read(model.open())), ElementsAre(4, 0));
  EXPECT_THAT(turning(ModelSpec::read(like_smollm3(model).open())), ElementsAre(0, 4));
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(0, 0));
  model.config["use_sliding_window"] = true;
  model.config["sliding_window"] = 6;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(6, 0)) << "without rope, with a window";
  model.config["layer_types"] = Json::array({"full_attention", "sliding_attention"});
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(0, 6));
}

TEST(SmolLm3, ListsThatSayNothingOfABlockAreRefused) {
  ScratchModel model("smollm3", "SmolLM3ForCausalLM");
  model.config["no_rope_layers"] = Json::array({1});
  EXPECT_THAT(sentence_of(model), HasSubstr("no_rope_layers: is no list of 2 numbers"));
  model.config["no_rope_layers"] = Json::array({1, 2});
  EXPECT_THAT(sentence_of(model), HasSubstr("no_rope_layers: holds 2 for block 1"));
  like_smollm3(model).config["layer_types"] = Json::array({"sliding_attention", "full_attention"});
  EXPECT_THAT(sentence_of(model), HasSubstr("asks for sliding_attention in block 0"));
  ScratchModel llama("llama", "LlamaForCausalLM");
  EXPECT_THAT(sentence_of(like_smollm3(llama)), HasSubstr("no_rope_layers"));
}

TEST(SeedOss, HasBiasesOfItsOwn) {
  ScratchModel model("seed_oss", "SeedOssForCausalLM");
  EXPECT_THAT(sentence_of(model), HasSubstr("says [512, 16]")) << "heads of 128 where head_dim is absent";
  model.config["head_dim"] = 4;
  EXPECT_THAT(sentence_of(model), HasSubstr("q_proj.bias: is missing"));
  model.add_to_blocks("self_attn.q_proj.bias", scratch_ramp({16}));
  model.add_to_blocks("self_attn.k_proj.bias", scratch_ramp({8}));
  model.add_to_blocks("self_attn.v_proj.bias", scratch_ramp({8}));
  EXPECT_EQ(sentence_of(model), "");
  model.config["attention_out_bias"] = true;
  EXPECT_THAT(sentence_of(model), HasSubstr("o_proj.bias: is missing"));
}

TEST(Ernie, NeighboursTurnAndAllLinearsHaveBiasesOrNone) {
  ScratchModel model("ernie4_5", "Ernie4_5ForCausalLM");
  EXPECT_THAT(sentence_of(model), HasSubstr("says [512, 16]")) << "heads of 128 where head_dim is absent";
  model.config["head_dim"] = nullptr;
  for (const char* key : {"num_key_value_heads", "rope_theta", "tie_word_embeddings"})
    model.config.erase(key);
  model.tensors.erase("lm_head.weight");
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.ropes.front().theta, 5e5);
  for (const BlockSpec& block : spec.blocks) {
    EXPECT_EQ(block.attention()->kv_heads, 2);
    EXPECT_EQ(block.attention()->rope.dims, 4);
    EXPECT_EQ(block.attention()->rope.pairs, RopePairs::kNeighbours);
  }
  model.config["use_bias"] = true;
  for (const auto& [linear, rows] :
       std::initializer_list<std::pair<const char*, std::int64_t>>{{"self_attn.q", 16},
                                                                   {"self_attn.k", 8},
                                                                   {"self_attn.v", 8},
                                                                   {"self_attn.o", 16},
                                                                   {"mlp.gate", 24},
                                                                   {"mlp.up", 24},
                                                                   {"mlp.down", 16}}) {
    EXPECT_THAT(sentence_of(model), HasSubstr(linear + std::string("_proj.bias: is missing")));
    model.add_to_blocks(linear + std::string("_proj.bias"), scratch_ramp({rows}));
  }
  EXPECT_EQ(sentence_of(model), "");
  model.config["attention_bias"] = true;
  EXPECT_THAT(sentence_of(model), HasSubstr("attention_bias"));
}

void as_olmo3(ScratchModel& model) {
  for (const char* block : {"model.layers.0.", "model.layers.1."})
    model.tensors.erase(block + std::string("input_layernorm.weight"));
  model.add_to_blocks("post_feedforward_layernorm.weight", scratch_ramp({16}));
  model.add_to_blocks("self_attn.q_norm.weight", scratch_ramp({16}));
  model.add_to_blocks("self_attn.k_norm.weight", scratch_ramp({8}));
  model.config.erase("rope_theta");
}

// Transformers 4 says one base and one scaling, which the window's table has not; Transformers 5 has an
// object for each.
TEST(Olmo3, TablesOfRopeAreByKindOfAttention) {
  ScratchModel model("olmo3", "Olmo3ForCausalLM");
  as_olmo3(model);
  model.config["layer_types"] = Json::array({"sliding_attention", "full_attention"});
  model.config["sliding_window"] = 5;
  const auto read = [&] { return ModelSpec::read(model.open()); };
  ModelSpec spec = read();
  EXPECT_THAT(windows_of(spec), ElementsAre(5, 0));
  ASSERT_EQ(spec.ropes.size(), 2u);
  EXPECT_EQ(spec.ropes[0].theta, 5e5);
  EXPECT_EQ(spec.blocks[0].attention()->rope.table, 1u);
  EXPECT_EQ(spec.blocks[1].attention()->rope.table, 0u);

  model.config["rope_theta"] = 2e4;
  model.config["rope_scaling"] = Json::object({{"rope_type", "linear"}, {"factor", 2.0}});
  spec = read();
  EXPECT_EQ(spec.ropes[0].kind, RopeKind::kLinear);
  EXPECT_EQ(spec.ropes[1].kind, RopeKind::kDefault);
  EXPECT_EQ(spec.ropes[1].theta, 2e4);

  model.config["rope_parameters"] = Json::object(
      {{"full_attention", Json::object({{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 3e4}})},
       {"sliding_attention", Json::object({{"rope_type", "default"}, {"rope_theta", 1e4}})}});
  EXPECT_THAT(sentence_of(model), HasSubstr("rope_scaling: stands beside rope_parameters"));
  model.config.erase("rope_scaling");
  spec = read();
  EXPECT_EQ(spec.ropes[0].factor, 4);
  EXPECT_EQ(spec.ropes[0].theta, 3e4);
  EXPECT_EQ(spec.ropes[1].theta, 1e4);
  model.config["rope_parameters"]["chunked_attention"] = Json::object();
  EXPECT_THAT(sentence_of(model), HasSubstr("rope_parameters.chunked_attention: this field is not known"));
}

TEST(Olmo3, ThreeBlocksOfFourHaveTheWindow) {
  ScratchModel model("olmo3", "Olmo3ForCausalLM");
  as_olmo3(model);
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(4096, 4096));
  model.config["sliding_window"] = nullptr;
  EXPECT_THAT(sentence_of(model), HasSubstr("sliding_window: is null, and block 0 is sliding_attention"));
}

TEST(Starcoder2, OtherStructuresAreRefused) {
  ScratchModel model("starcoder2", "Starcoder2ForCausalLM");
  model.config["norm_type"] = "rms_norm";
  EXPECT_THAT(sentence_of(model), HasSubstr("norm_type"));
  model.config["norm_type"] = "layer_norm";
  EXPECT_THAT(sentence_of(model), HasSubstr("model.norm.bias: is missing"));
}

// The names say little: post_attention_layernorm stands before the MLP, as Llama's does.
TEST(Glm4, NormsStandBeforeAndBehindAndAHalfTurns) {
  ScratchModel model("glm4", "Glm4ForCausalLM");
  for (const char* norm : {"post_self_attn_layernorm", "post_mlp_layernorm"})
    model.add_to_blocks(norm + std::string(".weight"), scratch_ramp({16}));
  for (const std::string block : {"model.layers.0.", "model.layers.1."})
    for (const char* linear : {"gate", "up"}) model.tensors.erase(block + "mlp." + linear + "_proj.weight");
  model.add_to_blocks("mlp.gate_up_proj.weight", scratch_ramp({48, 16}));
  model.config["head_dim"] = 4;
  EXPECT_THAT(sentence_of(model), HasSubstr("q_proj.bias: is missing"));
  model.config["attention_bias"] = false;
  const ModelSpec spec = ModelSpec::read(model.open());
  const BlockSpec& block = spec.blocks[1];
  const auto named = [&](const std::optional<NormId>& norm) { return block.at(norm.value()).gain.tensor; };
  EXPECT_EQ(named(block.sublayers[0].after), "model.layers.1.post_self_attn_layernorm.weight");
  EXPECT_EQ(named(block.sublayers[1].before), "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(named(block.sublayers[1].after), "model.layers.1.post_mlp_layernorm.weight");
  EXPECT_EQ(block.attention()->rope.dims, 2);
  EXPECT_EQ(block.attention()->rope.pairs, RopePairs::kNeighbours);
  model.config["partial_rotary_factor"] = 1;
  EXPECT_THAT(turning(ModelSpec::read(model.open())), ElementsAre(4, 4));
  model.config["head_dim"] = nullptr;
  EXPECT_EQ(sentence_of(model), "") << "heads of the hidden size";
}

TEST(Cohere, OneNormHasTheReadersOfBothMixers) {
  const ScratchCohere2 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.final_norm.scale, 0.25f);
  const BlockSpec& block = spec.blocks[0];
  ASSERT_EQ(block.sublayers.size(), 1u);
  ASSERT_EQ(block.sublayers[0].sites.size(), 3u);
  const SiteSpec& both = block.at(block.sublayers[0].sites[0]);
  EXPECT_EQ(both.readers.size(), 5u);
  EXPECT_TRUE(std::holds_alternative<NormGain>(both.producer));
  EXPECT_TRUE(std::holds_alternative<LinearRows>(block.at(block.mlp()->inner).producer));
  EXPECT_EQ(block.sublayers[0].outputs(), (std::vector{block.attention()->output, block.mlp()->output}));
  EXPECT_FALSE(block.norms[0].bias.exists());
}

TEST(Cohere, NormsOfHeadsHaveAGainOfEach) {
  ScratchGolden model("cohere-norms");
  const ModelSpec spec = ModelSpec::read(model.open());
  const BlockSpec& block = spec.blocks[0];
  const NormSpec &query = block.at(block.attention()->query_norm.value()),
                 &key = block.at(block.attention()->key_norm.value());
  EXPECT_EQ(query.gain_shape(), (Shape{4, 8}));
  EXPECT_EQ(key.gain_shape(), (Shape{2, 8}));
  EXPECT_EQ(query.kind, NormSpec::Kind::kLayer);
  EXPECT_TRUE(std::holds_alternative<LinearRows>(block.at(block.attention()->inner).producer));
  std::int64_t stored = 0;
  for (const auto& [name, tensor] : model.tensors)
    stored += std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies());
  EXPECT_EQ(spec.parameters(), stored);
  model.config["use_qk_norm"] = false;
  EXPECT_THAT(sentence_of(model), HasSubstr("nothing in this family reads this tensor"));
}

TEST(Cohere, BlocksWithoutAWindowDoNotTurn) {
  ScratchCohere2 model;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(5, 5)) << "every fourth has none";
  model.config["sliding_window_pattern"] = 2;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(5, 0));
  EXPECT_THAT(turning(ModelSpec::read(model.open())), ElementsAre(4, 0));
  model.config["layer_switch"] = 4;
  EXPECT_THAT(sentence_of(model), HasSubstr("layer_switch"));
  model.config["layer_switch"] = 2;
  EXPECT_EQ(sentence_of(model), "");
  model.config["sliding_window"] = nullptr;
  EXPECT_THAT(sentence_of(model), HasSubstr("sliding_window: is null, and block 0 is sliding_attention"));
}

TEST(Cohere, OtherFormsAreRefusedByName) {
  for (const auto& [key, value] : {std::pair<const char*, Json>{"use_qk_norm", true},
                                   {"use_parallel_block", false},
                                   {"rotary_pct", 0.5},
                                   {"position_embedding_type", "rope_neox"},
                                   {"logit_scale", 0},
                                   {"head_dim", 8}}) {
    ScratchCohere2 model;
    model.config[key] = value;
    EXPECT_THAT(sentence_of(model), HasSubstr(key));
  }
}

TEST(Falcon, OtherFormsAreRefusedByName) {
  for (const auto& [key, value] : {std::pair<const char*, Json>{"multi_query", false},
                                   {"parallel_attn", false},
                                   {"alibi", true},
                                   {"activation", "relu"},
                                   {"num_attention_heads", 16}}) {
    ScratchModel model("falcon", "FalconForCausalLM");
    model.config[key] = value;
    EXPECT_THAT(sentence_of(model), HasSubstr(key));
  }
}

// What 40B and Falcon2 11B are: rows of each KV head together, and as many norms as they say.
TEST(Falcon, RowsOfAKvHeadLieTogether) {
  ScratchGolden model("falcon-40b");
  const ModelSpec spec = ModelSpec::read(model.open());
  const BlockSpec& block = spec.blocks[1];
  ASSERT_EQ(block.sublayers.size(), 2u);
  EXPECT_TRUE(block.sublayers[0].joins_next && block.sublayers[1].joined);
  EXPECT_FALSE(block.sublayers[1].joint) << "no norm goes over the sum";
  EXPECT_TRUE(block.writes_pages(1) && !block.writes_pages(0));
  const AttentionSpec& attention = *block.attention();
  EXPECT_TRUE(attention.grouped && !attention.value_is_key());
  EXPECT_EQ(block.at(attention.query.linear).out_features, 64)
      << "of each KV head 2 queries, a key and a value";
  const auto& rows = std::get<LinearRows>(block.at(attention.inner).producer);
  EXPECT_EQ(rows.row_of(0), 24) << "the value of the first KV head";
  EXPECT_EQ(rows.row_of(15), 31) << "its second query has the same";
  EXPECT_EQ(rows.row_of(16), 56);
  const auto norm_of = [&](SiteId site) {
    return block.at(std::get<NormGain>(block.at(site).producer).norm).gain.tensor;
  };
  EXPECT_EQ(norm_of(attention.input), "transformer.h.1.ln_attn.weight");
  EXPECT_EQ(norm_of(block.mlp()->input), "transformer.h.1.ln_mlp.weight");
  EXPECT_THAT(block.at(attention.input).readers, ElementsAre(attention.query.linear));
  model.config["num_ln_in_parallel_attn"] = 3;
  EXPECT_THAT(sentence_of(model), HasSubstr("num_ln_in_parallel_attn"));
  model.config["num_ln_in_parallel_attn"] = 2;
  model.config["num_kv_heads"] = 3;
  EXPECT_THAT(sentence_of(model), HasSubstr("num_kv_heads"));
}

TEST(Falcon, OneNormMakesOneInput) {
  const ScratchGolden model("falcon-11b");
  const ModelSpec spec = ModelSpec::read(model.open());
  const BlockSpec& block = spec.blocks[0];
  ASSERT_EQ(block.sublayers.size(), 1u);
  EXPECT_EQ(block.attention()->input, block.mlp()->input);
  EXPECT_EQ(spec.ropes.front().theta, 500042);
}

TEST(Gemma3, EveryNormIsOfOnePlusWhatIsStored) {
  const ScratchGemma3 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.final_norm.offset, 1);
  const BlockSpec& block = spec.blocks[1];
  ASSERT_EQ(block.norms.size(), 6u);
  for (const NormSpec& norm : block.norms) EXPECT_EQ(norm.offset, 1) << norm.gain.tensor;
  const auto named = [&](const std::optional<NormId>& norm) { return block.at(norm.value()).gain.tensor; };
  EXPECT_EQ(named(block.sublayers[0].after), "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(named(block.sublayers[1].before), "model.layers.1.pre_feedforward_layernorm.weight");
  EXPECT_EQ(named(block.sublayers[1].after), "model.layers.1.post_feedforward_layernorm.weight");
  EXPECT_EQ(block.attention()->scale, 0.25f);
  EXPECT_EQ(block.mlp()->activation, Activation::kGeluTanh);
  EXPECT_EQ(spec.embedding.scale, 4);
}

TEST(Gemma3, WindowsTurnByATableOfTheirOwn) {
  ScratchGemma3 model;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(5, 5)) << "every sixth has none";
  model.config["sliding_window_pattern"] = 2;
  model.config["rope_theta"] = nullptr;
  model.config["rope_local_base_freq"] = 300;
  model.config["rope_scaling"] = Json::object({{"rope_type", "linear"}, {"factor", 8.0}});
  const ModelSpec older = ModelSpec::read(model.open());
  EXPECT_THAT(windows_of(older), ElementsAre(5, 0));
  EXPECT_EQ(older.blocks[0].attention()->rope.table, 1u);
  EXPECT_EQ(older.blocks[1].attention()->rope.table, 0u);
  model.config["rope_scaling"] = nullptr;
  model.config["rope_local_base_freq"] = nullptr;
  model.config["rope_parameters"] =
      Json::object({{"full_attention", Json::object({{"rope_type", "linear"}, {"factor", 8.0}})},
                    {"sliding_attention", Json::object({{"rope_theta", 300}})}});
  const ModelSpec newer = ModelSpec::read(model.open());
  for (const ModelSpec* spec : {&older, &newer}) {
    ASSERT_EQ(spec->ropes.size(), 2u);
    EXPECT_EQ(spec->ropes[0].theta, 1e6) << "where it is absent";
    EXPECT_EQ(spec->ropes[0].factor, 8);
    EXPECT_EQ(spec->ropes[1].theta, 300);
    EXPECT_EQ(spec->ropes[1].kind, RopeKind::kDefault);
  }
  model.config["rope_parameters"] = nullptr;
  EXPECT_EQ(ModelSpec::read(model.open()).ropes[1].theta, 1e4) << "where it is absent";
}

TEST(Gemma3, OtherFormsAreRefusedByName) {
  for (const auto& [key, value] : {std::pair<const char*, Json>{"attn_logit_softcapping", 50.0},
                                   {"final_logit_softcapping", 30.0},
                                   {"use_bidirectional_attention", true},
                                   {"hidden_activation", "silu"},
                                   {"hidden_act", "silu"},
                                   {"query_pre_attn_scalar", 0},
                                   {"sliding_window", nullptr}}) {
    ScratchGemma3 model;
    model.config[key] = value;
    EXPECT_THAT(sentence_of(model), HasSubstr(key));
  }
}

}  // namespace
}  // namespace llmq
