// Qwen3-Next and Qwen3.5 as GGUF: where rows and columns of a delta net lie there, and that they come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "export/gguf/family_limits.h"
#include "io/gguf_parts.h"
#include "model/gguf/gguf_fields.h"
#include "model/linear_source.h"
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

// Of the golden models, whose keys and values have other widths.
constexpr std::int64_t kHidden = 32, kKeyHeads = 2, kEach = 2, kWidth = 8, kKeys = kKeyHeads * kWidth,
                       kValues = kEach * kKeys;

// With values as wide as keys, as llama.cpp has them, a tokenizer, and real sizes of what predicts a token.
class ScratchHybrid : public ScratchGolden {
 public:
  explicit ScratchHybrid(const std::string& name) : ScratchGolden(name) {
    config["linear_value_head_dim"] = kWidth;
    const std::string at = "model.layers.0.linear_attn.";
    std::uint32_t seed = 7;
    const auto put = [&](const std::string& ending, std::vector<std::int64_t> shape) {
      tensors[at + ending] = noise_tensor(std::move(shape), ++seed);
    };
    put("conv1d.weight", {2 * kKeys + kValues, 1, 4});
    put("norm.weight", {kWidth}), put("out_proj.weight", {kHidden, kValues});
    put("A_log", {kEach * kKeyHeads});
    if (name == "qwen3_next") {
      put("in_proj_qkvz.weight", {2 * kKeys + 2 * kValues, kHidden});
    } else {
      put("in_proj_qkv.weight", {2 * kKeys + kValues, kHidden}), put("in_proj_z.weight", {kValues, kHidden});
    }
    std::erase_if(tensors, [](const auto& tensor) { return tensor.first.starts_with("mtp."); });
  }
  void add_mtp() {
    for (const char* norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      tensors[fmt::format("mtp.{}.weight", norm)] = noise_tensor({kHidden}, 3);
    tensors["mtp.fc.weight"] = noise_tensor({kHidden, 2 * kHidden}, 4);
    tensors["mtp.layers.0.mlp.experts.gate_up_proj"] = noise_tensor({5, 16, kHidden}, 5);
    tensors["mtp.layers.0.mlp.experts.down_proj"] = noise_tensor({5, kHidden, 8}, 6);
    tensors["mtp.layers.0.self_attn.q_norm.weight"] = noise_tensor({16}, 8);
  }
  // Of a tensor of block 0's delta net.
  std::vector<float> values(const std::string& ending) {
    return floats_of(tensors.at("model.layers.0.linear_attn." + ending));
  }
};

class HybridGguf : public ::testing::Test, protected testing::WrittenGguf {
 protected:
  std::string shape_of(const std::string& name) const {
    const GgufTensor* const tensor = find_gguf_tensor(file_->header, name);
    return tensor == nullptr ? "missing" : tensor->shape.text();
  }
};

// Row `row` of [rows, columns].
std::vector<float> row_of(const std::vector<float>& values, std::int64_t columns, std::int64_t row) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(row * columns);
  return {first, first + static_cast<std::ptrdiff_t>(columns)};
}

