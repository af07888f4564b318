// FP8 with scales of blocks, rows or whole matrices, as DeepSeek V3, Llama 3.1 and Mistral are published:
// numbers from opening on, and what is refused.
//
// float8_*.safetensors have the numbers that Transformers 5.23 makes of them (make_float8.py beside them).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/half.h"
#include "model/linear_source.h"
#include "scratch_golden.h"
#include "tests/support/temporary_directory.h"

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
              HasSubstr("FP8 without weight_block_size has E4M3 [rows, columns] and one number"));
  EXPECT_THAT(model.refused("weight_block_size", 128), HasSubstr("weight_block_size: is no pair of sizes"));
  EXPECT_THAT(model.refused("weight_block_size", Json::array({5, 0})),
              HasSubstr("weight_block_size: is no pair"));
  EXPECT_THAT(model.refused("weight_block_size", Json::array({1 << 21, 128})),
              HasSubstr("weight_block_size: is no pair"));
  EXPECT_THAT(model.refused("weight_block_size", Json::array({5, 8})),
              HasSubstr("scales F32 of shape [4, 3]"));
  EXPECT_THAT(model.refused("activation_scheme", "none"), HasSubstr("activation_scheme: is \"none\""));
  EXPECT_THAT(model.refused("scale_fmt", "other"), HasSubstr("scale_fmt: is \"other\""));
  EXPECT_THAT(model.refused("expert_dtype", "fp4"), HasSubstr("expert_dtype"));
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

TEST(Float8Blocks, AScaleThatIsNoneIsRefusedWhereItIsRead) {
  const auto refused = [](float scale, bool allow_nonfinite) {
    ScratchFloat8 model;
    model.scales[5] = scale;
    model.tensors[kBlockScaled + "_scale_inv"] = scratch_tensor("F32", {4, 3}, model.scales);
    const Checkpoint checkpoint = model.open();
    const ModelSpec spec = ModelSpec::read(checkpoint);
    ThreadPool pool(1);
    return error_of(
        [&] { LinearSource::open(checkpoint).weight(spec.blocks[0].linears[0], pool, allow_nonfinite); });
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::pair<float, const char*> scales[] = {{std::numeric_limits<float>::quiet_NaN(), "NaN"},
                                                  {kInfinity, "infinity"},
                                                  {-kInfinity, "-infinity"},
                                                  {-0.5f, "-0.5"}};
  for (const auto& [scale, text] : scales)
    for (const bool allow_nonfinite : {false, true})
      EXPECT_THAT(
          refused(scale, allow_nonfinite),
          HasSubstr("model.safetensors: " + kBlockScaled + ": has the scale " + text +
                    " for rows 5 to 9, columns 14 to 15, and those of FP8 are finite and not below 0"));
  EXPECT_EQ(refused(0.f, false), "") << "of a block of zeros";
}

Json of_method(const char* name) { return Json::object({{"quant_method", name}}); }

TEST(Float8Blocks, EveryFormHasTheNumbersOfTransformers) {
  Json exponents = of_method("fp8");
  exponents["weight_block_size"] = Json::array({8, 16});
  exponents["scale_fmt"] = "ue8m0";
  int matrices = 0;
  for (const auto& [form, config] :
       {std::pair{"tensor", of_method("fp8")}, {"bytes", exponents}, {"rows", of_method("fbgemm_fp8")}}) {
    const testing::TemporaryDirectory disk;
    std::filesystem::copy_file(
        Path(LLMQ_SOURCE_DIR) / fmt::format("tests/unit/model/fixtures/float8_{}.safetensors", form),
        disk / "model.safetensors");
    write_text_atomically(system_io(), disk / "config.json",
                          Json::object({{"quantization_config", config}}).dump());
    const Checkpoint checkpoint = Checkpoint::open(system_io(), disk.path().string());
    for (const StoredTensor& weight : checkpoint.tensors()) {
      if (!weight.is_scaled()) continue;
      ++matrices;
      const std::string values = weight.name.substr(0, weight.name.rfind('.')) + ".values";
      EXPECT_EQ(checkpoint.read_float32(weight), checkpoint.read_float32(checkpoint.at(values)))
          << weight.name;
    }
    EXPECT_EQ(checkpoint.tensors().size() % 2, 0u) << "weights and values; nothing that stands beside them";
  }
  EXPECT_EQ(matrices, 6);
}

// As Mistral publishes it: one number for a matrix, and one for its inputs.
struct ScratchFloat8Tensor : ScratchFloat8 {
  ScratchFloat8Tensor() {
    tensors[kBlockScaled + "_scale_inv"] = scratch_tensor("F32", {}, std::vector<float>{0.25f});
    tensors["model.layers.0.self_attn.q_proj.activation_scale"] =
        scratch_tensor("F32", {}, std::vector<float>{3});
    config["quantization_config"] = Json::object({{"quant_method", "fp8"},
                                                  {"activation_scheme", "static"},
                                                  {"weight_block_size", nullptr},
                                                  {"dequantize", false},
                                                  {"modules_to_not_convert", Json::array({"lm_head"})}});
  }
};

TEST(Float8Blocks, AScaleOfInputsIsPassedOverAndTold) {
  ScratchFloat8Tensor model;
  ::testing::internal::CaptureStderr();
  const Checkpoint checkpoint = model.open();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("1 scales of inputs are passed over (model.layers.0.self_attn.q_proj.activation_scale): "
                "inputs meet FP8 weights as they are"));
  const ModelSpec spec = ModelSpec::read(checkpoint);
  ThreadPool pool(2);
  const ZeroedNumbers<float> weight = LinearSource::open(checkpoint).weight(spec.blocks[0].linears[0], pool);
  for (std::size_t i = 0; i < model.codes.size(); ++i)
    EXPECT_EQ(weight[i], to_float(Float8{model.codes[i]}) * 0.25f);
  // Beside what is no FP8, or of several numbers, it is a tensor that nobody reads.
  model.tensors["model.layers.0.self_attn.k_proj.input_scale"] =
      scratch_tensor("F32", {1}, std::vector<float>{3});
  EXPECT_THAT(model.refused(), HasSubstr("k_proj.input_scale: nothing in this family reads this tensor"));
  model.tensors.erase("model.layers.0.self_attn.k_proj.input_scale");
  model.tensors["model.layers.0.self_attn.q_proj.activation_scale"] =
      scratch_tensor("F32", {2}, std::vector<float>{3, 3});
  EXPECT_THAT(model.refused(), HasSubstr("q_proj.activation_scale: nothing in this family reads"));
}

