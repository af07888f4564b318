// Gemma 4's config and blocks: heads of two widths, keys that are values, experts beside the MLP, and what is
// refused. Their numbers are held by tests/golden/models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device/cuda/cuda_backend.h"
#include "model/embedding.h"
#include "scratch_gemma4.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string gemma4_refusal(const ScratchModel& model) {
  return error_of([&] { ModelSpec::read(model.open()); });
}

TEST(Gemma4, HeadsOfFullAttentionAreTheirOwn) {
  const ScratchGemma4 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_THAT(windows_of(spec), ElementsAre(5, 0));
  const AttentionSpec &sliding = *spec.blocks[0].attention(), &full = *spec.blocks[1].attention();
  EXPECT_EQ(sliding.head_dim, 4);
  EXPECT_EQ(sliding.kv_heads, 2);
  EXPECT_FALSE(sliding.value_is_key());
  EXPECT_EQ(full.head_dim, 8);
  EXPECT_EQ(full.kv_heads, 1);
  EXPECT_TRUE(full.value_is_key());
  EXPECT_EQ(full.scale, 1);
  EXPECT_EQ(full.rope.table, 0u);
  EXPECT_EQ(sliding.rope.table, 1u);
  EXPECT_EQ(spec.ropes[0].kind, RopeKind::kProportional);
  EXPECT_EQ(spec.ropes[0].angles, 1) << "a quarter of four";
  EXPECT_EQ(spec.ropes[0].theta, 1e6);
  EXPECT_EQ(spec.ropes[1].kind, RopeKind::kDefault);
  for (const NormSpec& norm : spec.blocks[0].norms) EXPECT_EQ(norm.offset, 0) << norm.gain.tensor;
}

TEST(Gemma4, NoScaleGoesThroughTheNormOfValues) {
  const ScratchGemma4 model;
  for (const BlockSpec& block : ModelSpec::read(model.open()).blocks) {
    EXPECT_FALSE(block.at(block.attention()->value_norm.value()).gain.exists());
    EXPECT_TRUE(std::holds_alternative<std::monostate>(block.at(block.attention()->inner).producer));
    EXPECT_EQ(block.at(block.sublayers.back().factor.value()).place.tensor, block.prefix + ".layer_scalar");
  }
}

TEST(Gemma4, HeadsMayBeSaidByBlock) {
  ScratchGemma4 model;
  model.config["global_head_dim"] = model.config["num_global_key_value_heads"] = nullptr;
  model.config["per_layer_config"] =
      Json::object({{"1", Json::object({{"head_dim", 8}, {"num_key_value_heads", 1}})}});
  EXPECT_EQ(ModelSpec::read(model.open()).blocks[1].attention()->head_dim, 8);
  model.config["global_head_dim"] = 16;
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("global_head_dim: is 16, and per_layer_config says 8"));
  for (const auto& [number, entry, said] :
       {std::tuple<const char*, Json, const char*>{"2", Json::object(), "names block \"2\""},
        {"one", Json::object(), "names block \"one\""},
        {"1", Json::object({{"head_dim", 7}}), "heads of 7 channels"},
        {"1", Json::object({{"head_dim", 8}, {"num_key_value_heads", 3}}), "3 KV heads"},
        {"1", Json::object({{"sliding_window", 3}}), "sliding_window"},
        {"1", Json(3), "per_layer_config.1"}}) {
    ScratchGemma4 other;
    other.config["global_head_dim"] = nullptr;
    other.config["per_layer_config"] = Json::object({{number, entry}});
    EXPECT_THAT(gemma4_refusal(other), HasSubstr(said));
  }
}

TEST(Gemma4, ExpertsStandBesideTheMlpAndTheRouterReadsTheStream) {
  ScratchGemma4 model;
  model.add_experts();
  const BlockSpec block = ModelSpec::read(model.open()).blocks[1];
  ASSERT_EQ(block.sublayers.size(), 3u);
  EXPECT_TRUE(block.sublayers[1].joins_next);
  EXPECT_EQ(block.at(block.sublayers[1].after.value()).gain.tensor,
            "model.layers.1.post_feedforward_layernorm_1.weight");
  EXPECT_EQ(block.at(block.sublayers[2].joint.value()).gain.tensor,
            "model.layers.1.post_feedforward_layernorm.weight");
  const MixtureSpec& mixture = *block.mixture();
  const NormSpec& read_by_router = block.at(mixture.router_norm.value());
  EXPECT_EQ(read_by_router.gain.tensor, "model.layers.1.router.scale");
  EXPECT_EQ(read_by_router.multiplier(2), 0.5f) << "1 / sqrt(16)";
  EXPECT_EQ(block.at(mixture.expert_scales.value()).place.tensor, "model.layers.1.router.per_expert_scale");
  const SiteSpec &routed = block.at(block.at(mixture.router).site), &experts = block.at(mixture.input);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(routed.producer));
  EXPECT_THAT(routed.readers, ElementsAre(mixture.router));
  EXPECT_EQ(block.at(std::get<NormGain>(experts.producer).norm).gain.tensor,
            "model.layers.1.pre_feedforward_layernorm_2.weight");
  EXPECT_EQ(experts.readers.size(), 4u) << "gate and up of two experts";
}