// The converter's split of [q, k, v, z] of each key head.
TEST_F(HybridGguf, Qwen3NextsHeadsAreTakenApart) {
  ScratchHybrid model("qwen3_next");
  write(model);
  const std::vector<float> all = model.values("in_proj_qkvz.weight"), qkv = stored("blk.0.attn_qkv.weight"),
                           gate = stored("blk.0.attn_gate.weight");
  const std::int64_t group = 2 * kWidth + 2 * kEach * kWidth;
  for (std::int64_t head = 0; head < kKeyHeads; ++head) {
    for (std::int64_t i = 0; i < kWidth; ++i) {
      EXPECT_EQ(row_of(qkv, kHidden, head * kWidth + i), row_of(all, kHidden, head * group + i));
      EXPECT_EQ(row_of(qkv, kHidden, kKeys + head * kWidth + i),
                row_of(all, kHidden, head * group + kWidth + i));
    }
    for (std::int64_t i = 0; i < kEach * kWidth; ++i) {
      const std::int64_t value = head * kEach * kWidth + i;
      EXPECT_EQ(row_of(qkv, kHidden, 2 * kKeys + value), row_of(all, kHidden, head * group + 2 * kWidth + i));
      EXPECT_EQ(row_of(gate, kHidden, value),
                row_of(all, kHidden, head * group + 2 * kWidth + kEach * kWidth + i));
    }
  }
  EXPECT_EQ(stored("blk.0.ssm_out.weight"), model.values("out_proj.weight")) << "which Qwen3-Next leaves";
  EXPECT_EQ(stored("blk.0.ssm_ba.weight"), model.values("in_proj_ba.weight"));
  EXPECT_EQ(shape_of("blk.0.ssm_conv1d.weight"), "[64, 4]");
  EXPECT_EQ(file_->header.find("qwen3next.nextn_predict_layers"), nullptr);
}

// Head `each` of key head `key` is head each * key_heads + key there.
TEST_F(HybridGguf, Qwen35sValueHeadsGoInTurn) {
  ScratchHybrid model("qwen3_5_text");
  write(model);
  const std::vector<float> qkv = model.values("in_proj_qkv.weight"), z = model.values("in_proj_z.weight"),
                           out = model.values("out_proj.weight"), conv = model.values("conv1d.weight"),
                           log = model.values("A_log"), a = model.values("in_proj_a.weight"),
                           b = model.values("in_proj_b.weight"), shift = model.values("dt_bias");
  for (std::int64_t row = 0; row < 2 * kKeys; ++row)
    EXPECT_EQ(row_of(stored("blk.0.attn_qkv.weight"), kHidden, row), row_of(qkv, kHidden, row));
  for (std::int64_t key = 0; key < kKeyHeads; ++key)
    for (std::int64_t each = 0; each < kEach; ++each) {
      const std::int64_t there = each * kKeyHeads + key, here = key * kEach + each;
      EXPECT_EQ(row_of(stored("blk.0.ssm_alpha.weight"), kHidden, there), row_of(a, kHidden, here));
      EXPECT_EQ(row_of(stored("blk.0.ssm_beta.weight"), kHidden, there), row_of(b, kHidden, here));
      const auto at = static_cast<std::size_t>(there), from = static_cast<std::size_t>(here);
      EXPECT_FLOAT_EQ(stored("blk.0.ssm_a")[at], -std::exp(log[from]));
      EXPECT_EQ(stored("blk.0.ssm_dt.bias")[at], shift[from]);
      for (std::int64_t i = 0; i < kWidth; ++i) {
        const std::int64_t row = there * kWidth + i, source = here * kWidth + i;
        EXPECT_EQ(row_of(stored("blk.0.attn_gate.weight"), kHidden, row), row_of(z, kHidden, source));
        EXPECT_EQ(row_of(stored("blk.0.attn_qkv.weight"), kHidden, 2 * kKeys + row),
                  row_of(qkv, kHidden, 2 * kKeys + source));
        EXPECT_EQ(row_of(stored("blk.0.ssm_conv1d.weight"), 4, 2 * kKeys + row),
                  row_of(conv, 4, 2 * kKeys + source));
        for (const std::int64_t r : {0, 31})
          EXPECT_EQ(stored("blk.0.ssm_out.weight")[static_cast<std::size_t>(r * kValues + row)],
                    out[static_cast<std::size_t>(r * kValues + source)]);
      }
    }
  EXPECT_EQ(file_->header.integers("qwen35.rope.dimension_sections"),
            (std::vector<std::int64_t>{2, 1, 1, 0}));
  EXPECT_EQ(file_->header.integers("qwen35.attention.recurrent_layers"), (std::vector<std::int64_t>{1, 0}));
  // Norms are what they multiply by; the delta net's is that already.
  const std::vector<float> norm = floats_of(model.tensors.at("model.norm.weight"));
  EXPECT_EQ(stored("output_norm.weight")[3], 1 + norm[3]);
  EXPECT_EQ(stored("blk.0.ssm_norm.weight"), model.values("norm.weight"));
}

