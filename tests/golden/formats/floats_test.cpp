// Floats in groups, their scales and the bytes that llmq stores for them equal those of compressed-tensors.
//
// floats.json was written by compressed-tensors 0.20.0 (make_floats_golden.py beside it).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "export/formats/packed_formats.h"
#include "quant/methods/float_groups.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"
#include "tests/golden/formats/golden_cases.h"

namespace llmq {
namespace {

std::vector<std::byte> bytes_of(const std::string& hex_text) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at < hex_text.size(); at += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(hex_text.substr(at, 2), nullptr, 16)));
  return bytes;
}

std::vector<float> numbers_of(const std::string& hex_text) {
  const std::vector<std::byte> bytes = bytes_of(hex_text);
  std::vector<std::uint16_t> stored(bytes.size() / 2);
  std::memcpy(stored.data(), bytes.data(), bytes.size());
  std::vector<float> values;
  for (const std::uint16_t bits : stored) values.push_back(to_float(BFloat16{bits}));
  return values;
}

QuantScheme float_group_scheme(const std::string& text) {
  const SchemeRequest asked = parse_scheme(text);
  QuantScheme scheme;
  scheme.bits = asked.bits;
  scheme.activation_bits = asked.activation_bits;
  if (asked.activation_bits != 16) scheme.activation_scale = ActivationScale::kTokenGroup;
  scheme.weight_type = asked.weight_type;
  scheme.group_size = asked.group_size.value();
  scheme.symmetric = true;
  return scheme;
}

TEST(Floats, RoundingBytesAndValuesEqualTheLibrary) {
  const Json golden = golden_cases("floats.json");
  const Json& cases = golden.at("weights");
  ASSERT_EQ(cases.items().size(), 3u);
  ThreadPool pool(2);
  for (const Json& one : cases.items()) {
    const QuantScheme scheme = float_group_scheme(one.at("scheme").as_string());
    SCOPED_TRACE(scheme.text());
    const std::int64_t rows = one.at("shape").items()[0].as_integer(),
                       columns = one.at("shape").items()[1].as_integer();
    const QuantizedMatrix matrix = round_float_groups(numbers_of(one.at("weight").as_string()), rows, columns,
                                                      scheme, {.search = false}, pool);
    const PlannedModule module{"layer", scheme, rows, columns};
    const std::vector<PackedTensor> tensors = packed_format("compressed-tensors").pack(module, matrix);
    ASSERT_EQ(tensors.size(), one.at("tensors").members().size());
    for (const PackedTensor& tensor : tensors) {
      SCOPED_TRACE(tensor.declaration.name);
      const Json* wanted =
          one.at("tensors").find(tensor.declaration.name.substr(std::string("layer.").size()));
      ASSERT_NE(wanted, nullptr);
      EXPECT_EQ(tensor.declaration.dtype, dtype_from_safetensors(wanted->at("dtype").as_string()).value());
      EXPECT_EQ(shape_json(tensor.declaration.shape), wanted->at("shape"));
      EXPECT_EQ(hex(tensor.bytes), wanted->at("hex").as_string());
    }
    std::vector<float> values(matrix.codes.size());
    dequantize(matrix, values);
    EXPECT_EQ(hex(std::as_bytes(std::span(values))), one.at("values").as_string());
  }
}

TEST(Floats, EveryTieOfE2M1GoesWhereTheLibraryPutsIt) {
  const Json golden = golden_cases("floats.json");
  ASSERT_EQ(golden.at("codes").items().size(), 260u);
  for (const Json& one : golden.at("codes").items())
    EXPECT_EQ(signed_e2m1_code(static_cast<float>(one.items()[0].as_double())), one.items()[1].as_integer())
        << one.items()[0].as_double();
}

TEST(Floats, ScalesOfTwoLevelsAreTheLibrarys) {
  const Json golden = golden_cases("floats.json");
  ASSERT_GT(golden.at("levels").items().size(), 100u);
  for (const Json& one : golden.at("levels").items())
    EXPECT_EQ(nvfp4_byte(static_cast<float>(one.items()[0].as_double())), one.items()[1].as_integer())
        << one.items()[0].as_double();
}

