// Weights of MLX: to the bit what mx.dequantize gives, read by rows or whole, and what is refused.
//
// mlx.safetensors was written by mlx 0.32 (make_mlx.py beside it).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "model/linear_source.h"
#include "scratch_golden.h"
#include "tests/support/temporary_directory.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

const Path kMlxVectors = Path(LLMQ_SOURCE_DIR) / "tests/unit/model/fixtures/mlx.safetensors";

TEST(Mlx, NumbersAreThoseOfThePackage) {
  const testing::TemporaryDirectory disk;
  std::filesystem::copy_file(kMlxVectors, disk / "model.safetensors");
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"w2g32bfloat16", R"({"bits": 2, "group_size": 32})"},
      {"w3g64float16", R"({"bits": 3, "group_size": 64})"},
      {"w4g128bfloat16", R"({"bits": 4, "group_size": 128})"},
      {"w5g32bfloat16", R"({"bits": 5, "group_size": 32})"},
      {"w6g64float32", R"({"bits": 6, "group_size": 64})"},
      {"w8g128bfloat16", R"({"bits": 8, "group_size": 128})"},
      {"w4g64float16", "true"},
      {"w8g32float16", R"({"bits": 8, "group_size": 32})"},
      {"w4g32bfloat16stack", R"({"bits": 4, "group_size": 32, "mode": "affine"})"}};
  std::string said = R"("bits": 4, "group_size": 64)";
  for (const auto& [name, form] : forms) said += fmt::format(R"(, "{}": {})", name, form);
  write_text_atomically(system_io(), disk / "config.json",
                        fmt::format(R"({{"quantization": {{{0}}}, "quantization_config": {{{0}}}}})", said));
  const Checkpoint checkpoint = Checkpoint::open(system_io(), disk.path().string());
  EXPECT_TRUE(checkpoint.config().members().empty()) << "what said how it was stored";
  EXPECT_EQ(checkpoint.tensors().size(), 3 * forms.size()) << "weights, numbers and values";
  for (const auto& [name, form] : forms) {
    const StoredTensor &weight = checkpoint.at(name + ".weight"), &values = checkpoint.at(name + ".values");
    ASSERT_TRUE(weight.made_of) << name;
    EXPECT_EQ(weight.view.dtype, values.view.dtype) << name;
    ASSERT_EQ(weight.view.shape, values.view.shape) << name;
    EXPECT_EQ(checkpoint.read_float32(weight), checkpoint.read_float32(values)) << name;
    // A single row, as embeddings are read, and what was not held before.
    const std::int64_t row = weight.view.rows() - 1, bytes = static_cast<std::int64_t>(weight.view.bytes());
    const Lease lease = checkpoint.hold_rows(weight, row, 1), other = checkpoint.hold(values);
    const std::int64_t first = bytes / weight.view.rows() * row;
    EXPECT_EQ(std::memcmp(weight.view.as<std::byte>() + first, values.view.as<std::byte>() + first,
                          static_cast<std::size_t>(bytes - first)),
              0)
        << name;
  }
}

// Hidden 64, heads of 16; q of the first block has codes 0 to 7 in turn, which are -1 to 2.5.
struct ScratchMlx : ScratchModel {
  const std::string module = "model.layers.0.self_attn.q_proj";

  ScratchMlx() {
    config["hidden_size"] = 64;
    for (const char* key : {"quantization", "quantization_config"})
      config[key] = Json::object({{"group_size", 32}, {"bits", 4}, {"mode", "affine"}});
    for (auto& [name, tensor] : tensors) {
      std::vector<std::int64_t> shape = tensor.shape;
      for (std::int64_t& extent : shape) extent = extent == 16 ? 64 : extent == 8 ? 32 : extent;
      tensor = scratch_ramp(shape);
    }
    set_codes(64, 64);
  }
  void set_codes(std::int64_t rows, std::int64_t columns) {
    std::vector<std::uint32_t> words;
    for (std::int64_t i = 0; i < rows * columns / 8; ++i) words.push_back(0x76543210u);
    tensors[module + ".weight"] = scratch_tensor("U32", {rows, columns / 8}, words);
    tensors[module + ".scales"] =
        scratch_tensor("F32", {rows, columns / 32}, std::vector<float>(words.size() / 4, 0.5f));
    tensors[module + ".biases"] =
        scratch_tensor("F32", {rows, columns / 32}, std::vector<float>(words.size() / 4, -1.0f));
  }
  Json& said(const char* key) { return config["quantization"][key]; }
  std::string refused() {
    return error_of([&] { ModelSpec::read(open()); });
  }
};