TEST(Gemma4, BlocksMaySharePages) {
  ScratchSharedGemma4 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.blocks[1].attention()->shared_pages, 0u);
  EXPECT_EQ(spec.blocks[1].pages.kv_heads, 0);
  EXPECT_EQ(spec.blocks[0].pages.head_dim, 8);
  EXPECT_EQ(spec.blocks[1].mlp()->width, 48);
  EXPECT_TRUE(spec.carried.parts.empty());
  model.tensors["model.layers.1.self_attn.k_proj.weight"] = scratch_ramp({8, 16});
  EXPECT_THAT(ModelSpec::read(model.open()).carried.parts, ElementsAre("model.layers.1.self_attn.k_proj"))
      << "what a release stores for them goes along";
}

TEST(Gemma4, ABlockSharesPagesOfItsKindThatAreThere) {
  ScratchSharedGemma4 model;
  model.config["num_kv_shared_layers"] = 2;
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("num_kv_shared_layers: is 2 of 2 blocks"));
  model.config["num_kv_shared_layers"] = 1;
  model.config["layer_types"] = Json::array({"sliding_attention", "full_attention"});
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("num_kv_shared_layers: lets block 1 read"));
}

TEST(Gemma4, BlocksMayHaveAnEmbedding) {
  ScratchGemma4 model;
  model.add_embedding();
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_FLOAT_EQ(spec.block_embedding->scale, 2) << "sqrt(8 / 2)";
  EXPECT_FLOAT_EQ(spec.block_embedding->norm.eps, 16 * 1e-5f);
  const BlockSpec& block = spec.blocks[1];
  EXPECT_EQ(block.embedded()->width, 8);
  ASSERT_EQ(block.sublayers.size(), 3u);
  EXPECT_TRUE(block.sublayers[2].factor) << "behind all of them";
  EXPECT_FALSE(block.sublayers[1].factor);
  for (const SiteId site : block.sublayers[2].sites)
    EXPECT_TRUE(std::holds_alternative<std::monostate>(block.at(site).producer));
  model.config["vocab_size_per_layer_input"] = 31;
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("vocab_size_per_layer_input: is 31, and vocab_size 32"));
}

// The same as a Gemma4ForConditionalGeneration with towers of two and of three blocks.
class ScratchGemma4WithTowers : public ScratchGemma4 {
 public:
  ScratchGemma4WithTowers() {
    Json text = config;
    text.erase("architectures");
    config = Json::object({{"architectures", Json::array({"Gemma4ForConditionalGeneration"})},
                           {"model_type", "gemma4"},
                           {"text_config", text},
                           {"image_token_id", 30},
                           {"vision_config", Json::object({{"num_hidden_layers", 2}})},
                           {"audio_config", Json::object({{"num_hidden_layers", 3}})}});
    std::map<std::string, ScratchTensor> named;
    for (auto& [name, tensor] : tensors)
      named[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = tensor;
    tensors = std::move(named);
    for (const char* block : {"0", "1"})
      tensors[fmt::format("model.vision_tower.encoder.layers.{}.mlp.weight", block)] = scratch_ramp({4});
    for (const char* block : {"0", "1", "2"})
      tensors[fmt::format("model.audio_tower.layers.{}.norm.weight", block)] = scratch_ramp({4});
    for (const char* embedder : {"embed_vision", "embed_audio"})
      tensors[fmt::format("model.{}.embedding_projection.weight", embedder)] = scratch_ramp({16, 4});
  }
};

TEST(Gemma4, TowersForImagesAndSoundAreCarried) {
  ScratchGemma4WithTowers model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(spec.family, "gemma4");
  EXPECT_EQ(spec.blocks[1].at(spec.blocks[1].sublayers.back().factor.value()).place.tensor,
            "model.language_model.layers.1.layer_scalar");
  EXPECT_THAT(spec.carried.parts, ElementsAre("model.vision_tower", "model.embed_vision", "model.audio_tower",
                                              "model.embed_audio"));
  model.config["audio_config"] = nullptr;
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("model.audio_tower.layers.0.norm.weight"))
      << "the config knows of no such tower";
}

