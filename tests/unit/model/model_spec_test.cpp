// ModelSpec: what config.json and tensor shapes give, who reads what, and what is refused by name.
#include "model/model_spec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/nearest_family.h"
#include "scratch_mixture.h"
#include "scratch_model.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string model_refusal(const ScratchModel& model) {
  return error_of([&] { ModelSpec::read(model.open()); });
}

std::string refusal_with(const std::string& key, Json value, const std::string& family = "llama",
                         const std::string& architecture = "LlamaForCausalLM") {
  ScratchModel model(family, architecture);
  model.config[key] = std::move(value);
  return model_refusal(model);
}

TEST(ModelSpec, ReadsLlama) {
  const ScratchModel model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.architecture, "LlamaForCausalLM");
  EXPECT_EQ(spec.hidden_size, 16);
  EXPECT_EQ(spec.blocks[0].attention()->heads, 4);
  EXPECT_EQ(spec.blocks[0].attention()->kv_heads, 2);
  EXPECT_EQ(spec.blocks[0].attention()->head_dim, 4);
  EXPECT_EQ(spec.final_norm.eps, 1e-5f);
  EXPECT_EQ(spec.blocks[0].mlp()->activation, Activation::kSilu);
  EXPECT_FALSE(spec.tied_head);
  EXPECT_THAT(spec.eos_ids, ElementsAre(2, 3));
  EXPECT_EQ(spec.bos_id, 1);
  ASSERT_EQ(spec.blocks.size(), 2u);
  const LinearSpec& down = linear_named(spec.blocks[1], "down_proj");
  EXPECT_EQ(down.module, "model.layers.1.mlp.down_proj");
  EXPECT_EQ(down.out_features, 16);
  EXPECT_EQ(down.in_features, 24);
  EXPECT_EQ(spec.blocks[1].at(down.site).name, "x_down");
  // 2 * 32*16 + 16 + 2 * (2*16 + 16*16 + 8*16 + 8*16 + 16*16 + 3 * 24*16)
  EXPECT_EQ(spec.parameters(), 1040 + 2 * 1952);
}

// Who reads a producer's output is written out here, not derived: a reader dropped from (or added to) a fold
// must fail.
TEST(ModelSpec, FoldsNameEveryReader) {
  const ScratchModel model;
  const ModelSpec spec = ModelSpec::read(model.open());
  for (const BlockSpec& block : spec.blocks) {
    ASSERT_EQ(block.sites.size(), 4u);
    const auto readers = [&](std::size_t site) {
      std::vector<std::string> modules;
      for (const LinearId reader : block.sites[site].readers) modules.push_back(block.at(reader).module);
      return modules;
    };
    const auto gain = [&](std::size_t site) {
      return block.at(std::get<NormGain>(block.sites[site].producer).norm).gain.tensor;
    };
    const auto rows = [&](std::size_t site) { return std::get<LinearRows>(block.sites[site].producer); };
    const std::string attention = block.prefix + ".self_attn.", mlp = block.prefix + ".mlp.";
    EXPECT_EQ(block.sites[0].name, "x_attn");
    EXPECT_EQ(gain(0), block.prefix + ".input_layernorm.weight");
    EXPECT_THAT(readers(0), ElementsAre(attention + "q_proj", attention + "k_proj", attention + "v_proj"));
    EXPECT_EQ(block.sites[1].name, "x_o");
    EXPECT_EQ(block.at(rows(1).rows.linear).module, attention + "v_proj");
    EXPECT_EQ(rows(1).repeat, 2);
    EXPECT_EQ(rows(1).head_dim, 4);
    EXPECT_THAT(readers(1), ElementsAre(attention + "o_proj"));
    EXPECT_EQ(block.sites[2].name, "x_mlp");
    EXPECT_EQ(gain(2), block.prefix + ".post_attention_layernorm.weight");
    EXPECT_THAT(readers(2), ElementsAre(mlp + "gate_proj", mlp + "up_proj"));
    EXPECT_EQ(block.sites[3].name, "x_down");
    EXPECT_EQ(block.at(rows(3).rows.linear).module, mlp + "up_proj");
    EXPECT_THAT(readers(3), ElementsAre(mlp + "down_proj"));
    // The readers of a site are exactly the linears that have it as their input.
    for (std::size_t site = 0; site < block.sites.size(); ++site) {
      std::vector<LinearId> sharing;
      for (const LinearSpec& linear : block.linears)
        if (linear.site == static_cast<SiteId>(site)) sharing.push_back(linear.id);
      EXPECT_EQ(block.sites[site].readers, sharing) << block.sites[site].name;
    }
  }
}

