// FP8 with a scale for each block, as DeepSeek V3 is published: numbers from opening on, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/half.h"
#include "model/linear_source.h"
#include "scratch_golden.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

const std::string kBlockScaled = "model.layers.0.self_attn.q_proj.weight";

// Blocks of 5 x 7, of which those at the ends of 16 x 16 are cut.
struct ScratchFloat8 : ScratchModel {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  ScratchFloat8() {
    for (int i = 0; i < 256; ++i)
      codes.push_back(static_cast<std::uint8_t>((i * 37 + 11) % 126 + i % 2 * 128));
    for (int i = 0; i < 4 * 3; ++i) scales.push_back(0.01f * static_cast<float>(i + 1));
    tensors[kBlockScaled] = scratch_tensor("F8_E4M3", {16, 16}, codes);
    tensors[kBlockScaled + "_scale_inv"] = scratch_tensor("F32", {4, 3}, scales);
    config["quantization_config"] = Json::object({{"quant_method", "fp8"},
                                                  {"fmt", "e4m3"},
                                                  {"activation_scheme", "dynamic"},
                                                  {"weight_block_size", Json::array({5, 7})}});
  }
  std::string refused() const {
    return error_of([&] { ModelSpec::read(open()); });
  }
  std::string refused(const char* key, const Json& value) {
    const Json before = config["quantization_config"];
    config["quantization_config"][key] = value;
    const std::string found = refused();
    config["quantization_config"] = before;
    return found;
  }
};

TEST(Float8Blocks, AreTheNumbersThatTheyStandFor) {
  const ScratchFloat8 model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  EXPECT_EQ(checkpoint.find(kBlockScaled + "_scale_inv"), nullptr);
  const StoredTensor& tensor = checkpoint.at(kBlockScaled);
  EXPECT_FALSE(tensor.in_order());
  std::vector<float> wanted;
  for (std::size_t row = 0; row < 16; ++row)
    for (std::size_t column = 0; column < 16; ++column)
      wanted.push_back(to_float(Float8{model.codes[row * 16 + column]}) *
                       model.scales[row / 5 * 3 + column / 7]);
  EXPECT_EQ(checkpoint.read_float32(tensor), wanted);
  // It is dense to whoever runs or quantizes it.
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.format(), PackedFormat::kNone);
  ThreadPool pool(2);
  const ZeroedNumbers<float> weight = source.weight(spec.blocks[0].linears[0], pool);
  EXPECT_EQ(std::vector<float>(weight.begin(), weight.end()), wanted);
}

TEST(Float8Blocks, WhatIsNoneIsRefusedByName) {
  ScratchFloat8 model;
  EXPECT_EQ(model.refused(), "");
  EXPECT_THAT(model.refused("weight_block_size", nullptr),
              HasSubstr("weight_block_size: is no pair of sizes"));
  EXPECT_THAT(model.refused("weight_block_size", Json::array({5, 0})),
              HasSubstr("weight_block_size: is no pair"));
  EXPECT_THAT(model.refused("weight_block_size", Json::array({5, 8})),
              HasSubstr("scales F32 of shape [4, 3]"));
  EXPECT_THAT(model.refused("activation_scheme", "static"), HasSubstr("activation_scheme: is \"static\""));
  EXPECT_THAT(model.refused("fmt", "e5m2"), HasSubstr("fmt: is \"e5m2\""));
  EXPECT_THAT(model.refused("zero_points", true), HasSubstr("zero_points: this field is not known"));
  model.tensors[kBlockScaled + "_scale_inv"] =
      scratch_tensor("I32", {4, 3}, std::vector<std::int32_t>(12, 1));
  EXPECT_THAT(model.refused(), HasSubstr("with scales I32"));
  model.tensors.erase(kBlockScaled + "_scale_inv");
  EXPECT_THAT(model.refused(), HasSubstr(kBlockScaled + ": is FP8, and its scales are missing: no " +
                                         kBlockScaled + "_scale_inv"));
  ScratchFloat8 lost;
  lost.tensors["model.layers.0.self_attn.lost.weight_scale_inv"] = scratch_ramp({1, 1});
  EXPECT_THAT(lost.refused(), HasSubstr("self_attn.lost.weight: has scales in"));
}

TEST(Float8Blocks, AScaleThatIsNoNumberIsRefusedWhereItIsRead) {
  ScratchFloat8 model;
  model.scales[4] = std::numeric_limits<float>::quiet_NaN();
  model.tensors[kBlockScaled + "_scale_inv"] = scratch_tensor("F32", {4, 3}, model.scales);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  ThreadPool pool(1);
  EXPECT_THAT(error_of([&] { LinearSource::open(checkpoint).weight(spec.blocks[0].linears[0], pool); }),
              HasSubstr(kBlockScaled));
}

}  // namespace
}  // namespace llmq
