// Rounding to MXFP4, and a gpt-oss whose experts are: what is written, what is carried, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/open_checkpoint.h"
#include "quant/methods/mxfp4_rounding.h"
#include "small_job.h"
#include "tensor/mxfp4.h"
#include "tests/unit/model/scratch_gpt_oss.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using testing::SmallJob;
using testing::TemporaryDirectory;

const std::string kMxfp4Recipe = "method: rtn\nscheme: mxfp4\nformat: mxfp4\n";
const std::string kExpertsAlone = kMxfp4Recipe + "ignore: ['re:.*self_attn']\n";

QuantScheme float4() {
  QuantScheme scheme;
  scheme.weight_type = WeightType::kFloat4;
  scheme.group_size = 32;
  scheme.symmetric = true;
  return scheme;
}

QuantizedMatrix rounded(const std::vector<float>& block) {
  ThreadPool here(1);
  return round_mxfp4(block, static_cast<std::int64_t>(block.size()) / 32, 32, float4(), here);
}

double lost(const std::vector<float>& block, float scale) {
  double sum = 0;
  for (const float w : block) {
    double least = INFINITY;
    for (const float value : kE2M1) least = std::min(least, std::abs(double{value} * scale - w));
    sum += least * least;
  }
  return sum;
}

TEST(Mxfp4, CodesAreTheNearestAndTiesGoToTheEvenOne) {
  const std::pair<float, int> expected[] = {{0, 0},     {-0.0f, 0}, {0.25f, 0}, {-0.25f, 0}, {0.26f, 1},
                                            {0.75f, 2}, {1.25f, 2}, {1.75f, 4}, {2.5f, 4},   {3.5f, 6},
                                            {5, 6},     {5.1f, 7},  {100, 7},   {-0.3f, 9},  {-6, 15}};
  for (const auto& [value, code] : expected) EXPECT_EQ(e2m1_code(value), code) << value;
}

TEST(Mxfp4, EveryExponentIsItsByte) {
  for (int byte = 0; byte < 255; ++byte) {
    const float scale = mxfp4_scale(static_cast<std::uint8_t>(byte));
    EXPECT_EQ(std::log2(scale), byte - 127);
    EXPECT_EQ(mxfp4_byte(scale), byte);
    for (const float value : kE2M1) EXPECT_EQ(double{value} * scale, double{value * scale}) << "or overflows";
    if (byte == 252) break;  // beyond it 6 times the scale is no FP32
  }
}

// No other exponent loses less, and none at all is lost where the block is MXFP4 already.
TEST(Mxfp4, TheBlocksExponentLosesLeast) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int coarser = 0, finer = 0;
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<float> block(32);
    for (float& w : block) w = normal(random) * std::ldexp(1.0f, trial % 40 - 20);
    if (trial % 3 == 0)  // many of one size just below a power of two, which the cut at 6 would hit
      for (std::size_t k = 0; k < 32; ++k) block[k] = std::ldexp(k % 5 == 0 ? 7.9f : 3.0f, trial % 7);
    const QuantizedMatrix matrix = rounded(block);
    std::vector<float> values(32);
    dequantize(matrix, values);
    double sum = 0;
    for (std::size_t k = 0; k < 32; ++k) sum += std::pow(double{values[k]} - block[k], 2);
    const int byte = mxfp4_byte(matrix.scales[0]);
    for (int other = std::max(0, byte - 6); other <= byte + 6; ++other)
      EXPECT_LE(sum, lost(block, mxfp4_scale(static_cast<std::uint8_t>(other))) * (1 + 1e-12)) << trial;
    float largest = 0;
    for (const float w : block) largest = std::max(largest, std::abs(w));
    const int ocp = std::ilogb(largest) - 2 + 127;
    coarser += byte > ocp, finer += byte < ocp;
    const QuantizedMatrix again = rounded(values);
    std::vector<float> same(32);
    dequantize(again, same);
    EXPECT_EQ(same, values) << trial;
  }
  EXPECT_GT(coarser, 20) << "the search is none";
  EXPECT_EQ(finer, 0) << "of these blocks none has an outlier";
  std::vector<float> outlier(32, 0.7f);
  outlier[3] = 4.2f;
  EXPECT_EQ(rounded(outlier).scales[0], 1.0f);
}

TEST(Mxfp4, ZerosAndTheEndsOfFloatHaveBlocks) {
  EXPECT_EQ(rounded(std::vector<float>(32, 0.0f)).scales[0], std::ldexp(1.0f, -127));
  std::vector<float> tiny(32, std::ldexp(1.0f, -149)), huge(32, std::ldexp(1.0f, 127));
  EXPECT_EQ(rounded(tiny).scales[0], std::ldexp(1.0f, -127));
  const QuantizedMatrix most = rounded(huge);
  EXPECT_EQ(weight_value(most.scheme, most.codes[0], 0, most.scales[0]), huge[0]);
}

