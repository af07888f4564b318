// NF4 as bitsandbytes rounds and stores it, and a model of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "export/convert.h"
#include "export/formats/nf4.h"
#include "export/inspect.h"
#include "model/open_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/export/stored_vectors.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using testing::kTinystories;
using testing::TemporaryDirectory;

// What the package made (tests/unit/model/fixtures/make_bitsandbytes.py).
Checkpoint open_package(const TemporaryDirectory& disk) {
  std::filesystem::copy_file(Path(LLMQ_SOURCE_DIR) / "tests/unit/model/fixtures/bitsandbytes.safetensors",
                             disk / "model.safetensors");
  write_text_atomically(system_io(), disk / "config.json", "{}");
  return Checkpoint::open(system_io(), disk.path().string());
}

std::vector<PackedTensor> packed_again(const Checkpoint& stored, const std::string& name,
                                       const Nf4Form& form) {
  const StoredTensor& numbers = stored.at(name + ".numbers");
  return pack_nf4({name, {}, numbers.view.shape[0], numbers.view.shape[1]}, stored.read_float32(numbers),
                  form);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Nf4, IsThePackagesByteForByte) {
  const TemporaryDirectory disk;
  const Checkpoint stored = open_package(disk);
  for (const std::string name : {"plain", "short"}) {
    const std::vector<PackedTensor> tensors =
        packed_again(stored, name, {name == "plain" ? DType::kBF16 : DType::kF16, false});
    ASSERT_EQ(tensors.size(), 4u);
    testing::expect_stored(tensors, stored);
  }
}

// 264 scales, the last eight in a block of their own. Behind the JSON ours has blanks.
TEST(Nf4, NestedScalesAreThePackagesByteForByte) {
  const TemporaryDirectory disk;
  const Checkpoint stored = open_package(disk);
  std::vector<PackedTensor> tensors = packed_again(stored, "nested", {DType::kBF16, true});
  ASSERT_EQ(tensors.size(), 6u);
  const std::string state = text_of(tensors.back().bytes);
  const StoredTensor& theirs = stored.at(tensors.back().declaration.name);
  EXPECT_EQ(state.substr(0, state.find_last_not_of(' ') + 1),
            text_of({theirs.view.as<const std::byte>(), static_cast<std::size_t>(theirs.view.bytes())}));
  tensors.pop_back();
  testing::expect_stored(tensors, stored);
}

// Torch adds the six scales in FP32, and its mean is the FP32 number below ours.
TEST(Nf4, AMeanOfOtherSumsMovesNoCode) {
  const TemporaryDirectory disk;
  const Checkpoint stored = open_package(disk);
  const std::vector<PackedTensor> tensors = packed_again(stored, "single", {DType::kF32, true});
  testing::expect_stored({tensors.data(), 2}, stored);
  EXPECT_EQ(tensors[1].declaration.name, "single.weight.absmax");
  EXPECT_THAT(text_of(tensors.back().bytes), ::testing::HasSubstr("\"nested_offset\": 2.7592320442199707}"));
}