TEST(ModelSpec, TiedHeadMeansTheStoredTensor) {
  ScratchModel model;
  model.config["tie_word_embeddings"] = true;
  model.tensors.erase("lm_head.weight");
  EXPECT_EQ(ModelSpec::read(model.open()).head, "model.embed_tokens.weight");
  ScratchModel head_only;
  head_only.config["tie_word_embeddings"] = true;
  head_only.tensors.erase("model.embed_tokens.weight");
  const ModelSpec spec = ModelSpec::read(head_only.open());
  EXPECT_EQ(spec.embedding.tensor, "lm_head.weight");
  EXPECT_EQ(spec.head, "lm_head.weight");
  EXPECT_TRUE(spec.tied_head);
  // Both stored and equal: tied. Both stored and different: the config is wrong.
  ScratchModel both;
  both.config["tie_word_embeddings"] = true;
  EXPECT_EQ(model_refusal(both), "");
  both.tensors["lm_head.weight"].bytes[5] ^= 1;
  EXPECT_THAT(model_refusal(both), HasSubstr("lm_head.weight: differs from model.embed_tokens.weight"));
}

TEST(ModelSpec, UntiedHeadMustBeStored) {
  ScratchModel model;
  model.tensors.erase("lm_head.weight");
  EXPECT_THAT(model_refusal(model), HasSubstr("lm_head.weight: is missing"));
}

TEST(ModelSpec, MissingHeadDimAndKvHeadsFollowTheFamily) {
  ScratchModel model;
  model.config.erase("num_key_value_heads");  // llama: as many as heads, so k and v have the wrong shape here
  EXPECT_THAT(model_refusal(model), HasSubstr("k_proj.weight: has shape [8, 16], but"));
  ScratchModel wide;
  wide.config["head_dim"] = 8;
  EXPECT_THAT(model_refusal(wide), HasSubstr("q_proj.weight: has shape [16, 16], but"));
}

TEST(ModelSpec, ShapesAreNamedOnBothSides) {
  ScratchModel model;
  model.tensors["model.layers.1.mlp.up_proj.weight"] = scratch_ramp({20, 16});
  EXPECT_THAT(model_refusal(model), HasSubstr("model.layers.1.mlp.up_proj.weight: has shape [20, 16]"));
  EXPECT_THAT(model_refusal(model), HasSubstr("[24, 16]"));
  ScratchModel missing;
  missing.tensors.erase("model.layers.0.input_layernorm.weight");
  EXPECT_THAT(model_refusal(missing), HasSubstr("model.layers.0.input_layernorm.weight: is missing"));
}

TEST(ModelSpec, ATensorNobodyReadsIsRefused) {
  ScratchModel model;
  model.add_to_blocks("self_attn.q_norm.weight", scratch_ramp({4}));
  EXPECT_THAT(model_refusal(model), StartsWith("unsupported|"));
  EXPECT_THAT(model_refusal(model),
              HasSubstr("model.layers.0.self_attn.q_norm.weight: nothing in this family reads"));
  ScratchModel old;
  old.add_to_blocks("self_attn.rotary_emb.inv_freq", scratch_ramp({2}));
  EXPECT_EQ(model_refusal(old), "");
}

TEST(ModelSpec, BiasesOfLlamaFollowItsFlags) {
  ScratchModel model;
  model.config["mlp_bias"] = true;
  EXPECT_THAT(model_refusal(model), HasSubstr("gate_proj.bias: is missing"));
  model.add_to_blocks("mlp.gate_proj.bias", scratch_ramp({24}));
  model.add_to_blocks("mlp.up_proj.bias", scratch_ramp({24}));
  model.add_to_blocks("mlp.down_proj.bias", scratch_ramp({16}));
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_TRUE(linear_named(spec.blocks[0], "down_proj").has_bias());
  EXPECT_FALSE(linear_named(spec.blocks[0], "q_proj").has_bias());
}

void add_qkv_biases(ScratchModel& model) {
  model.add_to_blocks("self_attn.q_proj.bias", scratch_ramp({16}));
  model.add_to_blocks("self_attn.k_proj.bias", scratch_ramp({8}));
  model.add_to_blocks("self_attn.v_proj.bias", scratch_ramp({8}));
}