TEST(Mlx, AModelOfItIsDense) {
  ScratchMlx model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  EXPECT_EQ(source.format(), PackedFormat::kNone);
  EXPECT_TRUE(checkpoint.holds_in_memory());
  ThreadPool pool(2);
  const ZeroedNumbers<float> weight = source.weight(spec.blocks[0].linears[0], pool);
  for (std::size_t k = 0; k < weight.size(); ++k) ASSERT_EQ(weight[k], 0.5f * static_cast<float>(k % 8) - 1);
  const std::uint64_t dense = [] {
    ScratchMlx without;
    without.tensors.erase(without.module + ".weight");
    return without.open().tensor_bytes();
  }();
  EXPECT_EQ(checkpoint.tensor_bytes(), dense + 64 * 64 / 2) << "bytes are those on the disk";
}

TEST(Mlx, WhatIsNoneIsRefusedByName) {
  {
    ScratchMlx model;
    model.tensors.erase(model.module + ".biases");
    EXPECT_THAT(model.refused(), HasSubstr("has no model.layers.0.self_attn.q_proj.biases beside it"));
  }
  {
    ScratchMlx model;
    model.tensors[model.module + ".scales"] = scratch_tensor("F32", {64, 1}, std::vector<float>(64, 1.f));
    EXPECT_THAT(model.refused(), HasSubstr("is U32 of shape [64, 8] with scales F32 of shape [64, 1]"));
  }
  {
    ScratchMlx model;
    model.tensors[model.module + ".biases"] = scratch_tensor("F16", {64, 2}, std::vector<std::uint16_t>(128));
    EXPECT_THAT(model.refused(), HasSubstr("and biases F16 of shape [64, 2]"));
  }
  {
    ScratchMlx model;  // 64 columns are no whole group of 128
    model.said("group_size") = 128;
    EXPECT_THAT(model.refused(), HasSubstr("codes of 4 bits in groups of 128 have whole groups in each row"));
  }
  {
    ScratchMlx model;  // 8 words are no whole number of codes
    model.said("bits") = 3;
    EXPECT_THAT(model.refused(), HasSubstr("codes of 3 bits in groups of 32"));
  }
  for (const auto& [key, value, words] :
       {std::tuple{"bits", Json(7), "quantization.bits: is 7, and one of 2, 3, 4, 5, 6, 8 is read"},
        std::tuple{"group_size", Json(48), "quantization.group_size: is 48"},
        std::tuple{"group_size", Json("32"), "quantization.group_size: is \"32\""},
        std::tuple{"mode", Json("mxfp4"), "quantization.mode: the mode is \"mxfp4\""},
        std::tuple{"activations", Json(8), "quantization.activations: this field is not known"}}) {
    ScratchMlx model;
    model.said(key) = value;
    EXPECT_THAT(model.refused(), HasSubstr(words));
  }
  {
    ScratchMlx model;
    model.said(model.module.c_str()) = Json::object({{"bits", 4}, {"group_size", 32}, {"mode", "nvfp4"}});
    EXPECT_THAT(model.refused(), HasSubstr("q_proj.mode: the mode is \"nvfp4\""));
    model.said(model.module.c_str()) = Json::object({{"bits", 4}, {"group_size", 32}, {"symmetric", true}});
    EXPECT_THAT(model.refused(), HasSubstr("q_proj.symmetric: this field is not known"));
    model.said(model.module.c_str()) = false;
    EXPECT_THAT(model.refused(), HasSubstr("config.json says that it is not quantized"));
  }
  {
    ScratchMlx model;
    model.tensors[model.module + ".weight"] = scratch_tensor("U32", {0, 8}, std::vector<std::uint32_t>());
    EXPECT_THAT(model.refused(), HasSubstr("is U32 of shape [0, 8]"));
  }
}

// mlx-lm stores such a model's tensors otherwise.
TEST(Mlx, FamiliesWhoseTensorsItChangesAreRefused) {
  ScratchGolden mixture("qwen3_moe");
  const std::string module = "model.layers.0.self_attn.q_proj";
  mixture.config["quantization"] = Json::object({{"group_size", 32}, {"bits", 4}});
  mixture.tensors[module + ".weight"] = scratch_tensor("U32", {64, 4}, std::vector<std::uint32_t>(256));
  for (const char* part : {".scales", ".biases"})
    mixture.tensors[module + part] = scratch_tensor("F32", {64, 1}, std::vector<float>(64));
  EXPECT_THAT(error_of([&] { ModelSpec::read(mixture.open()); }),
              HasSubstr("is of MLX, and mlx-lm stores models of qwen3_moe otherwise"));
}

}  // namespace
}  // namespace llmq
