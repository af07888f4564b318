// Plain rounding to 8-bit schemes and the bytes that llmq stores for them equal those of compressed-tensors.
//
// codes.json was written by compressed-tensors 0.20.0 (make_codes_golden.py beside it).
#include <gtest/gtest.h>

#include "base/half.h"
#include "export/formats/packed_formats.h"
#include "quant/methods/rtn.h"
#include "tests/golden/formats/golden_cases.h"

namespace llmq {
namespace {

std::string member(const Json& object, std::string_view key, std::string absent) {
  const Json* value = object.find(key);
  return value == nullptr ? std::move(absent) : value->as_string();
}

QuantScheme scheme_of(const Json& one) {
  const Json &weights = one.at("weights"), &inputs = one.at("inputs");
  QuantScheme scheme;
  scheme.bits = static_cast<int>(weights.at("num_bits").as_integer());
  scheme.activation_bits = 8;
  if (member(weights, "type", "int") == "float") scheme.weight_type = WeightType::kFloat8;
  const std::string strategy = weights.at("strategy").as_string(), input = inputs.at("strategy").as_string();
  scheme.granularity = strategy == "tensor"    ? Granularity::kTensor
                       : strategy == "channel" ? Granularity::kChannel
                       : strategy == "block"   ? Granularity::kBlock
                                               : Granularity::kGroup;
  if (strategy == "group") scheme.group_size = static_cast<int>(weights.at("group_size").as_integer());
  scheme.symmetric = weights.find("symmetric") == nullptr;
  scheme.activation_scale = input == "token"    ? ActivationScale::kToken
                            : input == "tensor" ? ActivationScale::kTensor
                                                : ActivationScale::kTokenGroup;
  scheme.scale_dtype = dtype_from_safetensors(one.at("scale_dtype").as_string()).value();
  return scheme;
}

std::vector<float> weight_of(const std::string& hex) {
  std::vector<float> weight;
  for (std::size_t at = 0; at < hex.size(); at += 4) {
    const auto byte = [&](std::size_t i) { return std::stoul(hex.substr(at + i, 2), nullptr, 16); };
    weight.push_back(to_float(BFloat16{static_cast<std::uint16_t>(byte(0) | byte(2) << 8)}));
  }
  return weight;
}

TEST(Codes, RoundingAndBytesEqualTheLibrary) {
  const Json all = golden_cases("codes.json");
  ASSERT_EQ(all.items().size(), 10u);
  ThreadPool pool(2);
  for (const Json& one : all.items()) {
    SCOPED_TRACE(one.at("name").as_string());
    const QuantScheme scheme = scheme_of(one);
    const std::int64_t rows = one.at("shape").items()[0].as_integer(),
                       columns = one.at("shape").items()[1].as_integer();
    QuantizedMatrix matrix =
        round_to_nearest(weight_of(one.at("weight").as_string()), rows, columns, scheme, pool);
    if (const Json* scale = one.find("input_scale"))
      matrix.input_scale = static_cast<float>(scale->as_double());
    const PlannedModule module{"layer", scheme, rows, columns};
    const PackedFormatRow& format = packed_format("compressed-tensors");
    const std::vector<PackedTensor> tensors = format.pack(module, matrix);
    const std::vector<TensorDeclaration> declared = format.declare(module);
    ASSERT_EQ(tensors.size(), one.at("tensors").members().size());
    ASSERT_EQ(tensors.size(), declared.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      SCOPED_TRACE(declared[i].name);
      EXPECT_EQ(tensors[i].declaration.name, declared[i].name);
      const Json* wanted = one.at("tensors").find(declared[i].name.substr(std::string("layer.").size()));
      ASSERT_NE(wanted, nullptr);
      EXPECT_EQ(declared[i].dtype, dtype_from_safetensors(wanted->at("dtype").as_string()).value());
      EXPECT_EQ(shape_json(declared[i].shape), wanted->at("shape"));
      EXPECT_EQ(hex(tensors[i].bytes), wanted->at("hex").as_string());
    }
  }
}

// The complaint about one scheme, or "".
std::string refusal(const QuantScheme& scheme, std::int64_t columns = 256) {
  const PlannedModule module{"layer", scheme, 256, columns};
  return packed_format("compressed-tensors").refusal(module, module).value_or("");
}

TEST(Codes, WhatNoFormatHoldsIsRefused) {
  QuantScheme scheme;
  scheme.bits = scheme.activation_bits = 8;
  scheme.symmetric = true;
  scheme.activation_scale = ActivationScale::kToken;
  scheme.granularity = Granularity::kChannel;
  EXPECT_EQ(refusal(scheme), "");
  scheme.granularity = Granularity::kBlock;
  EXPECT_EQ(refusal(scheme), "integer weights in blocks cannot be written; per group or per channel can");
  scheme.weight_type = WeightType::kFloat8;
  scheme.activation_scale = ActivationScale::kTokenGroup;
  EXPECT_EQ(refusal(scheme), "");
  EXPECT_EQ(refusal(scheme, 576),
            "inputs in groups of 128 do not divide the 576 input features; fp8 does without groups");
  scheme.granularity = Granularity::kGroup;
  scheme.group_size = kMxGroup;
  EXPECT_EQ(refusal(scheme), "") << "mxfp8";
  scheme.granularity = Granularity::kChannel;
  scheme.activation_bits = 16;
  EXPECT_EQ(refusal(scheme), "float8 weights are written beside float8 inputs only");
  scheme.activation_bits = 8;
  for (const std::string_view other : {"awq", "gptq", "gptq_v2"}) {
    const PlannedModule module{"layer", scheme, 256, 256};
    EXPECT_NE(packed_format(other).refusal(module, module), std::nullopt) << other;
  }
}

TEST(Codes, ConfigSaysHowInputsAreRounded) {
  QuantScheme weights_only, w8a8, fp8_block;
  weights_only.granularity = Granularity::kChannel;
  w8a8 = weights_only;
  w8a8.bits = w8a8.activation_bits = 8;
  w8a8.symmetric = true;
  w8a8.activation_scale = ActivationScale::kToken;
  fp8_block = w8a8;
  fp8_block.weight_type = WeightType::kFloat8;
  fp8_block.granularity = Granularity::kBlock;
  fp8_block.activation_scale = ActivationScale::kTokenGroup;
  const std::vector<PlannedModule> modules = {
      {"a", weights_only, 256, 256}, {"b", w8a8, 256, 256}, {"c", fp8_block, 256, 256}};
  const Json config = packed_format("compressed-tensors").config({modules, {}});
  EXPECT_EQ(config.at("format").as_string(), "mixed-precision");
  const Json& groups = config.at("config_groups");
  EXPECT_EQ(groups.at("group_0").at("format").as_string(), "pack-quantized");
  EXPECT_TRUE(groups.at("group_0").at("input_activations").is_null());
  EXPECT_EQ(groups.at("group_1").at("format").as_string(), "int-quantized");
  EXPECT_EQ(groups.at("group_1").at("input_activations").at("strategy").as_string(), "token");
  EXPECT_TRUE(groups.at("group_1").at("input_activations").at("dynamic").as_bool());
  EXPECT_EQ(groups.at("group_2").at("format").as_string(), "float-quantized");
  EXPECT_EQ(groups.at("group_2").at("weights").at("type").as_string(), "float");
  EXPECT_EQ(groups.at("group_2").at("weights").at("block_structure"), Json::array({128, 128}));
  EXPECT_EQ(groups.at("group_2").at("input_activations").at("group_size").as_integer(), 128);
}

}  // namespace
}  // namespace llmq
