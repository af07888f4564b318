// MLX's container, and models in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "export/convert.h"
#include "export/formats/mlx.h"
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

const Path kMlxFile = Path(LLMQ_SOURCE_DIR) / "tests/unit/model/fixtures/mlx.safetensors";

struct MlxMatrix {
  std::string name;
  int bits, group;
};
const std::vector<MlxMatrix> kMlxMatrices = {{"w2g32bfloat16", 2, 32},   {"w3g64float16", 3, 64},
                                             {"w4g128bfloat16", 4, 128}, {"w5g32bfloat16", 5, 32},
                                             {"w6g64float32", 6, 64},    {"w8g128bfloat16", 8, 128},
                                             {"w4g64float16", 4, 64},    {"w8g32float16", 8, 32}};

// Both are MLX's (tests/unit/model/fixtures/make_mlx.py).
TEST(Mlx, IsThePackagesByteForByte) {
  const TemporaryDirectory disk;
  std::filesystem::copy_file(kMlxFile, disk / "model.safetensors");
  write_text_atomically(system_io(), disk / "config.json", "{}");
  const Checkpoint stored = Checkpoint::open(system_io(), disk.path().string());
  for (const MlxMatrix& matrix : kMlxMatrices) {
    const StoredTensor& numbers = stored.at(matrix.name + ".numbers");
    PlannedModule m{matrix.name, {}, numbers.view.shape[0], numbers.view.shape[1]};
    m.scheme.bits = matrix.bits, m.scheme.group_size = matrix.group;
    m.scheme.scale_dtype = numbers.view.dtype;
    const std::vector<PackedTensor> tensors = quantize_mlx(m, stored.read_float32(numbers));
    ASSERT_EQ(tensors.size(), 3u);
    testing::expect_stored(tensors, stored);
  }
}

ConvertReport to_mlx(const std::string& source, const Path& target, std::optional<std::string> scheme = {},
                     const std::string& format = kMlxFormat) {
  ConvertRequest request;
  request.source = source;
  request.target.directory = target;
  request.to = format;
  request.dtype = std::move(scheme);
  return convert(system_io(), open_checkpoint(system_io(), source), request);
}

TEST(Mlx, AModelOfItIsReadAsTheNumbersThatItStandsFor) {
  const TemporaryDirectory disk;
  to_mlx(kTinystories.string(), disk / "mlx", "w8a16_g32");
  const Checkpoint made = open_checkpoint(system_io(), (disk / "mlx").string()),
                   source = open_checkpoint(system_io(), kTinystories.string());
  const ModelSpec spec = ModelSpec::read(made);
  EXPECT_EQ(spec.embedding.tensor, "model.embed_tokens.weight")
      << "the tied table has the name that mlx-lm looks for";
  ASSERT_EQ(made.tensors().size(), source.tensors().size());
  for (const StoredTensor& tensor : source.tensors()) {
    const std::string name = tensor.name == "lm_head.weight" ? "model.embed_tokens.weight" : tensor.name;
    EXPECT_EQ(made.at(name).made_of.has_value(), tensor.view.shape.rank() == 2) << name;
    const std::vector<float> before = source.read_float32(tensor), after = made.read_float32(made.at(name));
    double error = 0, square = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      error += static_cast<double>((after[i] - before[i]) * (after[i] - before[i]));
      square += static_cast<double>(before[i] * before[i]);
    }
    EXPECT_LT(error / square, 1e-4) << name;
  }
  // A single row of many blocks, as a token's embedding is read, is that of the whole table.
  const StoredTensor& table = made.at("model.embed_tokens.weight");
  const auto width = static_cast<std::size_t>(table.view.bytes() / table.view.rows());
  const std::int64_t row = table.view.rows() - 1;
  const std::byte* const at = table.view.as<std::byte>() + static_cast<std::size_t>(row) * width;
  std::vector<std::byte> whole(width);
  {
    const Lease lease = made.hold(table);
    std::memcpy(whole.data(), at, width);
  }
  const Lease lease = made.hold_rows(table, row, 1);
  EXPECT_EQ(std::memcmp(whole.data(), at, width), 0);
  const Inspection seen = inspect(system_io(), (disk / "mlx").string(), false);
  EXPECT_EQ(seen.format, "mlx");
  EXPECT_EQ(seen.scheme, "w8a16_g32_asym");
  EXPECT_EQ(seen.bits_per_weight, 8 + 2 * 32.0 / 32);
  // Written anew they are numbers, and config.json says no more of codes.
  to_mlx((disk / "mlx").string(), disk / "dense", {}, "safetensors");
  const Checkpoint dense = open_checkpoint(system_io(), (disk / "dense").string());
  EXPECT_EQ(dense.config().find("quantization"), nullptr);
  EXPECT_EQ(dense.config().find("quantization_config"), nullptr);
  for (const StoredTensor& tensor : dense.tensors())
    EXPECT_EQ(dense.read_float32(tensor), made.read_float32(made.at(tensor.name))) << tensor.name;
  testing::expect_refusal(ErrorKind::kUnsupported, "is quantized (mlx), and would be rounded twice",
                          [&] { to_mlx((disk / "mlx").string(), disk / "twice"); });
}

TEST(Mlx, NumbersThatWereCodesAreNamed) {
  const TemporaryDirectory disk;
  const auto said = [&](const std::string& source, const char* target) {
    ::testing::internal::CaptureStderr();
    to_mlx(source, disk / target);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(kTinystories.string(), "plain"), "");
  testing::to_gguf(system_io(), kTinystories.string(), disk / "m.gguf", "q8_0");
  EXPECT_THAT(said((disk / "m.gguf").string(), "of-gguf"), HasSubstr("is stored as Q8_0 and is rounded a"));
  to_mlx(kTinystories.string(), disk / "nf4", {}, "bitsandbytes");
  EXPECT_THAT(said((disk / "nf4").string(), "of-nf4"),
              HasSubstr("layers.0.self_attn.q_proj is stored as NF4 and is rounded a second time"));
}

TEST(Mlx, WhatItHasNoPlaceForIsRefused) {
  const TemporaryDirectory disk;
  const Path models = Path(LLMQ_SOURCE_DIR) / "tests/golden/models";
  testing::expect_refusal(ErrorKind::kUnsupported, "mlx-lm stores models of qwen3_moe otherwise",
                          [&] { to_mlx((models / "qwen3_moe/model").string(), disk / "a"); });
  testing::expect_refusal(ErrorKind::kUnsupported, "mlx-lm stores a decoder alone",
                          [&] { to_mlx((models / "llava/model").string(), disk / "b"); });
  for (const auto& [scheme, words] :
       {std::pair{"w7a16_g64", "not of 7"}, std::pair{"w4a16_g48", "32, 64 or 128 columns"},
        std::pair{"w4a16_channel", "32, 64 or 128 columns"}, std::pair{"w8a8", "activations"}})
    EXPECT_THAT(error_of([&, s = std::string(scheme)] { to_mlx(kTinystories.string(), disk / "c", s); }),
                HasSubstr(words));
}

}  // namespace
}  // namespace llmq