// modelopt multiplies by it: then its reciprocal says the same.
TEST(Floats, AGlobalScaleMayBeAPowerOfTwo) {
  EXPECT_EQ(float_group_global(0.3f, true, true), 4096) << "below 256 * 6 / 0.3";
  EXPECT_EQ(float_group_global(0.3f, false, true), 8192) << "below 448 * 6 / 0.3";
  EXPECT_EQ(float_group_global(0, true, true), 1);
  const QuantScheme scheme = float_group_scheme("nvfp4a16");
  ThreadPool pool(2);
  std::vector<float> weight(32, 0.3f);
  weight[17] = -0.01f;
  const QuantizedMatrix matrix =
      round_float_groups(weight, 2, 16, scheme, {.global_scale = float_group_global(0.3f, true, true)}, pool);
  const std::vector<PackedTensor> tensors = packed_format("modelopt").pack({"layer", scheme, 2, 16}, matrix);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[2].declaration.name, "layer.weight_scale_2");
  EXPECT_EQ(hex(tensors[2].bytes), "00008039") << "2^-12";
  for (std::size_t row = 0; row < 2; ++row)
    EXPECT_EQ(nvfp4_scale(static_cast<std::uint8_t>(tensors[1].bytes[row]), 0x1p-12f, GlobalForm::kFactor),
              matrix.scales[row]);
}

// Inputs as they are rounded while the model runs, and their global scale.
TEST(Floats, RoundedInputsEqualTheLibrarys) {
  const Json golden = golden_cases("floats.json");
  ASSERT_EQ(golden.at("inputs").items().size(), 4u);
  float whole = 0;
  for (const Json& one : golden.at("inputs").items()) {
    QuantScheme scheme = float_group_scheme(one.at("scheme").as_string());
    SCOPED_TRACE(scheme.text());
    const auto global = static_cast<float>(one.at("global").as_double());
    std::vector<float> values = numbers_of(one.at("x").as_string());
    const std::vector<float> wanted = numbers_of(one.at("levels").as_string());
    if (scheme.calibrates_inputs()) {
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::fabs(value));
      whole = float_input_global(largest, false);
      // torch multiplies by the reciprocal, which may be off by the last bit
      const float times = std::nearbyint(global / whole);
      EXPECT_TRUE(times == 1 || times == 4) << global;
      EXPECT_NEAR(global, times * whole, 0x1p-22f * global);
      EXPECT_EQ(float_input_global(largest, true), std::exp2(std::floor(std::log2(whole))));
    }
    std::vector<float> factors = values;
    const InputGroups by_library = input_groups(scheme, global, GlobalForm::kDivisor);
    ASSERT_EQ(by_library.size, scheme.group_size);
    for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(by_library.size))
      round_input_group(by_library, values.data() + at, by_library.size);
    EXPECT_EQ(values, wanted);
    // What modelopt multiplies by means the same where it is a power of two.
    if (!scheme.calibrates_inputs()) continue;
    std::vector<float> again = factors;
    InputGroups multiplied = input_groups(scheme, 0x1p-4f, GlobalForm::kFactor),
                divided = input_groups(scheme, 0x1p4f, GlobalForm::kDivisor);
    for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(by_library.size)) {
      round_input_group(multiplied, factors.data() + at, multiplied.size);
      round_input_group(divided, again.data() + at, divided.size);
    }
    EXPECT_EQ(factors, again);
    EXPECT_EQ(global_factor(multiplied), global_factor(divided));
  }
  EXPECT_GT(whole, 0);
  EXPECT_EQ(float_input_global(0, false), 1) << "nothing was ever seen";
}

TEST(Floats, ExponentsAreTheLibrarysAndNotOcps) {
  const Json golden = golden_cases("floats.json");
  int above = 0;
  for (const Json& one : golden.at("exponents").items()) {
    const WeightType type = one.items()[0] == Json(4) ? WeightType::kFloat4 : WeightType::kFloat8;
    const auto largest = static_cast<float>(one.items()[1].as_double());
    EXPECT_EQ(mx_byte(largest, type), one.items()[2].as_integer()) << largest;
    if (largest > 0 && largest < 1e30f && mx_byte(largest, type) > std::max(0, ocp_byte(largest, type)))
      ++above;
  }
  EXPECT_GT(above, 20) << "from 1.75 times a power of two on";
}

}  // namespace
}  // namespace llmq
