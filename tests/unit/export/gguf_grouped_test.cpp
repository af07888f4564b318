// GLM-4.5, DeepSeek V2 and V3 and GLM-4.7-Flash as GGUF: blocks with an MLP first, heads' parts of kv_b_proj
// as stacks of their own, blocks behind the last.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "export/gguf/family_limits.h"
#include "model/gguf/gguf_fields.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"
#include "tests/unit/model/scratch_golden.h"
#include "tests/unit/model/scratch_mixture.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::kFewLetters;
using testing::TemporaryDirectory;
using testing::to_gguf;

// A golden model as llama.cpp would have it: without biases that it has no place for, and with a rope that
// grows evenly.
class ScratchGrouped : public ScratchGolden {
 public:
  explicit ScratchGrouped(const std::string& name) : ScratchGolden(name) {
    if (name == "glm4_moe") return;
    config["attention_bias"] = false;
    if (name.find("v2") == std::string::npos) config["rope_interleave"] = true;
    std::erase_if(tensors, [](const auto& tensor) {
      return tensor.first.ends_with("proj.bias") || tensor.first.ends_with("with_mqa.bias");
    });
    for (const char* const place : {"rope_parameters", "rope_scaling"})
      if (const Json* const rope = config.find(place); rope != nullptr && rope->is_object())
        if (rope->find("mscale_all_dim") != nullptr) config[place]["mscale"] = rope->at("mscale_all_dim");
  }
};

class GroupedGguf : public ::testing::TestWithParam<const char*>, protected testing::WrittenGguf {};