TEST(Gemma4, ATowerForSoundHasItsOwnBlocks) {
  ScratchGemma4WithTowers model;
  model.config["audio_config"]["num_hidden_layers"] = 2;
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("is there, and audio_config says 2 blocks"));
  model.config["audio_config"]["num_hidden_layers"] = 4;
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("is missing, and the tower has 4 blocks"));
  for (const char* block : {"0", "1", "2"})
    model.tensors.erase(fmt::format("model.audio_tower.layers.{}.norm.weight", block));
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("audio_tower"));
}

// A step makes the shares of all blocks, calibration those of one.
TEST(Gemma4, BothWaysToABlocksEmbeddingHaveTheSameBits) {
  ScratchGemma4 model;
  model.add_embedding();
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const BlockEmbeddingSpec& own = *spec.block_embedding;
  const std::vector<std::vector<std::int32_t>> samples = {{3, 31, 0}, {7, 7, 12}};
  const std::vector<std::int32_t> ids = {3, 31, 0, 7, 7, 12};
  for (const auto& backend :
       {make_reference_backend(), make_fake_backend(), make_cpu_backend(2), make_emulated_cuda_backend(1)}) {
    const auto floats = [&](std::int64_t rows, std::int64_t columns) {
      return backend->allocate(static_cast<std::size_t>(rows * columns) * sizeof(float));
    };
    const Buffer stored = floats(33, 16), before = floats(6, 16), all = floats(6, 16), one = floats(6, 8);
    const TensorView table = stored.view(DType::kF32, {33, 16}), hidden = before.view(DType::kF32, {6, 16}),
                     embedded = all.view(DType::kF32, {6, 16}), share = one.view(DType::kF32, {6, 8});
    backend->upload(table, checkpoint.read_float32(checkpoint.at(own.table)).data());
    embed_samples(*backend, spec, checkpoint, samples, hidden);
    const std::vector<float> values = checkpoint.read_float32(checkpoint.at(own.weight()));
    const auto projection =
        backend->prepare(TensorView(values.data(), DType::kF32, {16, 16}), Compute::kFloat32);
    const NormWeights norm =
        load_norm(*backend, own.norm, checkpoint.read_float32(checkpoint.at(own.norm.gain.tensor)), {});
    embed_blocks(*backend, Compute::kFloat32, own, {table, *projection, norm}, ids, hidden, embedded);
    std::vector<float> wide(6 * 16), narrow(6 * 8);
    backend->download(wide.data(), embedded);
    for (std::size_t block = 0; block < 2; ++block) {
      SampledBlockEmbedding(*backend, Compute::kFloat32, spec, checkpoint, block).embed(samples, share);
      backend->download(narrow.data(), share);
      for (std::size_t i = 0; i < narrow.size(); ++i)
        EXPECT_EQ(narrow[i], wide[i / 8 * 16 + block * 8 + i % 8]) << backend->name() << ", block " << block;
    }
  }
}

TEST(Gemma4, OtherFormsAreRefusedByName) {
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"use_bidirectional_attention", "all"},
        {"hidden_activation", "silu"},
        {"final_logit_softcapping", -30.0},
        {"attn_logit_softcapping", 50.0},
        {"query_pre_attn_scalar", 256},
        {"rope_theta", 10000.0},
        {"layer_types", Json::array({"full_attention", "sliding_attention"})},
        {"layer_types", Json::array({"chunked_attention", "full_attention"})},
        {"global_head_dim", 9},
        {"num_global_key_value_heads", 3},
        {"sliding_window", 0},
        {"enable_moe_block", true},
        {"rope_parameters",
         Json::object({{"full_attention",
                        Json::object({{"rope_type", "proportional"}, {"partial_rotary_factor", 1.5}})}})},
        {"rope_parameters", Json::object({{"full_attention", Json::object()}})}}) {
    ScratchGemma4 model;
    model.config[key] = value;
    EXPECT_THAT(gemma4_refusal(model),
                HasSubstr(key == std::string("enable_moe_block") ? "num_experts" : key));
  }
}

TEST(Gemma4, ARowHasNoMoreExpertsThanThereAre) {
  ScratchGemma4 model;
  model.add_experts();
  model.config["top_k_experts"] = 3;
  EXPECT_THAT(gemma4_refusal(model), HasSubstr("top_k_experts: is 3, and there are 2 experts"));
}

}  // namespace
}  // namespace llmq
