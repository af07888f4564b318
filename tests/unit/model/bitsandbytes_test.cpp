// Weights of bitsandbytes: to the bit what the package dequantizes them to, and what is refused.
//
// bitsandbytes.safetensors was written by bitsandbytes 0.50.2 (make_bitsandbytes.py beside it).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "io/codes/first_rounding.h"
#include "model/linear_source.h"
#include "scratch_golden.h"
#include "tests/support/temporary_directory.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

const Path kPackage = Path(LLMQ_SOURCE_DIR) / "tests/unit/model/fixtures/bitsandbytes.safetensors";

Checkpoint open_package(const testing::TemporaryDirectory& disk) {
  std::filesystem::copy_file(kPackage, disk / "model.safetensors");
  write_text_atomically(system_io(), disk / "config.json",
                        R"({"quantization_config": {"quant_method": "bitsandbytes"}})");
  return Checkpoint::open(system_io(), disk.path().string());
}

TEST(BitsAndBytes, AreTheNumbersOfThePackage) {
  const testing::TemporaryDirectory disk;
  const Checkpoint checkpoint = open_package(disk);
  for (const std::string name : {"plain", "nested", "single", "half", "short", "bytes"}) {
    const StoredTensor& weight = checkpoint.at(name + ".weight");
    const StoredTensor& values = checkpoint.at(name + ".values");
    EXPECT_TRUE(weight.is_scaled());
    EXPECT_EQ(weight.view.shape, values.view.shape) << name;
    EXPECT_EQ(checkpoint.read_float32(weight), checkpoint.read_float32(values)) << name;
    ThreadPool pool(3);
    std::vector<float> shared(static_cast<std::size_t>(values.view.shape.elements()));
    checkpoint.read_float32(weight, shared, pool);
    EXPECT_EQ(shared, checkpoint.read_float32(values)) << name;
  }
  for (const auto& [name, form] : {std::pair{"nested", "NF4"}, {"half", "FP4"}, {"bytes", "LLM.int8"}})
    EXPECT_EQ(first_rounding(checkpoint.at(std::string(name) + ".weight")), form);
  EXPECT_EQ(first_rounding(checkpoint.at("plain.values")), "");
  EXPECT_EQ(checkpoint.tensors().size(), 16u)
      << "weights, values and numbers; nothing that stands beside them";
}

TEST(BitsAndBytes, CodesOfWholeRowsHaveTheNumbersOfThePackage) {
  const testing::TemporaryDirectory disk;
  const Checkpoint checkpoint = open_package(disk);
  for (const std::string name : {"nested", "single"}) {
    const std::optional<QuantizedMatrix> codes = checkpoint.read_codes(checkpoint.at(name + ".weight"));
    ASSERT_TRUE(codes.has_value()) << name;
    std::vector<float> values(codes->codes.size());
    dequantize(*codes, values);
    EXPECT_EQ(values, checkpoint.read_float32(checkpoint.at(name + ".values"))) << name;
  }
  for (const std::string name :
       {"plain.weight", "half.weight", "short.weight", "bytes.weight", "plain.values"})
    EXPECT_FALSE(checkpoint.read_codes(checkpoint.at(name))) << name << ": blocks of several rows, or none";
}

const std::string kWeightOfFour = "model.layers.0.self_attn.q_proj.weight";

struct ScratchFourBits : ScratchModel {
  std::string state = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [16, 16]})";

  ScratchFourBits() {
    std::vector<std::uint8_t> codes;
    for (int i = 0; i < 128; ++i) codes.push_back(static_cast<std::uint8_t>(i * 37));
    std::vector<float> map;
    for (int i = 0; i < 16; ++i) map.push_back(static_cast<float>(i - 8) / 8);
    tensors[kWeightOfFour] = scratch_tensor("U8", {128, 1}, codes);
    tensors[kWeightOfFour + ".absmax"] = scratch_tensor("F32", {4}, std::vector<float>{1, 2, 3, 4});
    tensors[kWeightOfFour + ".quant_map"] = scratch_tensor("F32", {16}, map);
    config["quantization_config"] = Json::object(
        {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}});
  }
  std::string refused() {
    tensors[kWeightOfFour + ".quant_state.bitsandbytes__nf4"] =
        scratch_tensor("U8", {std::ssize(state)}, std::vector<std::uint8_t>(state.begin(), state.end()));
    return error_of([&] { ModelSpec::read(open()); });
  }
  std::string refused(const std::string& said, const std::string& instead) {
    const std::string before = state;
    state.replace(state.find(said), said.size(), instead);
    const std::string found = refused();
    state = before;
    return found;
  }
};