TEST(Float8Blocks, OneNumberIsToldFromMany) {
  ScratchFloat8Tensor model;
  const ScratchTensor one = model.tensors[kBlockScaled + "_scale_inv"];
  model.tensors[kBlockScaled + "_scale"] = one;
  EXPECT_THAT(model.refused(),
              HasSubstr(kBlockScaled + ": has scales twice: " + kBlockScaled + "_scale and "));
  model.tensors.erase(kBlockScaled + "_scale_inv");
  EXPECT_EQ(model.refused(), "") << "AutoFP8's name";
  model.tensors[kBlockScaled + "_scale"] = scratch_tensor("F32", {16, 1}, std::vector<float>(16, 1));
  EXPECT_THAT(model.refused(), HasSubstr("with scales F32 of shape [16, 1]: FP8 without weight_block_size"));
  model.tensors[kBlockScaled + "_scale"] = scratch_tensor("U8", {1}, std::vector<std::uint8_t>{120});
  EXPECT_THAT(model.refused(), HasSubstr("with scales U8"));
  model.config["quantization_config"]["scale_fmt"] = "ue8m0";
  EXPECT_EQ(model.refused(), "");
  model.tensors.erase(kBlockScaled + "_scale");
  EXPECT_THAT(model.refused(), HasSubstr("its scales are missing: no " + kBlockScaled + "_scale_inv and no " +
                                         kBlockScaled + "_scale"));
}

TEST(Float8Blocks, TheByteOfNoNumberIsRefused) {
  ScratchFloat8 model;
  std::vector<std::uint8_t> exponents(12, 120);
  exponents[3] = 255;
  model.tensors[kBlockScaled + "_scale_inv"] = scratch_tensor("F8_E8M0", {4, 3}, exponents);
  EXPECT_EQ(model.refused(), "") << "no value is looked at";
  const Checkpoint checkpoint = model.open();
  EXPECT_THAT(error_of([&] { checkpoint.read_float32(checkpoint.at(kBlockScaled)); }),
              HasSubstr("has the scale NaN for rows 5 to 9, columns 0 to 6"));
}

TEST(Float8Blocks, RowsHaveAScaleEach) {
  ScratchFloat8 model;
  model.config["quantization_config"] = Json::object({{"quant_method", "fbgemm_fp8"},
                                                      {"activation_scale_ub", 1200.0},
                                                      {"modules_to_not_convert", Json::array({"lm_head"})}});
  EXPECT_THAT(model.refused(), HasSubstr("its scales are missing: no " + kBlockScaled + "_scale"));
  model.tensors.erase(kBlockScaled + "_scale_inv");
  std::vector<float> scales;
  for (int i = 0; i < 16; ++i) scales.push_back(0.01f * static_cast<float>(i + 1));
  model.tensors["model.layers.0.self_attn.q_proj.input_scale_ub"] =
      scratch_tensor("F32", {1}, std::vector<float>{1200});
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{16, 1}, {16}}) {
    model.tensors[kBlockScaled + "_scale"] = scratch_tensor("F32", shape, scales);
    EXPECT_EQ(model.refused(), "");
    const Checkpoint checkpoint = model.open();
    const std::vector<float> found = checkpoint.read_float32(checkpoint.at(kBlockScaled));
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(found[i], to_float(Float8{model.codes[i]}) * scales[i / 16]);
  }
  scales[7] = -1;
  model.tensors[kBlockScaled + "_scale"] = scratch_tensor("F32", {16, 1}, scales);
  const Checkpoint checkpoint = model.open();
  EXPECT_THAT(error_of([&] { checkpoint.read_float32(checkpoint.at(kBlockScaled)); }),
              HasSubstr("has the scale -1 for rows 7 to 7, columns 0 to 15"));
  model.tensors[kBlockScaled + "_scale"] = scratch_tensor("F32", {1, 16}, scales);
  EXPECT_THAT(model.refused(), HasSubstr("fbgemm_fp8 has E4M3 [rows, columns] and a number for each row"));
  model.tensors[kBlockScaled + "_scale"] = scratch_tensor("F32", {16, 1}, scales);
  EXPECT_THAT(model.refused("zero_points", true), HasSubstr("zero_points: this field is not known"));
  const std::string stack = "model.layers.0.mlp.experts.gate_up_proj";
  model.tensors[stack] = scratch_tensor("F8_E4M3", {2, 4, 4}, std::vector<std::uint8_t>(32, 1));
  model.tensors[stack + "_scale"] = scratch_tensor("F32", {2, 1, 4}, std::vector<float>(8, 1));
  EXPECT_THAT(
      model.refused(),
      HasSubstr(stack + ": is F8_E4M3 of shape [2, 4, 4] with scales F32 of shape [2, 1, 4]: fbgemm_fp8"));
}

}  // namespace
}  // namespace llmq