class GptOssOutput : public ::testing::Test {
 protected:
  Checkpoint written(const ScratchGptOss& model, const std::string& recipe) {
    SmallJob job{recipe, {disk_ / "out", true}};
    job.run(system_io(), model.open());
    return open_checkpoint(system_io(), (disk_ / "out").string());
  }
  static std::string bytes_of(const Checkpoint& checkpoint, const std::string& name) {
    const StoredTensor& tensor = checkpoint.at(name);
    return {tensor.view.as<const char>(), tensor.view.bytes()};
  }
  static std::string refusal(const ScratchGptOss& model, const std::string& recipe) {
    const Checkpoint checkpoint = model.open();
    try {
      make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, ModelSpec::read(checkpoint), Compute::kFloat32,
                1, 0);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.detail().where + " | " + error.detail().hint;
    }
    return "";
  }
  TemporaryDirectory disk_;
};

// Each expert's matrix is what it is rounded to alone, and all else has its bytes.
TEST_F(GptOssOutput, ExpertsAreStacksOfMxfp4) {
  ScratchGptOss model;
  const Checkpoint source = model.open(), output = written(model, kExpertsAlone);
  for (const char* part : {"0.gate_proj", "1.up_proj", "1.down_proj"}) {
    const std::string name = std::string("model.layers.1.mlp.experts.") + part + ".weight";
    std::vector<float> values(32 * 32);
    dequantize(rounded(source.read_float32(source.at(name))), values);
    EXPECT_EQ(output.read_float32(output.at(name)), values) << name;
  }
  EXPECT_EQ(output.at("model.layers.0.mlp.experts.gate_up_proj_blocks").view.shape, (Shape{2, 64, 1, 16}));
  EXPECT_EQ(output.at("model.layers.0.mlp.experts.down_proj_scales").view.shape, (Shape{2, 32, 1}));
  for (const char* kept :
       {"mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias", "self_attn.sinks", "mlp.router.bias"})
    EXPECT_EQ(bytes_of(output, std::string("model.layers.0.") + kept),
              bytes_of(source, std::string("model.layers.0.") + kept))
        << kept;
  const Json& said = output.config().at("quantization_config");
  EXPECT_EQ(said.at("quant_method").as_string(), "mxfp4");
  EXPECT_EQ(said.at("modules_to_not_convert").items().size(), 4u);
  EXPECT_EQ(ModelSpec::read(output).blocks.size(), 2u);
}

// What is rounded anew stands for the same numbers; what is not has the same bytes, codes of -0 among them.
TEST_F(GptOssOutput, OfPublishedExpertsTheOthersKeepTheirBytes) {
  ScratchGptOss model;
  model.as_mxfp4();
  const Checkpoint source = model.open(),
                   output = written(model, kMxfp4Recipe + "ignore: ['re:.*self_attn', 're:.*layers.0.']\n");
  for (const char* stack : {"gate_up_proj", "down_proj"})
    for (const char* what : {"_blocks", "_scales"}) {
      const std::string name = std::string("mlp.experts.") + stack + what;
      EXPECT_EQ(bytes_of(output, "model.layers.0." + name), bytes_of(source, "model.layers.0." + name))
          << name;
    }
  const std::string codes = "model.layers.1.mlp.experts.gate_up_proj_blocks";
  EXPECT_NE(bytes_of(output, codes), bytes_of(source, codes)) << "-0 is written as 0";
  for (const StoredTensor& tensor : source.tensors())
    EXPECT_EQ(output.read_float32(output.at(tensor.name)), source.read_float32(tensor)) << tensor.name;
}

TEST_F(GptOssOutput, WhatCannotBeSaidIsRefused) {
  const ScratchGptOss model;
  EXPECT_THAT(refusal(model, kMxfp4Recipe + "ignore: [o_proj]\n"), HasSubstr("stores experts alone"));
  EXPECT_THAT(
      refusal(model, "method: rtn\nscheme: w4a16_g32_sym\nformat: mxfp4\nignore: ['re:.*self_attn']\n"),
      HasSubstr("stores scheme mxfp4 alone, not w4a16_g32_sym"));
  EXPECT_THAT(refusal(model, kMxfp4Recipe + "ignore: ['re:.*self_attn', gate_proj]\n"),
              HasSubstr("loaders read them as one tensor of one type"));
  EXPECT_THAT(refusal(model, "method: gptq\nscheme: mxfp4\nformat: mxfp4\nignore: ['re:.*self_attn']\n"),
              HasSubstr("method gptq chooses integer codes"));
  EXPECT_THAT(refusal(model, "method: rtn\nscheme: w4a16_g32_sym\nformat: compressed-tensors\n"),
              HasSubstr("write format: mxfp4"));
  ScratchModel llama;
  const Checkpoint checkpoint = llama.open();
  EXPECT_THAT(
      [&] {
        make_plan(Recipe::parse("method: rtn\nscheme: mxfp4\n", "r.yaml"), checkpoint,
                  ModelSpec::read(checkpoint), Compute::kFloat32, 1, 0);
      },
      ::testing::Throws<Error>());
}

}  // namespace
}  // namespace llmq