TEST(BitsAndBytes, AModelOfThemIsDense) {
  ScratchFourBits model;
  ASSERT_EQ(model.refused(), "");
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.format(), PackedFormat::kNone);
  ThreadPool pool(2);
  const ZeroedNumbers<float> weight = source.weight(spec.blocks[0].linears[0], pool);
  EXPECT_EQ(weight[0], -1.f);  // code 0, the high half of byte 0
  EXPECT_EQ(weight[2], static_cast<float>((37 >> 4) - 8) / 8);
  EXPECT_EQ(weight[64], 2 * static_cast<float>((32 * 37 % 256 >> 4) - 8) / 8) << "of the second block";
}

TEST(BitsAndBytes, WhatIsNoneIsRefusedByName) {
  ScratchFourBits model;
  EXPECT_THAT(model.refused("[16, 16]", "[16, 18]"), HasSubstr("not the pairs of codes of [16, 18]"));
  EXPECT_THAT(model.refused("[16, 16]", "[256, 1]"), HasSubstr("not the pairs of codes"));
  EXPECT_THAT(model.refused("[16, 16]", "[4294967296, 4294967296]"), HasSubstr("shape is no pair"));
  EXPECT_THAT(model.refused("[16, 16]", "[16]"), HasSubstr("shape is no pair"));
  EXPECT_THAT(model.refused("64", "65"), HasSubstr("blocksize is 65"));
  EXPECT_THAT(model.refused("64", "0"), HasSubstr("blocksize is 0"));
  EXPECT_THAT(model.refused("64", "128"), HasSubstr("and 2 numbers are due"));
  {
    ScratchFourBits nested;  // so many to a block that a sum of them wraps
    nested.tensors[kWeightOfFour + ".absmax"] =
        scratch_tensor("U8", {4}, std::vector<std::uint8_t>{1, 2, 3, 4});
    nested.tensors[kWeightOfFour + ".nested_absmax"] = scratch_tensor("F32", {0}, std::vector<float>{});
    nested.tensors[kWeightOfFour + ".nested_quant_map"] =
        scratch_tensor("F32", {256}, std::vector<float>(256));
    nested.state =
        R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [16, 16], "nested_dtype": )"
        R"("float32", "nested_offset": 0.1, "nested_blocksize": 9223372036854775807})";
    EXPECT_THAT(nested.refused(), HasSubstr("and 1 numbers are due"));
    EXPECT_THAT(nested.refused("0.1", "1e300"), HasSubstr("nested_offset"));
  }
  EXPECT_THAT(model.refused("bfloat16", "int8"), HasSubstr("dtype is \"int8\""));
  EXPECT_THAT(model.refused("\"nf4\"", "\"fp4\""), HasSubstr("quant_type is \"fp4\""));
  EXPECT_NE(model.refused("{", "["), "");
  model.tensors[kWeightOfFour + ".nested_absmax"] = scratch_tensor("F32", {1}, std::vector<float>{1});
  EXPECT_THAT(model.refused(), HasSubstr("absmax is F32 of shape [4], and 4 numbers are due"));
  model.tensors.erase(kWeightOfFour + ".nested_absmax");
  model.tensors.erase(kWeightOfFour + ".quant_map");
  EXPECT_THAT(model.refused(), HasSubstr("quant_map beside it"));
  ScratchFourBits other;
  other.config["quantization_config"]["bnb_4bit_other"] = true;
  EXPECT_THAT(other.refused(), HasSubstr("bnb_4bit_other: this field is not known"));
  ScratchFourBits without;
  without.refused();
  without.tensors.erase(kWeightOfFour + ".quant_state.bitsandbytes__nf4");
  EXPECT_THAT(error_of([&] { ModelSpec::read(without.open()); }), HasSubstr("has shape [128, 1]"));
}

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN(),
                kInfinite = std::numeric_limits<float>::infinity();