// The JSON has the same length whatever the mean is, and scales that are all the same are the mean.
TEST(Nf4, NestedScalesOfAnySize) {
  const PlannedModule m{"m", {}, 3, 64};
  for (const float size : {0.f, 1.f, 1.17549435e-38f, 1e-45f, 1.1754943e-4f, 3.4028235e38f}) {
    std::vector<float> numbers(192, size);
    const std::vector<PackedTensor> tensors = pack_nf4(m, numbers, {DType::kF32, true});
    const std::vector<TensorDeclaration> declared = declare_nf4(m, {DType::kF32, true});
    ASSERT_EQ(tensors.size(), declared.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_EQ(static_cast<std::int64_t>(tensors[i].bytes.size()),
                declared[i].shape.elements() * element_bytes(declared[i].dtype))
          << declared[i].name << " of " << size;
    const Json state = Json::parse(text_of(tensors.back().bytes), "state");
    EXPECT_EQ(static_cast<float>(state.at("nested_offset").as_double()), size);
    EXPECT_EQ(tensors[1].bytes, std::vector<std::byte>(3, std::byte{127})) << "nothing is left of them";
  }
}

// Ties go to the lower code; a run of zeros has the scale 0 and codes of 0.
TEST(Nf4, TiesAndZeros) {
  std::vector<float> numbers(128);
  numbers[0] = 2;
  numbers[1] = (0.7229568362236023f + 1.0f) / 2 * 2;
  const std::vector<PackedTensor> tensors = pack_nf4({"m", {}, 2, 64}, numbers, {DType::kF32, false});
  EXPECT_EQ(tensors[0].bytes[0], std::byte{0xfe});
  EXPECT_EQ(tensors[0].bytes[1], std::byte{0x77});
  EXPECT_EQ(tensors[0].bytes[63], std::byte{0x77});
  float scales[2];
  std::memcpy(scales, tensors[1].bytes.data(), sizeof scales);
  EXPECT_EQ(scales[0], 2.f);
  EXPECT_EQ(scales[1], 0.f);
}

ConvertReport to_nf4(const std::string& source, const Path& target, bool nested = false) {
  ConvertRequest request;
  request.source = source;
  request.target.directory = target;
  request.to = kNf4Format;
  request.double_quant = nested;
  return convert(system_io(), open_checkpoint(system_io(), source), request);
}

TEST(Nf4, AModelOfItIsReadAsTheNumbersThatItStandsFor) {
  for (const bool nested : {false, true}) {
    const TemporaryDirectory disk;
    EXPECT_EQ(to_nf4(kTinystories.string(), disk / "nf4", nested).dtype, nested ? "nf4_nested" : "nf4");
    const Checkpoint made = open_checkpoint(system_io(), (disk / "nf4").string()),
                     source = open_checkpoint(system_io(), kTinystories.string());
    EXPECT_EQ(made.config().at("quantization_config").at("llm_int8_skip_modules"), Json::array({"lm_head"}));
    EXPECT_EQ(made.config().at("quantization_config").at("bnb_4bit_use_double_quant"), Json(nested));
    // A scale for 64 numbers, and one for 256 of 64 or fewer.
    EXPECT_NEAR(inspect(system_io(), (disk / "nf4").string(), false).bits_per_weight, nested ? 4.127 : 4.5,
                1e-3);
    const ModelSpec spec = ModelSpec::read(made);
    ASSERT_EQ(made.tensors().size(), source.tensors().size());
    for (const StoredTensor& tensor : source.tensors()) {
      const std::vector<float> before = source.read_float32(tensor),
                               after = made.read_float32(made.at(tensor.name));
      const auto& codes = made.at(tensor.name).bits_and_bytes;
      if (!codes) {
        EXPECT_EQ(before, after) << tensor.name;
        continue;
      }
      EXPECT_EQ(codes->nested.view.pointer != nullptr, nested) << tensor.name;
      double error = 0, square = 0;
      for (std::size_t i = 0; i < before.size(); ++i) {
        error += static_cast<double>((after[i] - before[i]) * (after[i] - before[i]));
        square += static_cast<double>(before[i] * before[i]);
      }
      EXPECT_LT(error / square, 0.02) << tensor.name;
      EXPECT_GT(error / square, 0.001) << tensor.name;
    }
  }
}

TEST(Nf4, NestedScalesAreAskedOfNothingElse) {
  ConvertRequest request;
  request.double_quant = true;
  EXPECT_THAT([&] { check_conversion(request); },
              ::testing::Throws<Error>(::testing::Property(&Error::kind, ErrorKind::kUsage)));
  request.to = kNf4Format;
  check_conversion(request);
  EXPECT_TRUE(conversion_request(conversion_json(request), "manifest").double_quant);
}

// Of whatever rounded them before, another container's codes or its own.
TEST(Nf4, NumbersThatWereCodesAreNamed) {
  const TemporaryDirectory disk;
  const auto said = [&](const std::string& source, const char* target) {
    ::testing::internal::CaptureStderr();
    to_nf4(source, disk / target);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(kTinystories.string(), "nf4"), "");
  testing::to_gguf(system_io(), kTinystories.string(), disk / "m.gguf", "q8_0");
  EXPECT_THAT(said((disk / "m.gguf").string(), "of-gguf"),
              HasSubstr("m.gguf: model.layers.0.self_attn.q_proj is stored as Q8_0 and is rounded a second"));
  EXPECT_THAT(said((disk / "nf4").string(), "again"), HasSubstr("q_proj is stored as NF4 and is rounded"));
  ConvertRequest to_mlx;
  to_mlx.source = kTinystories.string();
  to_mlx.target.directory = disk / "mlx";
  to_mlx.to = "mlx";
  convert(system_io(), open_checkpoint(system_io(), to_mlx.source), to_mlx);
  EXPECT_THAT(said((disk / "mlx").string(), "of-mlx"), HasSubstr("q_proj is stored as MLX codes of 4 bits"));
}

TEST(Nf4, WhatIsQuantizedOrHasExpertsIsRefused) {
  const TemporaryDirectory disk;
  testing::expect_refusal(ErrorKind::kUnsupported, "experts", [&] {
    to_nf4((Path(LLMQ_SOURCE_DIR) / "tests/golden/models/qwen3_moe/model").string(), disk / "a");
  });
}

}  // namespace
}  // namespace llmq
