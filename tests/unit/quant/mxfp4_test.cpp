// Rounding to MXFP4, and a gpt-oss whose experts are: what is written, what is carried, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "gptq_fixture.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "quant/methods/float_groups.h"
#include "quant/methods/rtn.h"
#include "small_job.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"
#include "tests/unit/model/scratch_gpt_oss.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using testing::SmallJob;
using testing::TemporaryDirectory;
using testing::write_tiny_checkpoint;

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
  return round_float_groups(block, static_cast<std::int64_t>(block.size()) / 32, 32, float4(), {}, here);
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
  EXPECT_THAT(
      refusal(model, "method: smoothquant\nscheme: mxfp4\nformat: mxfp4\nignore: ['re:.*self_attn']\n"),
      HasSubstr("method smoothquant does not round floats in groups"));
  EXPECT_THAT(refusal(model, "method: rtn\nscheme: nvfp4a16\nformat: mxfp4\nignore: ['re:.*self_attn']\n"),
              HasSubstr("stores scheme mxfp4 alone, not nvfp4a16"));
  EXPECT_THAT(refusal(model, kExpertsAlone + "overrides: [{match: 're:.*layers.0', scheme: dense}]\n"),
              HasSubstr("no words for experts of one layer that stay dense"));
  EXPECT_THAT(refusal(model, "method: rtn\nscheme: w4a16_g32_sym\nformat: compressed-tensors\n"),
              HasSubstr("write format: mxfp4"));
  ScratchModel llama;
  const Checkpoint checkpoint = llama.open();
  EXPECT_THAT(
      [&] {
        make_plan(Recipe::parse("method: rtn\nscheme: mxfp4\nformat: mxfp4\n", "r.yaml"), checkpoint,
                  ModelSpec::read(checkpoint), Compute::kFloat32, 1, 0);
      },
      ::testing::Throws<Error>());
}

QuantScheme two_levels_of_16() {
  QuantScheme scheme = float4();
  scheme.group_size = 16;
  return scheme;
}

// Among all E4M3 numbers within the range none loses less, weighed or not; compressed-tensors' own loses
// more.
TEST(FloatGroups, ScalesOfTwoLevelsLoseLeast) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> weight(64 * 16), importance(16);
  for (float& w : weight) w = 0.05f * normal(random);
  for (std::size_t k = 0; k < 16; ++k) importance[k] = k == 3 ? 40.0f : 0.5f;
  ThreadPool here(1);
  const QuantScheme scheme = two_levels_of_16();
  int changed = 0;
  for (const bool weighed : {false, true}) {
    FloatGroupRounding how;
    if (weighed) how.importance = importance;
    const QuantizedMatrix found = round_float_groups(weight, 64, 16, scheme, how, here);
    how.search = false, how.global_scale = found.global_scale;
    const QuantizedMatrix plain = round_float_groups(weight, 64, 16, scheme, how, here);
    const auto lost_with = [&](std::size_t row, float scale) {
      double sum = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        double least = INFINITY;
        for (const float value : kE2M1)
          least = std::min(least, std::pow(double{value} * scale - weight[row * 16 + k], 2));
        sum += least * (weighed ? importance[k] : 1.0f);
      }
      return sum;
    };
    for (std::size_t row = 0; row < 64; ++row) {
      const double lost = lost_with(row, found.scales[row]);
      changed += found.scales[row] != plain.scales[row];
      for (int byte = 1; byte < 127; ++byte) {
        const float scale = nvfp4_scale(static_cast<std::uint8_t>(byte), found.global_scale);
        if (scale < 0.52f * plain.scales[row] || scale > 1.7f * plain.scales[row]) continue;
        EXPECT_LE(lost, lost_with(row, scale) * (1 + 1e-12)) << row << ", byte " << byte;
      }
    }
  }
  EXPECT_GT(changed, 80) << "of 128";
}

