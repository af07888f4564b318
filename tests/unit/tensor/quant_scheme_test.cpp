#include "tensor/quant_scheme.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "base/half.h"
#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

constexpr WeightType kInteger = WeightType::kInteger;

TEST(QuantScheme, TextIsWhatIsParsed) {
  for (const char* text : {"w4a16_g128_asym", "w8a8_channel_sym", "w2a16_g32_sym", "w4a16_tensor_asym"}) {
    const SchemeRequest request = parse_scheme(text);
    QuantScheme scheme;
    scheme.bits = request.bits;
    scheme.activation_bits = request.activation_bits;
    scheme.granularity = request.granularity.value();
    scheme.group_size = request.group_size.value_or(0);
    scheme.symmetric = request.symmetric.value();
    EXPECT_EQ(scheme.text(), text);
  }
}

TEST(QuantScheme, FloatsInGroupsSayWhetherInputsAreRounded) {
  for (const auto& [text, bits, calibrates] : {std::tuple{"nvfp4", 4, true},
                                               {"nvfp4a16", 16, false},
                                               {"mxfp4a4", 4, false},
                                               {"mxfp4", 16, false},
                                               {"mxfp8", 8, false},
                                               {"mxfp8a16", 16, false}}) {
    const SchemeRequest request = parse_scheme(text);
    QuantScheme scheme;
    scheme.bits = request.bits;
    scheme.activation_bits = request.activation_bits;
    if (bits != 16) scheme.activation_scale = ActivationScale::kTokenGroup;
    scheme.weight_type = request.weight_type;
    scheme.group_size = request.group_size.value();
    EXPECT_EQ(scheme.text(), text);
    EXPECT_EQ(request.activation_bits, bits);
    EXPECT_EQ(scheme.rounds_inputs_in_float_groups(), bits != 16);
    EXPECT_EQ(scheme.calibrates_inputs(), calibrates) << text;
  }
}

TEST(QuantScheme, PartsLeftOutStayOpen) {
  EXPECT_EQ(parse_scheme("w4a16"), (SchemeRequest{4, 16, {}, {}, {}, kInteger, false}));
  EXPECT_EQ(parse_scheme("w4a16_sym"), (SchemeRequest{4, 16, {}, {}, true, kInteger, false}));
  EXPECT_EQ(parse_scheme("w8a16_g64"), (SchemeRequest{8, 16, Granularity::kGroup, 64, {}, kInteger, false}));
  EXPECT_EQ(parse_scheme("w4a8_g128"), (SchemeRequest{4, 8, Granularity::kGroup, 128, {}, kInteger, false}));
}

TEST(QuantScheme, RefusesOthersByName) {
  for (const char* text : {"",
                           "w",
                           "w4",
                           "w4a",
                           "w1a16",
                           "w9a16",
                           "w04a16",
                           "w4a4",
                           "w4a16x",
                           "w4a16_",
                           "w4a16_g",
                           "w4a16_g0",
                           "w4a16_g-64",
                           "w4a16_g064",
                           "w4a16_g99999999999999999999",
                           "w4a16_g128_",
                           "w4a16_g128sym",
                           "w4a16_sym_g128",
                           "w4a16_g128_sym_asym",
                           "w4a16_g128_channel",
                           "W4A16",
                           "w4a16 ",
                           "int4",
                           "w-4a16",
                           "w4a16_channelx"}) {
    try {
      parse_scheme(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << text;
      EXPECT_NE(std::string(error.what()).find("scheme '" + std::string(text) + "'"), std::string::npos);
    }
  }
}

TEST(QuantScheme, Float8AndStaticActivations) {
  EXPECT_EQ(parse_scheme("w8a8_channel_sym_static").static_activations, true);
  EXPECT_THROW(parse_scheme("w8a16_static"), Error);
  EXPECT_EQ(parse_scheme("fp8").granularity, Granularity::kChannel);
  EXPECT_EQ(parse_scheme("fp8_static").granularity, Granularity::kTensor);
  EXPECT_EQ(parse_scheme("fp8_block").granularity, Granularity::kBlock);
  EXPECT_EQ(parse_scheme("fp8_block").weight_type, WeightType::kFloat8);
}

TEST(StoredScale, RoundsToTheTypeAndNeverBelowItsNormals) {
  EXPECT_EQ(stored_scale(0.1f, DType::kBF16), to_float(to_bfloat16(0.1f)));
  EXPECT_EQ(stored_scale(0.1f, DType::kF16), to_float(to_float16(0.1f)));
  EXPECT_EQ(stored_scale(0.1f, DType::kF32), 0.1f);
  EXPECT_EQ(stored_scale(0.f, DType::kF16), 0x1p-14f);
  EXPECT_EQ(stored_scale(0x1p-15f, DType::kF16), 0x1p-14f);
  EXPECT_EQ(stored_scale(-0x1p-20f, DType::kF16), -0x1p-14f);
  EXPECT_EQ(stored_scale(0.f, DType::kBF16), 0x1p-126f);
  EXPECT_EQ(stored_scale(0x1p-130f, DType::kF32), 0x1p-126f);
  EXPECT_THROW(stored_scale(1.f, DType::kI8), Error);
}

TEST(QuantizedMatrix, DequantizesGroupByGroup) {
  QuantizedMatrix matrix;
  matrix.scheme.group_size = 2;
  matrix.out_features = 2;
  matrix.in_features = 4;
  matrix.codes = {0, 15, 8, 1, 2, 3, 4, 5};
  matrix.scales = {0.5f, 2.f, -1.f, 0.25f};
  matrix.zeros = {8, 0, 3, 15};
  std::vector<float> values(8);
  dequantize(matrix, values);
  EXPECT_EQ(values, (std::vector<float>{-4.f, 3.5f, 16.f, 2.f, 1.f, 0.f, -2.75f, -2.5f}));
  matrix.column_group = {1, 0, 1, 0};  // the groups' columns, reordered
  dequantize(matrix, values);
  EXPECT_EQ(values, (std::vector<float>{0.f, 3.5f, 16.f, -3.5f, -3.25f, 0.f, -2.75f, -2.f}));
  matrix.column_group.clear();
  matrix.scheme.granularity = Granularity::kChannel;
  EXPECT_THROW(dequantize(matrix, values), Error);  // scales for two groups, one expected
  matrix.scales = {1.f, 10.f};
  matrix.zeros = {0, 1};
  dequantize(matrix, values);
  EXPECT_EQ(values, (std::vector<float>{0, 15, 8, 1, 10, 20, 30, 40}));
}

TEST(QuantizedMatrix, ALastGroupMayBeShort) {
  QuantizedMatrix matrix;
  matrix.scheme.group_size = 2;
  matrix.out_features = 1;
  matrix.in_features = 3;
  matrix.codes = {1, 1, 1};
  matrix.scales = {1.f, 5.f};
  matrix.zeros = {0, 0};
  std::vector<float> values(3);
  dequantize(matrix, values);
  EXPECT_EQ(values, (std::vector<float>{1, 1, 5}));
}

}  // namespace
}  // namespace llmq