TEST(ModelSpec, Qwen2WindowsFollowTransformers) {
  ScratchModel model("qwen2", "Qwen2ForCausalLM");
  add_qkv_biases(model);
  model.config["sliding_window"] = 8;
  model.config["max_window_layers"] = 1;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(0, 0));  // use_sliding_window is false
  EXPECT_TRUE(linear_named(ModelSpec::read(model.open()).blocks[0], "v_proj").has_bias());
  EXPECT_FALSE(linear_named(ModelSpec::read(model.open()).blocks[0], "o_proj").has_bias());
  model.config["use_sliding_window"] = true;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(0, 8));
  model.config["sliding_window"] = nullptr;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(0, 0));
  model.config["sliding_window"] = 8;
  model.config["layer_types"] = Json::array({"sliding_attention", "full_attention"});
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(8, 0));
  model.config["use_sliding_window"] = false;
  EXPECT_THAT(model_refusal(model), HasSubstr("layer_types: asks for sliding_attention in block 0"));
  model.config["layer_types"] = Json::array({"linear_attention", "full_attention"});
  EXPECT_THAT(model_refusal(model), HasSubstr("layer_types: names the kind linear_attention"));
  model.config["layer_types"] = Json::array({"full_attention"});
  EXPECT_THAT(model_refusal(model), HasSubstr("layer_types: has 1 entries, num_hidden_layers is 2"));
}

TEST(ModelSpec, MistralHasOneWindow) {
  ScratchModel model("mistral", "MistralForCausalLM");
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(4096, 4096));  // the class's default
  model.config["sliding_window"] = nullptr;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(0, 0));
  model.config["sliding_window"] = 7;
  EXPECT_THAT(windows_of(ModelSpec::read(model.open())), ElementsAre(7, 7));
  model.config["sliding_window"] = 0;
  EXPECT_THAT(model_refusal(model), HasSubstr("sliding_window: is 0"));
}

TEST(ModelSpec, Qwen3HasHeadNormsAndItsOwnHeadDim) {
  ScratchModel model("qwen3", "Qwen3ForCausalLM");
  EXPECT_THAT(model_refusal(model), HasSubstr("shape [128] (head_dim)"));  // head_dim 128 when absent
  model.config["head_dim"] = 4;
  EXPECT_THAT(model_refusal(model), HasSubstr("q_norm.weight: is missing"));
  model.add_to_blocks("self_attn.q_norm.weight", scratch_ramp({4}));
  model.add_to_blocks("self_attn.k_norm.weight", scratch_ramp({4}));
  const BlockSpec block = ModelSpec::read(model.open()).blocks[1];
  EXPECT_EQ(block.at(block.attention()->key_norm.value()).gain.tensor,
            "model.layers.1.self_attn.k_norm.weight");
}

// The residual stream goes into more than one mixer, so no scale of q, k, v, gate or up can move out of them.
TEST(ModelSpec, Olmo2HasItsNormsBehind) {
  const ScratchOlmo2 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.final_norm.eps, 1e-5f);
  for (const BlockSpec& block : spec.blocks) {
    ASSERT_EQ(block.sublayers.size(), 2u);
    const auto name_of = [&](std::optional<NormId> norm) { return block.at(norm.value()).gain.tensor; };
    const SublayerSpec &attention = block.sublayers[0], &mlp = block.sublayers[1];
    EXPECT_FALSE(attention.before || mlp.before);
    EXPECT_EQ(name_of(attention.after), block.prefix + ".post_attention_layernorm.weight");
    EXPECT_EQ(name_of(mlp.after), block.prefix + ".post_feedforward_layernorm.weight");
    EXPECT_EQ(block.at(block.attention()->query_norm.value()).width, 16);
    EXPECT_EQ(block.at(block.attention()->key_norm.value()).width, 8);
    for (const SiteSpec& site : block.sites) {
      const bool stream = site.name == "x_attn" || site.name == "x_mlp";
      EXPECT_EQ(std::holds_alternative<std::monostate>(site.producer), stream) << site.name;
    }
    const auto producer = [&](std::size_t site) { return std::get<LinearRows>(block.sites[site].producer); };
    EXPECT_EQ(block.at(producer(1).rows.linear).module, block.prefix + ".self_attn.v_proj");
    EXPECT_EQ(block.at(producer(3).rows.linear).module, block.prefix + ".mlp.up_proj");
  }
}

TEST(ModelSpec, OtherStructuresThanOlmo2sAreRefused) {
  ScratchOlmo2 before, narrow;
  before.add_to_blocks("input_layernorm.weight", scratch_ramp({16}));
  EXPECT_THAT(model_refusal(before),
              HasSubstr("model.layers.0.input_layernorm.weight: nothing in this family reads"));
  narrow.add_to_blocks("self_attn.k_norm.weight", scratch_ramp({4}));
  EXPECT_THAT(model_refusal(narrow), HasSubstr("k_norm.weight: has shape [4], but"));
  EXPECT_THAT(model_refusal(narrow), HasSubstr("[8] (all heads of head_dim)"));
  ScratchOlmo2 window;
  window.config["sliding_window"] = 4096;
  EXPECT_THAT(model_refusal(window), HasSubstr("sliding_window"));
}