// GPTQ loses less than the search alone, on each of the three grids; columns that nobody uses are 0.
TEST(FloatGroups, GptqMakesErrorsGoodOnEveryGrid) {
  GptqFixture fixture(24, 96, 300);
  fixture.silence(5);
  fixture.see_inputs();
  for (const char* name : {"nvfp4a16", "mxfp4", "mxfp8a16"}) {
    SCOPED_TRACE(name);
    const SchemeRequest asked = parse_scheme(name);
    fixture.scheme = QuantScheme{.bits = asked.bits,
                                 .weight_type = asked.weight_type,
                                 .group_size = *asked.group_size,
                                 .symmetric = true};
    const double plain = fixture.rtn_loss();
    for (const RoundingOrder order : {RoundingOrder::kGar, RoundingOrder::kNone, RoundingOrder::kStatic}) {
      const QuantizedMatrix found = fixture.quantize(plain_gptq(order));
      EXPECT_LT(found.loss, (order == RoundingOrder::kStatic ? 0.95 : 0.8) * plain);
      EXPECT_GT(found.loss, 0.02 * plain);
      for (std::int64_t row = 0; row < 24; ++row)
        EXPECT_EQ(found.codes[static_cast<std::size_t>(row * 96 + 5)] & 0x7f & (asked.bits == 4 ? 7 : 0x7f),
                  0);
      const QuantizedMatrix again = fixture.quantize(plain_gptq(order));
      EXPECT_EQ(again.codes, found.codes);
      EXPECT_EQ(again.scales, found.scales);
    }
  }
}

