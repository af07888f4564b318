// Weights of floats that are served as their codes: in float32 the products of their values, to the bit.
#include <gtest/gtest.h>

#include <cstring>

#include "device/upload_values.h"
#include "model/block_weights.h"
#include "packed_model.h"
#include "scratch_gpt_oss.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

constexpr std::int64_t kRowsOfProducts = 3;

std::vector<float> product(Backend& backend, const BlockLinear& linear) {
  const PreparedWeight& weight = *linear.parts.front().weight;
  const Shape in{kRowsOfProducts, weight.in_features}, out{kRowsOfProducts, weight.out_features};
  std::vector<float> x, y(static_cast<std::size_t>(out.elements()));
  for (std::int64_t i = 0; i < in.elements(); ++i) x.push_back(static_cast<float>(i * i % 23) / 7 - 1);
  const Buffer x_there = upload_values(backend, x), y_there = backend.allocate(y.size() * sizeof(float));
  backend.linear(y_there.view(DType::kF32, out), x_there.view(DType::kF32, in), weight, {});
  std::memcpy(y.data(), y_there.get(), y.size() * sizeof(float));
  return y;
}

void expect_products_of_codes(const ScratchModel& model, std::string_view name) {
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  const auto backend = make_cpu_backend(2);
  const LinearSpec& linear = linear_named(spec.blocks[0], name);
  const auto prepared = [&](Compute compute, PackedWeights packed) {
    return prepare_linear(*backend, compute, source, linear, false, packed);
  };
  const BlockLinear codes = prepared(Compute::kFloat32, PackedWeights::kCodes);
  EXPECT_EQ(product(*backend, codes),
            product(*backend, prepared(Compute::kFloat32, PackedWeights::kDequantized)));
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    EXPECT_EQ(prepared(compute, PackedWeights::kCodes).parts.front().weight->kernel,
              "4-bit codes of a table");
}

TEST(PackedProducts, OfModeloptsTwoLevels) {
  const Json cases = load_cases("packed_modelopt.json");
  for (const Json& one : cases.items()) {
    if (one.at("name").as_string() != "W4A16_NVFP4") continue;  // beside NVFP4 inputs are rounded
    ScratchModel model;
    pack_queries(model, one);
    expect_products_of_codes(model, "q_proj");
  }
}

TEST(PackedProducts, OfBitsandbytes) {
  for (const std::string dtype : {"bfloat16", "float16", "float32"}) {
    ScratchGptOss model;  // of 32 columns, which a block needs
    const std::string weight = kModule + ".weight",
                      state = R"({"quant_type": "nf4", "blocksize": 32, "shape": [16, 32], "dtype": ")" +
                              dtype + "\"}";
    std::vector<std::uint8_t> codes;
    for (int i = 0; i < 256; ++i) codes.push_back(static_cast<std::uint8_t>(i * 37));
    std::vector<float> map, scales;
    for (int i = 0; i < 16; ++i)
      map.push_back(static_cast<float>(i - 7) / 9), scales.push_back(0.1F * static_cast<float>(i + 1));
    model.tensors[weight] = scratch_tensor("U8", {256, 1}, codes);
    model.tensors[weight + ".absmax"] = scratch_tensor("F32", {16}, scales);
    model.tensors[weight + ".quant_map"] = scratch_tensor("F32", {16}, map);
    model.tensors[weight + ".quant_state.bitsandbytes__nf4"] =
        scratch_tensor("U8", {std::ssize(state)}, std::vector<std::uint8_t>(state.begin(), state.end()));
    model.config["quantization_config"] = Json::object(
        {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}});
    expect_products_of_codes(model, "self_attn.q_proj");
  }
}

TEST(PackedProducts, OfExpertsInExponents) {
  ScratchGptOss model;
  model.as_mxfp4();
  for (const char* name : {"experts.1.gate_proj", "experts.0.up_proj", "experts.1.down_proj"})
    expect_products_of_codes(model, name);
}

}  // namespace
}  // namespace llmq