class HybridBack : public HybridGguf, public ::testing::WithParamInterface<const char*> {};

TEST_P(HybridBack, GivesBackStructureAndWeights) {
  ScratchHybrid model(GetParam());
  const Checkpoint before = model.open();
  write(model);
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  const ModelSpec spec = ModelSpec::read(before), read = ModelSpec::read(after);
  EXPECT_EQ(read.family, spec.family);
  EXPECT_EQ(read.ropes[0].theta, spec.ropes[0].theta);
  EXPECT_EQ(read.ropes[0].dims, spec.ropes[0].dims);
  ASSERT_EQ(read.blocks.size(), spec.blocks.size());
  const DeltaSpec &a = *read.blocks[0].delta(), &b = *spec.blocks[0].delta();
  EXPECT_EQ(a.heads.value_heads, b.heads.value_heads);
  EXPECT_EQ(a.heads.value_dim, b.heads.value_dim);
  EXPECT_EQ(a.taps, b.taps);
  ASSERT_NE(read.blocks[1].attention(), nullptr);
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  for (const StoredTensor& tensor : before.tensors()) {
    const std::vector<float> wanted = before.read_float32(tensor),
                             found = after.read_float32(after.at(tensor.name));
    EXPECT_EQ(after.at(tensor.name).view.shape, tensor.view.shape) << tensor.name;
    ASSERT_EQ(found.size(), wanted.size());
    const bool rounded = tensor.name.ends_with("norm.weight");  // of 1 + w
    for (std::size_t k = 0; k < wanted.size(); ++k)
      EXPECT_NEAR(found[k], wanted[k],
                  rounded                          ? 0x1p-22f
                  : tensor.name.ends_with("A_log") ? 0x1p-24f
                                                   : 0)
          << tensor.name << " " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HybridBack,
                         ::testing::Values("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
                         [](const auto& instance) { return std::string(instance.param); });

// -exp(x) of what comes back is the number of the file.
TEST(GgufParts, ARateIsFoundAgain) {
  for (float x = -9; x < 9; x += 0.0137f) EXPECT_EQ(minus_exp(inverse_minus_exp(minus_exp(x))), minus_exp(x));
  EXPECT_TRUE(std::isnan(inverse_minus_exp(1.0f)));
}

TEST_F(HybridGguf, WhatPredictsFurtherTokensIsABlockBehindTheLast) {
  ScratchHybrid model("qwen3_5_moe_text");
  model.add_mtp();
  const Checkpoint before = model.open();
  write(model);
  EXPECT_EQ(file_->header.integer("qwen35moe.block_count"), 3);
  EXPECT_EQ(file_->header.integer("qwen35moe.nextn_predict_layers"), 1);
  EXPECT_EQ(file_->header.integers("qwen35moe.attention.recurrent_layers").size(), 3u);
  EXPECT_EQ(shape_of("blk.2.nextn.eh_proj.weight"), "[32, 64]");
  EXPECT_EQ(shape_of("blk.2.ffn_gate_exps.weight"), "[5, 8, 32]");
  const std::vector<float> both = floats_of(model.tensors.at("mtp.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_EQ(row_of(stored("blk.2.ffn_up_exps.weight"), kHidden, 2 * 8 + 5),
            row_of(both, kHidden, 2 * 16 + 8 + 5));
  EXPECT_EQ(stored("blk.2.nextn.hnorm.weight")[5],
            1 + floats_of(model.tensors.at("mtp.pre_fc_norm_hidden.weight"))[5]);
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  const ModelSpec read = ModelSpec::read(after);
  EXPECT_EQ(read.blocks.size(), 2u);
  EXPECT_EQ(read.carried.parts, std::vector<std::string>{"mtp"});
  EXPECT_EQ(after.read_float32(after.at("mtp.fc.weight")), before.read_float32(before.at("mtp.fc.weight")));
  EXPECT_EQ(after.at("mtp.layers.0.mlp.experts.2.up_proj.weight").view.shape, (Shape{8, kHidden}));
}

// As llama-quantize has it, which counts no outer extents of 1.
TEST_F(HybridGguf, TheGateOfASharedExpertIsAVectorInBlockTypes) {
  ScratchHybrid model("qwen3_5_moe_text");
  write(model);
  EXPECT_EQ(shape_of("blk.0.ffn_gate_inp_shexp.weight"), "[1, 32]");
  write(model, "q4_0");
  EXPECT_EQ(shape_of("blk.0.ffn_gate_inp_shexp.weight"), "[32]");
  EXPECT_EQ(shape_of("blk.0.ssm_conv1d.weight"), "[64, 4]");
  EXPECT_EQ(find_gguf_tensor(file_->header, "blk.0.ssm_conv1d.weight")->dtype, DType::kF32);
  EXPECT_EQ(ModelSpec::read(open_checkpoint(system_io(), path().string())).blocks.size(), 2u);
}

// Rows of codes are put in order, too.
TEST_F(HybridGguf, CodesComeBackInOrder) {
  ScratchHybrid model("qwen3_5_text");
  write(model, "q8_0");
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  const LinearSource source = LinearSource::open(after);
  for (const char* const name : {"in_proj_qkv", "in_proj_z"}) {
    const std::string weight = fmt::format("model.layers.0.linear_attn.{}.weight", name);
    const std::optional<QuantizedMatrix> codes = source.block_codes(weight);
    ASSERT_TRUE(codes.has_value()) << name;
    std::vector<float> values(codes->codes.size());
    dequantize(*codes, values);
    EXPECT_EQ(values, after.read_float32(after.at(weight))) << name;
  }
  EXPECT_FALSE(source.block_codes("model.layers.0.linear_attn.out_proj.weight").has_value())
      << "whose columns lie in another order";
}

// As the converter writes it, whose tower is a file of its own.
TEST_F(HybridGguf, ADecoderIsWrittenWithoutItsTower) {
  const ScratchGolden model("qwen3_5");
  const Checkpoint before = model.open();
  write(model);
  EXPECT_EQ(file_->header.string("general.architecture"), "qwen35");
  EXPECT_EQ(file_->header.integer("qwen35.feed_forward_length"), 40);
  const Checkpoint after = open_checkpoint(system_io(), path().string());
  EXPECT_EQ(ModelSpec::read(after).family, "qwen3_5_text");
  const auto towers = std::count_if(before.tensors().begin(), before.tensors().end(), [](const auto& tensor) {
    return tensor.name.starts_with("model.visual.");
  });
  EXPECT_EQ(std::ssize(after.tensors()), std::ssize(before.tensors()) - towers);
  EXPECT_EQ(after.read_float32(after.at("model.layers.0.linear_attn.out_proj.weight")),
            before.read_float32(before.at("model.language_model.layers.0.linear_attn.out_proj.weight")));
  const ScratchGolden other("qwen3_vl");
  expect_refusal(ErrorKind::kUnsupported, "a qwen3_vl is not written as GGUF",
                 [&] { check_gguf_family(ModelSpec::read(other.open()), "m"); });
}

TEST_F(HybridGguf, RefusesWhatLlamaCppDoesNotKnow) {
  const ScratchGolden wide("qwen3_5_text");
  expect_refusal(ErrorKind::kUnsupported, "linear_value_head_dim: is 12",
                 [&] { check_gguf_family(ModelSpec::read(wide.open()), "m"); });
  ScratchHybrid some("qwen3_next");
  some.config["norm_topk_prob"] = false;
  expect_refusal(ErrorKind::kUnsupported, "always divides the weights", [&] { write(some); });
  some.add_mtp();
  some.config["norm_topk_prob"] = true;
  some.tensors["mtp.unknown.weight"] = noise_tensor({2}, 1);
  expect_refusal(ErrorKind::kUnsupported, "mtp.unknown.weight", [&] { write(some); });
}

}  // namespace
}  // namespace llmq
