// No scale that is written is 0 or not a number: not of a row of zeros, not of a linear of zeros, not of
// inputs that nobody saw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "noisy_mixture.h"
#include "quant/pipeline/weight_checks.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

QuantizedMatrix matrix_of_ones() {
  QuantizedMatrix matrix;
  matrix.scheme.group_size = 8;
  matrix.out_features = 3, matrix.in_features = 32;
  matrix.codes.assign(3 * 32, 1);
  matrix.scales.assign(3 * 4, 1.0f);
  matrix.zeros.assign(3 * 4, 8);
  return matrix;
}

TEST(WrittenScales, AZeroIsCaughtByItsPlace) {
  QuantizedMatrix matrix = matrix_of_ones();
  EXPECT_NO_THROW(check_scales(matrix, "blocks.0.up", "model"));
  matrix.scales[2 * 4 + 3] = -0.0f;
  EXPECT_THAT([&] { check_scales(matrix, "blocks.0.up", "model"); },
              ::testing::ThrowsMessage<Error>(
                  AllOf(HasSubstr("blocks.0.up"), HasSubstr("row 2, group 3"), HasSubstr("is -0"))));
  matrix.scales[2 * 4 + 3] = -1.0f;  // the full range of symmetric codes has such scales
  EXPECT_NO_THROW(check_scales(matrix, "blocks.0.up", "model"));
  matrix.scales[5] = NAN;
  EXPECT_THAT([&] { check_scales(matrix, "blocks.0.up", "model"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("row 1, group 1")));
  matrix.scales[5] = INFINITY;
  EXPECT_THAT([&] { check_scales(matrix, "blocks.0.up", "model"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("beyond BF16's range")));
}

TEST(WrittenScales, ThatOfInputsIsCaughtToo) {
  QuantizedMatrix matrix = matrix_of_ones();
  matrix.scheme.activation_scale = ActivationScale::kTensor;
  matrix.input_scale = 0.5f;
  EXPECT_NO_THROW(check_scales(matrix, "blocks.0.up", "model"));
  matrix.input_scale = 0;
  EXPECT_THAT([&] { check_scales(matrix, "blocks.0.up", "model"); },
              ::testing::ThrowsMessage<Error>(AllOf(HasSubstr("blocks.0.up"), HasSubstr("of its inputs"))));
}

// Rows of zeros, an expert of zeros, and one whose inputs to the output are zeros for that.
TEST(WrittenScales, ZeroWeightsHaveLegalScalesUnderEveryMethod) {
  NoisyMixture model;
  for (auto& [name, tensor] : model.tensors) {
    if (name.find("proj.weight") == std::string::npos) continue;
    std::vector<float> values = floats_of(tensor);
    const bool all = name.find("experts.1.") != std::string::npos;
    std::fill(values.begin(), all ? values.end() : values.begin() + tensor.shape[1], 0.0f);
    tensor = scratch_tensor("F32", tensor.shape, values);
  }
  const Checkpoint checkpoint = model.open();
  for (const char* recipe :
       {"method: rtn\nscheme: w4a16_g8_sym\n", "method: rtn\nscheme: fp8_static\n",
        "method: gptq\nscheme: w4a16_g8_sym\n", "method: gptq\nscheme: w4a16_g8_asym\nformat: gptq_v2\n",
        "method: awq\nscheme: w4a16_g8_asym\nformat: awq\n", "method: [awq, gptq]\nscheme: w4a16_g8_asym\n",
        "method: smoothquant\nscheme: w8a8\n"}) {
    SCOPED_TRACE(recipe);
    const ExpertJob job(
        std::string(recipe) + "ignore: [lm_head]\ncalibration: {samples: 4, sequence_length: 24}\n",
        checkpoint);
    for (const auto& [module, matrix] : job.output.quantized)
      for (const float scale : matrix.scales) ASSERT_TRUE(std::isfinite(scale) && scale != 0) << module;
  }
}

}  // namespace
}  // namespace llmq
