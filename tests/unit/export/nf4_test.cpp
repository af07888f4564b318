// NF4 as bitsandbytes rounds and stores it, and a model of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "export/convert.h"
#include "export/formats/nf4.h"
#include "model/open_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/export/stored_vectors.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::kTinystories;
using testing::TemporaryDirectory;

// Both are the package's (tests/unit/model/fixtures/make_bitsandbytes.py).
TEST(Nf4, IsThePackagesByteForByte) {
  const TemporaryDirectory disk;
  std::filesystem::copy_file(Path(LLMQ_SOURCE_DIR) / "tests/unit/model/fixtures/bitsandbytes.safetensors",
                             disk / "model.safetensors");
  write_text_atomically(system_io(), disk / "config.json", "{}");
  const Checkpoint stored = Checkpoint::open(system_io(), disk.path().string());
  for (const std::string name : {"plain", "short"}) {
    const StoredTensor& numbers = stored.at(name + ".numbers");
    const PlannedModule m{name, {}, numbers.view.shape[0], numbers.view.shape[1]};
    const std::vector<PackedTensor> tensors =
        pack_nf4(m, stored.read_float32(numbers), name == "plain" ? DType::kBF16 : DType::kF16);
    ASSERT_EQ(tensors.size(), 4u);
    testing::expect_stored(tensors, stored);
  }
}

// Ties go to the lower code; a run of zeros has the scale 0 and codes of 0.
TEST(Nf4, TiesAndZeros) {
  std::vector<float> numbers(128);
  numbers[0] = 2;
  numbers[1] = (0.7229568362236023f + 1.0f) / 2 * 2;
  const std::vector<PackedTensor> tensors = pack_nf4({"m", {}, 2, 64}, numbers, DType::kF32);
  EXPECT_EQ(tensors[0].bytes[0], std::byte{0xfe});
  EXPECT_EQ(tensors[0].bytes[1], std::byte{0x77});
  EXPECT_EQ(tensors[0].bytes[63], std::byte{0x77});
  float scales[2];
  std::memcpy(scales, tensors[1].bytes.data(), sizeof scales);
  EXPECT_EQ(scales[0], 2.f);
  EXPECT_EQ(scales[1], 0.f);
}

ConvertReport to_nf4(const std::string& source, const Path& target) {
  ConvertRequest request;
  request.source = source;
  request.target.directory = target;
  request.to = kNf4Format;
  return convert(system_io(), open_checkpoint(system_io(), source), request);
}

TEST(Nf4, AModelOfItIsReadAsTheNumbersThatItStandsFor) {
  const TemporaryDirectory disk;
  to_nf4(kTinystories.string(), disk / "nf4");
  const Checkpoint made = open_checkpoint(system_io(), (disk / "nf4").string()),
                   source = open_checkpoint(system_io(), kTinystories.string());
  EXPECT_EQ(made.config().at("quantization_config").at("llm_int8_skip_modules"), Json::array({"lm_head"}));
  const ModelSpec spec = ModelSpec::read(made);
  ASSERT_EQ(made.tensors().size(), source.tensors().size());
  for (const StoredTensor& tensor : source.tensors()) {
    const std::vector<float> before = source.read_float32(tensor),
                             after = made.read_float32(made.at(tensor.name));
    if (!made.at(tensor.name).bits_and_bytes) {
      EXPECT_EQ(before, after) << tensor.name;
      continue;
    }
    double error = 0, square = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      error += static_cast<double>((after[i] - before[i]) * (after[i] - before[i]));
      square += static_cast<double>(before[i] * before[i]);
    }
    EXPECT_LT(error / square, 0.02) << tensor.name;
    EXPECT_GT(error / square, 0.001) << tensor.name;
  }
}

TEST(Nf4, WhatIsQuantizedOrHasExpertsIsRefused) {
  const TemporaryDirectory disk;
  testing::expect_refusal(ErrorKind::kUnsupported, "experts", [&] {
    to_nf4((Path(LLMQ_SOURCE_DIR) / "tests/golden/models/qwen3_moe/model").string(), disk / "a");
  });
}

}  // namespace
}  // namespace llmq
