// LinearSource: packed modules against what their own libraries dequantize (packed_*.json, written by
// tests/interop/make_packed_vectors.py).
#include "model/linear_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "model/block_weights.h"
#include "packed_model.h"
#include "support/named_parts.h"
#include "support/tolerance.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// AutoAWQ quantizes every linear it does not list; ours reads what is stored, so the others may stay dense.
void expect_weights(const char* file) {
  const Json cases = load_cases(file);
  for (const Json& packed_case : cases.items()) {
    SCOPED_TRACE(packed_case.at("name").as_string());
    ScratchModel model;
    pack_queries(model, packed_case);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    EXPECT_TRUE(source.is_packed(kModule));
    EXPECT_FALSE(source.is_packed("model.layers.0.mlp.up_proj"));
    const LinearSpec& linear = linear_named(spec.blocks[0], "q_proj");
    EXPECT_FALSE(source.stored(linear).has_value());
    const ZeroedNumbers<float> weight = source.weight(linear, threads());
    const std::string expected = from_hex(packed_case.at("weight").as_string());
    ASSERT_EQ(weight.size() * sizeof(float), expected.size());
    EXPECT_EQ(std::memcmp(weight.data(), expected.data(), expected.size()), 0) << "not bit-equal";
  }
}

TEST(LinearSource, CompressedTensorsModulesDequantizeBitExactly) {
  expect_weights("packed_compressed_tensors.json");
}
TEST(LinearSource, AwqModulesDequantizeBitExactly) { expect_weights("packed_awq.json"); }

TEST(LinearSource, ModeloptModulesDequantizeBitExactly) { expect_weights("packed_modelopt.json"); }

TEST(LinearSource, GptqModulesDequantizeBitExactly) { expect_weights("packed_gptq.json"); }

TEST(LinearSource, CodesOfAByteDequantizeBitExactly) { expect_weights("packed_codes.json"); }

std::vector<float> floats(const Json& hex) {
  const std::string bytes = from_hex(hex.as_string());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A linear of such a checkpoint rounds its inputs as the library does. The library's numbers are products of
// FP32 roundings of each factor (code times scale), ours scale exact sums: 2 roundings there and at most 3 +
// 2 per group of 8 here, of the sum of the magnitudes; float8 adds the roundings of a sum of 16.
TEST(LinearSource, LinearsRoundTheirInputsAsTheLibraryDoes) {
  const Json cases = load_cases("packed_codes.json");
  for (const Json& packed_case : cases.items()) {
    SCOPED_TRACE(packed_case.at("name").as_string());
    ScratchModel model;
    pack_queries(model, packed_case);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    const std::vector<float> x = floats(packed_case.at("input")), want = floats(packed_case.at("output")),
                             weight = floats(packed_case.at("weight"));
    const auto backend = make_reference_backend();
    const BlockLinear linear =
        prepare_linear(*backend, Compute::kFloat32, source, linear_named(spec.blocks[0], "q_proj"));
    std::vector<float> got(want.size());
    backend->linear(TensorView(got.data(), DType::kF32, {5, 16}), TensorView(x.data(), DType::kF32, {5, 16}),
                    *linear.parts.front().weight, {});
    for (std::size_t i = 0; i < want.size(); ++i) {
      double magnitude = 0;
      for (std::size_t k = 0; k < 16; ++k)
        magnitude +=
            std::fabs(static_cast<double>(x[i / 16 * 16 + k]) * static_cast<double>(weight[i % 16 * 16 + k]));
      // Rounded inputs may be larger than x by half a step, 1/255 of the greatest; 2 covers that.
      ASSERT_NEAR(got[i], want[i], testing::gamma(2 + 3 + 4 + 16) * 2 * magnitude) << i;
    }
  }
}

TEST(LinearSource, QuantizedKeepsTheSchemeAsStored) {
  const Json cases = load_cases("packed_compressed_tensors.json");
  ScratchModel model;
  pack_queries(model, cases.items()[3]);
  const QuantizedMatrix matrix = LinearSource::open(model.open()).quantized(kModule);
  EXPECT_EQ(matrix.scheme.bits, 3);
  EXPECT_FALSE(matrix.scheme.symmetric);
  EXPECT_EQ(matrix.scheme.group_size, 8);
  EXPECT_EQ(matrix.scheme.scale_dtype, DType::kBF16);
  EXPECT_EQ(matrix.groups(), 2);
}

TEST(LinearSource, DenseWeightsAreGivenWithoutACopy) {
  const ScratchModel model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.format(), PackedFormat::kNone);
  const LinearSpec& linear = linear_named(spec.blocks[1], "down_proj");
  const auto view = source.stored(linear);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->view.pointer, checkpoint.at(linear.module + ".weight").view.pointer);
  EXPECT_EQ(source.weight(linear, threads())[5], view->view.as<float>()[5]);
  EXPECT_FALSE(source.bias(linear).has_value());
}

TEST(LinearSource, NonFiniteWeightsAreNamed) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    ScratchModel model;
    std::string& bytes = model.tensors["model.layers.1.mlp.down_proj.weight"].bytes;
    std::memcpy(bytes.data() + 4 * (24 * 3 + 7), &value, sizeof value);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    const LinearSpec& linear = linear_named(spec.blocks[1], "down_proj");
    for (const std::string& found :
         {error_of([&] { source.weight(linear, threads()); }), error_of([&] { source.stored(linear); })}) {
      EXPECT_THAT(found, StartsWith("bad input|"));
      EXPECT_THAT(found, HasSubstr("model.layers.1.mlp.down_proj.weight: holds"));
      EXPECT_THAT(found, HasSubstr("row 3, column 7"));
    }
    EXPECT_EQ(error_of([&] { source.weight(linear, threads(), true); }), "");
    EXPECT_EQ(error_of([&] { source.stored(linear, true); }), "");
  }
}

TEST(LinearSource, NonFiniteHalvesAreNamed) {
  for (const auto& [dtype, bits] :
       {std::pair{"BF16", 0x7f80}, std::pair{"F16", 0xfc00}, std::pair{"BF16", 0xffc1}}) {
    ScratchModel model;
    std::vector<std::uint16_t> halves(16 * 24, 0x3c00);
    halves[24] = static_cast<std::uint16_t>(bits);
    model.tensors["model.layers.0.mlp.down_proj.weight"] = scratch_tensor(dtype, {16, 24}, halves);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const LinearSource source = LinearSource::open(checkpoint);
    EXPECT_THAT(error_of([&] { source.stored(linear_named(spec.blocks[0], "down_proj")); }),
                HasSubstr("row 1, column 0"));
  }
}

TEST(LinearSource, TargetsGoByNameThenPatternThenClass) {
  const Json cases = load_cases("packed_compressed_tensors.json");
  const Json& four = cases.items()[5];
  const Json& three = cases.items()[3];
  ScratchModel model;
  pack_queries(model, four);
  // Block 1 holds three-bit words; a group that names it exactly comes after one whose pattern matches both.
  add_packed(model, kOther, three);
  Json group = three.at("config").at("config_groups").at("group_0");
  group["targets"] = Json::array({kOther});
  model.config["quantization_config"]["config_groups"]["group_1"] = group;
  model.config["quantization_config"]["format"] = "mixed-precision";
  const Checkpoint checkpoint = model.open();
  ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.quantized(kModule).scheme.bits, 4);
  EXPECT_EQ(source.quantized(kOther).scheme.bits, 3);
}

}  // namespace
}  // namespace llmq