TEST_P(GroupedGguf, GivesBackStructureAndWeights) {
  const ScratchGrouped model(GetParam());
  const Checkpoint before = model.open();
  write(model);
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  const ModelSpec spec = ModelSpec::read(before), read = ModelSpec::read(after);
  ASSERT_EQ(read.blocks.size(), spec.blocks.size());
  EXPECT_EQ(read.ropes[0].dims, spec.ropes[0].dims);
  EXPECT_EQ(read.ropes[0].factor, spec.ropes[0].factor);
  EXPECT_EQ(read.ropes[0].mscale_all_dim, spec.ropes[0].mscale_all_dim);
  EXPECT_EQ(read.ropes[0].beta_slow, spec.ropes[0].beta_slow);
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const MixtureSpec *const a = read.blocks[i].mixture(), *const b = spec.blocks[i].mixture();
    ASSERT_EQ(a != nullptr, b != nullptr) << i;
    if (b != nullptr) {
      EXPECT_EQ(a->groups, b->groups);
      EXPECT_EQ(a->kept_groups, b->kept_groups);
      EXPECT_EQ(a->top_k, b->top_k);
      EXPECT_EQ(a->normalized, b->normalized);
      EXPECT_FLOAT_EQ(static_cast<float>(a->weight_scale), static_cast<float>(b->weight_scale));
      EXPECT_EQ(a->shared_width, b->shared_width);
      EXPECT_EQ(a->score, b->score);
    }
    if (const LatentAttentionSpec* const latent = spec.blocks[i].latent_attention()) {
      const LatentAttentionSpec& found = *read.blocks[i].latent_attention();
      EXPECT_EQ(found.scale, latent->scale);
      EXPECT_EQ(found.plain, latent->plain);
      EXPECT_EQ(found.value_dim, latent->value_dim);
      EXPECT_EQ(found.query_rank, latent->query_rank);
      EXPECT_EQ(found.rope.pairs, latent->rope.pairs);
    }
  }
  for (const StoredTensor& tensor : before.tensors()) {
    if (spec.carried.carries(tensor.name)) continue;  // what DeepSeek carries along is left out
    EXPECT_EQ(after.read_float32(after.at(tensor.name)), before.read_float32(tensor)) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GroupedGguf,
                         ::testing::Values("glm4_moe", "deepseek_v2-lite", "deepseek_v3", "glm4_moe_lite"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

using LatentGguf = GroupedGguf;

TEST_F(LatentGguf, HeadsPartsAreStacksOfTheirOwn) {
  ScratchGrouped model("deepseek_v3");
  write(model);
  constexpr std::int64_t kHeads = 4, kPlain = 6, kValue = 10, kRank = 16, kOfHead = kPlain + kValue;
  EXPECT_EQ(find_gguf_tensor(file_->header, "blk.0.attn_k_b.weight")->shape, (Shape{kHeads, kRank, kPlain}));
  EXPECT_EQ(find_gguf_tensor(file_->header, "blk.0.attn_v_b.weight")->shape, (Shape{kHeads, kValue, kRank}));
  const std::vector<float> both = floats_of(model.tensors.at("model.layers.0.self_attn.kv_b_proj.weight")),
                           keys = stored("blk.0.attn_k_b.weight"), values = stored("blk.0.attn_v_b.weight");
  const auto at = [](const std::vector<float>& of, std::int64_t i) {
    return of[static_cast<std::size_t>(i)];
  };
  for (std::int64_t head = 0; head < kHeads; ++head)
    for (std::int64_t c = 0; c < kRank; ++c) {
      for (std::int64_t i = 0; i < kPlain; ++i)
        EXPECT_EQ(at(keys, (head * kRank + c) * kPlain + i), at(both, (head * kOfHead + i) * kRank + c));
      for (std::int64_t i = 0; i < kValue; ++i)
        EXPECT_EQ(at(values, (head * kValue + i) * kRank + c),
                  at(both, (head * kOfHead + kPlain + i) * kRank + c));
    }
  EXPECT_EQ(file_->header.integer("deepseek2.attention.head_count_kv"), 1);
  EXPECT_EQ(file_->header.integer("deepseek2.attention.key_length"), kRank + 4);
  EXPECT_EQ(file_->header.integer("deepseek2.attention.key_length_mla"), kPlain + 4);
  EXPECT_EQ(file_->header.integer("deepseek2.expert_gating_func"), 2) << "or llama.cpp takes a softmax";
  EXPECT_FLOAT_EQ(static_cast<float>(file_->header.number("deepseek2.rope.scaling.yarn_log_multiplier")),
                  0.07f);
}

TEST_F(LatentGguf, GlmsBlockBehindTheLastIsOneThere) {
  ScratchGrouped model("glm4_moe");
  model.tensors["model.layers.2.eh_proj.weight"] = noise_tensor({32, 64}, 1);
  model.tensors["model.layers.2.shared_head.norm.weight"] = noise_tensor({32}, 2);
  for (int e = 0; e < 11; ++e)
    model.tensors[fmt::format("model.layers.2.mlp.experts.{}.up_proj.weight", e)] =
        noise_tensor({2, 32}, static_cast<std::uint32_t>(10 + e));
  write(model);
  EXPECT_EQ(file_->header.integer("glm4moe.block_count"), 3);
  EXPECT_EQ(file_->header.integer("glm4moe.nextn_predict_layers"), 1);
  EXPECT_EQ(file_->header.integer("glm4moe.leading_dense_block_count"), 1);
  EXPECT_EQ(stored("blk.2.nextn.shared_head_norm.weight"),
            floats_of(model.tensors.at("model.layers.2.shared_head.norm.weight")));
  const std::vector<float> last = floats_of(model.tensors.at("model.layers.2.mlp.experts.10.up_proj.weight")),
                           stack = stored("blk.2.ffn_up_exps.weight");
  EXPECT_EQ(std::vector<float>(stack.end() - 64, stack.end()), last) << "numbers are no texts";
  for (int e = 6; e < 11; ++e)  // as many as other blocks have
    model.tensors.erase(fmt::format("model.layers.2.mlp.experts.{}.up_proj.weight", e));
  write(model);
  const ModelSpec read = ModelSpec::read(open_checkpoint(system_io(), path().string()));
  EXPECT_EQ(read.blocks.size(), 2u);
  EXPECT_EQ(read.carried.parts, std::vector<std::string>{"model.layers.2"});
}

TEST_F(LatentGguf, RefusesWhatLlamaCppDoesNotKnow) {
  const auto refused = [](const char* part, const char* name, auto change) {
    SCOPED_TRACE(part);
    ScratchGrouped model(name);
    change(model);
    expect_refusal(ErrorKind::kUnsupported, part,
                   [&] { check_gguf_family(ModelSpec::read(model.open()), "m"); });
  };
  refused("rope_interleave: is false", "deepseek_v3", [](auto& m) { m.config["rope_interleave"] = false; });
  refused("takes mscale and mscale_all_dim for equal ones", "deepseek_v3",
          [](auto& m) { m.config["rope_parameters"]["mscale"] = 0.5; });
  // The best two of a group count there, and DeepSeek-V2 counts the best one.
  refused("scores experts in another way", "deepseek_v2", [](auto&) {});
}

}  // namespace
}  // namespace llmq