TEST(ModelSpec, UnknownFamiliesAndFieldsAreRefusedByName) {
  EXPECT_THAT(refusal_with("model_type", "gemma9"),
              ::testing::AllOf(
                  HasSubstr("model_type: the family \"gemma9\" is not known here; nearest are gemma2 by its "
                            "name, and llama by its tensors, of which it names and shapes 21 of 21"),
                  HasSubstr("llama, mistral, ")));
  EXPECT_THAT(refusal_with("architectures", Json::array({"LlamaForSequenceClassification"})),
              HasSubstr("LlamaForSequenceClassification"));
  EXPECT_THAT(refusal_with("hidden_act", "relu2"), HasSubstr("hidden_act: the activation \"relu2\""));
  EXPECT_THAT(refusal_with("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor: is 0.5"));
  EXPECT_THAT(refusal_with("attn_logit_softcapping", 50.0), HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(refusal_with("num_experts", 8), HasSubstr("num_experts: is 8"));
  EXPECT_THAT(refusal_with("logits_scaling", 8.0), HasSubstr("logits_scaling"));
  EXPECT_THAT(refusal_with("residual_multiplier", 0.22), HasSubstr("residual_multiplier"));
  EXPECT_THAT(refusal_with("attention_multiplier", 0.015), HasSubstr("attention_multiplier"));
  EXPECT_THAT(refusal_with("rope_interleaved", true), HasSubstr("rope_interleaved"));
  EXPECT_THAT(refusal_with("sliding_window", 128), HasSubstr("sliding_window"));
  EXPECT_THAT(refusal_with("some_new_field", 1), HasSubstr("some_new_field: this field is not known"));
  EXPECT_THAT(refusal_with("mlp_bias", true, "mistral", "MistralForCausalLM"), HasSubstr("mlp_bias"));
  for (const char* neutral : {"partial_rotary_factor", "logits_scaling"})
    EXPECT_EQ(refusal_with(neutral, 1.0), "") << neutral;
  EXPECT_EQ(refusal_with("some_new_field", nullptr), "");
  EXPECT_EQ(refusal_with("rope_interleaved", false), "");
  EXPECT_EQ(refusal_with("transformers.js_config", Json::object({{"dtype", "q4"}})), "");
}

// By the letters of the name, and by whose structure has the checkpoint's tensors.
TEST(ModelSpec, AnUnknownFamilyIsToldItsNearestOnes) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("qwen3_5", "qwen3_vl"), 2u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  const auto nearest = [](const ScratchModel& model, const char* type) {
    const Checkpoint checkpoint = model.open();
    return nearest_families(checkpoint, type);
  };
  EXPECT_THAT(nearest(ScratchMixture(), "qwen9_moe"),
              ::testing::AllOf(HasSubstr("nearest are qwen3_moe by its name"),
                               HasSubstr("qwen2_moe by its tensors")));
  EXPECT_THAT(nearest(ScratchMixture(), "zephyrus"), StartsWith("nearest is qwen2_moe by its tensors"));
  ScratchModel foreign;  // of which no family knows half
  foreign.tensors.clear();
  for (int i = 0; i < 20; ++i)
    foreign.tensors[fmt::format("transformer.h.{}.weight", i)] = scratch_ramp({4, 4});
  EXPECT_EQ(nearest(foreign, "zephyrus"), "");
  EXPECT_EQ(nearest(foreign, "llama9"), "nearest is llama by its name");
}

// Every number of the config at values that overflow, vanish or are of another kind: one clear refusal, no
// crash, no allocation.
TEST(ModelSpec, HostileNumbersAreRefused) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "head_dim"}) {
    const Json values[] = {
        -1, 0, std::int64_t{1} << 31, std::int64_t{1} << 62, 1e308, 16.5, "16", Json::array({16}), true};
    for (const Json& value : values) {
      const std::string found = refusal_with(key, value);
      EXPECT_THAT(found, HasSubstr(std::string("config.json: ") + key)) << value.dump();
    }
  }
  for (const Json& value : {Json(-1.0), Json("x"), Json(2.0)})
    EXPECT_THAT(refusal_with("rms_norm_eps", value), HasSubstr("rms_norm_eps"));
  for (const Json& value : {Json(-1), Json(32), Json("x"), Json(1.5)})
    EXPECT_THAT(refusal_with("eos_token_id", value), HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal_with("num_key_value_heads", 3),
              HasSubstr("num_key_value_heads: is 3, which does not divide"));
  EXPECT_THAT(refusal_with("num_hidden_layers", 16000), HasSubstr("the checkpoint has 21 tensors in all"));
  EXPECT_THAT(refusal_with("head_dim", 5), HasSubstr("head_dim: is 5"));
}

}  // namespace
}  // namespace llmq