// Divides the weights of a BF16 tensor by 4, in its file.
void quarter(const std::string& directory, const std::string& name) {
  std::uint64_t offset = 0, bytes = 0;
  {
    const Checkpoint checkpoint = open_checkpoint(system_io(), directory);
    const StoredTensor& tensor = checkpoint.at(name);
    offset = tensor.offset, bytes = tensor.view.bytes();
  }
  std::fstream file(directory + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  std::string values(bytes, ' ');
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(values.data(), static_cast<std::streamsize>(bytes));
  for (std::size_t i = 1; i < bytes; i += 2)
    if ((values[i] & 0x7f) != 0) --values[i];  // two off the exponent
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(values.data(), static_cast<std::streamsize>(bytes));
}

// What a whole job writes is read back: fused linears have one global scale, folded or not, by the largest
// weight of all of them.
TEST(FloatGroups, FusedLinearsShareTheirGlobalScale) {
  TemporaryDirectory disk;
  const std::string directory = write_tiny_checkpoint(disk);
  quarter(directory, "model.layers.1.self_attn.q_proj.weight");
  quarter(directory, "model.layers.1.mlp.up_proj.weight");
  const Checkpoint source = open_checkpoint(system_io(), directory);
  float largest_of_gate = 0;  // up is a quarter of it
  for (const float value : source.read_float32(source.at("model.layers.1.mlp.gate_proj.weight")))
    largest_of_gate = std::max(largest_of_gate, std::fabs(value));
  for (const std::string method : {"rtn", "awq", "gptq", "[awq, gptq]"}) {
    SCOPED_TRACE(method);
    SmallJob job{"method: " + method + "\nscheme: nvfp4a16\n", {disk / "out", true}};
    const SmallJob::Result result = job.run(system_io(), source);
    const Checkpoint output = open_checkpoint(system_io(), (disk / "out").string());
    const LinearSource written = LinearSource::open(output);
    const auto global = [&](const char* linear) {
      return written.quantized(std::string("model.layers.1.") + linear).global_scale;
    };
    EXPECT_EQ(global("self_attn.q_proj"), global("self_attn.k_proj"));
    EXPECT_EQ(global("self_attn.q_proj"), global("self_attn.v_proj"));
    EXPECT_EQ(global("mlp.gate_proj"), global("mlp.up_proj"));
    if (method == "rtn" || method == "gptq") {  // no fold changes what is rounded
      EXPECT_EQ(global("mlp.up_proj"), float_group_global(largest_of_gate, true));
    }
    ASSERT_EQ(result.report.modules.size(), 14u);
    for (const ModuleReport& module : result.report.modules)
      EXPECT_LT(module.relative_error, 0.02) << module.module;
  }
}

// Integers, floats in groups, FP8 and dense linears in one run: each is read back with its own scheme, and
// FP8, whose codes these methods do not choose, is the nearest.
TEST(FloatGroups, SchemesOfEveryFormStandSideBySide) {
  TemporaryDirectory disk;
  const Checkpoint source = open_checkpoint(system_io(), write_tiny_checkpoint(disk));
  const std::string block = "model.layers.1.";
  for (const std::string method : {"rtn", "awq", "gptq"}) {
    SCOPED_TRACE(method);
    SmallJob job{"method: " + method +
                     "\nscheme: w4a16_g32_sym\noverrides: [{match: 're:.*self_attn', scheme: nvfp4a16}, "
                     "{match: 're:.*down_proj', scheme: fp8}, {match: 're:.*layers.0.mlp.down_proj', scheme: "
                     "dense}]\n",
                 {disk / "out", true}};
    const SmallJob::Result result = job.run(system_io(), source);
    ASSERT_EQ(result.report.modules.size(), 13u);
    for (const ModuleReport& module : result.report.modules)
      EXPECT_EQ(module.method, module.module.ends_with("down_proj") ? "rtn" : module.method) << module.module;
    const Checkpoint output = open_checkpoint(system_io(), (disk / "out").string());
    const LinearSource written = LinearSource::open(output);
    EXPECT_EQ(written.quantized(block + "self_attn.o_proj").scheme.text(), "nvfp4a16");
    EXPECT_EQ(written.quantized(block + "mlp.up_proj").scheme.text(), "w4a16_g32_sym");
    const QuantizedMatrix float8 = written.quantized(block + "mlp.down_proj");
    EXPECT_EQ(float8.scheme.text(), "fp8");
    if (method != "awq") {  // whose folds change what is rounded
      ThreadPool here(1);
      const std::vector<float> weight = source.read_float32(source.at(block + "mlp.down_proj.weight"));
      EXPECT_EQ(float8.codes, round_to_nearest(weight, 64, 128, float8.scheme, here).codes);
    }
    EXPECT_NE(output.find("model.layers.0.mlp.down_proj.weight"), nullptr);
    EXPECT_EQ(output.find("model.layers.0.mlp.down_proj.weight_scale"), nullptr);
  }
}

// The largest weight that a global scale reaches has a scale of its own; beyond it, weights are cut.
TEST(FloatGroups, AGlobalScaleReachesSoFar) {
  QuantScheme scheme;
  scheme.weight_type = WeightType::kFloat4, scheme.granularity = Granularity::kGroup, scheme.bits = 4;
  scheme.group_size = 16;
  const FloatScales scales(scheme, true, 3.0f);
  const float reach = float_group_reach(3.0f);
  ThreadPool pool(1);
  for (const auto& [largest, kept] : {std::pair(reach, true), std::pair(1.5f * reach, false)}) {
    std::vector<float> group(16, 0.0f);
    group[3] = largest;
    const float scale = search_float_scale(group, {}, scales);
    EXPECT_EQ(scale * 6 >= largest, kept) << largest;
  }
}

// A byte of the file that is no exponent is named with its place.
TEST(FloatGroups, AnExponentThatIsNoNumberIsNamed) {
  TemporaryDirectory disk;
  const Checkpoint source = open_checkpoint(system_io(), write_tiny_checkpoint(disk));
  for (const char* scheme : {"mxfp4", "mxfp8a16"}) {
    SmallJob job{std::string("method: rtn\nscheme: ") + scheme + "\n", {disk / scheme, false}};
    job.run(system_io(), source);
    const std::string name = "model.layers.0.mlp.down_proj";
    std::uint64_t offset = 0;
    {
      const Checkpoint output = open_checkpoint(system_io(), (disk / scheme).string());
      const StoredTensor& scales = output.at(name + ".weight_scale");
      EXPECT_EQ(scales.view.shape, (Shape{64, 4}));
      offset = scales.offset + 4 * 7 + 2;
    }
    {
      std::fstream file(disk / scheme / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(offset));
      file.put('\xff');
    }
    const Checkpoint output = open_checkpoint(system_io(), (disk / scheme).string());
    EXPECT_THAT([&] { LinearSource::open(output).quantized(name); },
                ::testing::Throws<Error>(::testing::Property(
                    &Error::what, HasSubstr("has the byte 255 at row 7, group 2, which is no scale"))));
  }
}

}  // namespace
}  // namespace llmq