std::string refused_values(const ScratchModel& model, const std::string& name) {
  const Checkpoint checkpoint = model.open();
  return error_of([&] { checkpoint.read_float32(checkpoint.at(name)); });
}

TEST(BitsAndBytes, AScaleThatIsNoneIsRefusedWhereItIsRead) {
  const auto refused = [](float scale) {
    ScratchFourBits model;
    EXPECT_EQ(model.refused(), "") << "no value is looked at";
    model.tensors[kWeightOfFour + ".absmax"] = scratch_tensor("F32", {4}, std::vector<float>{1, scale, 3, 4});
    return refused_values(model, kWeightOfFour);
  };
  const std::pair<float, const char*> scales[] = {
      {kNotANumber, "NaN"}, {kInfinite, "infinity"}, {-2.f, "-2"}};
  for (const auto& [scale, text] : scales)
    EXPECT_THAT(refused(scale),
                HasSubstr("model.safetensors: " + kWeightOfFour + ": has the scale " + text +
                          " for codes 64 to 127 (absmax), and those of bitsandbytes are finite "
                          "and not below 0"));
  EXPECT_EQ(refused(0), "") << "of a block of zeros";
  ScratchFourBits nested;
  nested.state =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [16, 16], "nested_dtype": )"
      R"("float32", "nested_offset": 0.1, "nested_blocksize": 256})";
  nested.tensors[kWeightOfFour + ".absmax"] =
      scratch_tensor("U8", {4}, std::vector<std::uint8_t>{1, 2, 3, 4});
  std::vector<float> map(256, -1);
  nested.tensors[kWeightOfFour + ".nested_quant_map"] = scratch_tensor("F32", {256}, map);
  nested.tensors[kWeightOfFour + ".nested_absmax"] = scratch_tensor("F32", {1}, std::vector<float>{1});
  EXPECT_EQ(nested.refused(), "");
  EXPECT_EQ(refused_values(nested, kWeightOfFour), "") << "rounded to a little less than 0";
  map[4] = kNotANumber;
  nested.tensors[kWeightOfFour + ".nested_quant_map"] = scratch_tensor("F32", {256}, map);
  EXPECT_THAT(refused_values(nested, kWeightOfFour),
              HasSubstr("has the scale NaN for codes 192 to 255 (absmax)"));
}

TEST(BitsAndBytes, RowsOfBytesHaveAScaleEach) {
  ScratchModel model;
  model.config["quantization_config"] =
      Json::object({{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}});
  const std::string module = "model.layers.0.self_attn.q_proj";
  std::vector<std::int8_t> codes(256, 127);
  model.tensors[module + ".weight"] = scratch_tensor("I8", {16, 16}, codes);
  EXPECT_THAT(error_of([&] { ModelSpec::read(model.open()); }), HasSubstr("SCB beside it"));
  model.tensors[module + ".SCB"] = scratch_tensor("F32", {16}, std::vector<float>(16, 2.f));
  const Checkpoint checkpoint = model.open();
  EXPECT_NO_THROW(ModelSpec::read(checkpoint));
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at(module + ".weight")),
            std::vector<float>(256, 127.f * 2.f * 7.874015718698502e-3f));
  std::vector<float> scales(16, 2.f);
  scales[9] = kInfinite;
  model.tensors[module + ".SCB"] = scratch_tensor("F32", {16}, scales);
  EXPECT_THAT(refused_values(model, module + ".weight"), HasSubstr("has the scale infinity for row 9 (SCB)"));
  model.tensors[module + ".SCB"] = scratch_tensor("F32", {15}, std::vector<float>(15, 2.f));
  EXPECT_THAT(error_of([&] { ModelSpec::read(model.open()); }), HasSubstr("and 16 numbers are due"));
}

}  // namespace
}  // namespace llmq
