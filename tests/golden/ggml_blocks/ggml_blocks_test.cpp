// Rows become the bytes that ggml itself makes of them, with an importance matrix and without, at any thread
// count.
//
// blocks.safetensors was written by ggml 0.25.3 (make_golden.py beside it): ordinary rows, outliers of 1e4,
// zeros, constants, one-sided rows, subnormal numbers, weights of zero. The hashes are of ggml's bytes for a
// fixed sequence of integers over 32.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "tensor/ggml_quantize.h"

namespace llmq {
namespace {

struct GoldenFile {
  std::string bytes;
  SafetensorsHeader header;

  GoldenFile() {
    const std::string path = LLMQ_SOURCE_DIR "/tests/golden/ggml_blocks/blocks.safetensors";
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
    header = parse_safetensors(std::as_bytes(std::span(bytes)), path);
  }
  std::span<const std::byte> of(const std::string& name) const {
    for (const SafetensorsEntry& entry : header.entries)
      if (entry.name == name) return std::as_bytes(std::span(bytes)).subspan(entry.offset, entry.bytes);
    return {};
  }
  std::vector<float> floats(const std::string& name) const {
    const std::span<const std::byte> from = of(name);
    std::vector<float> values(from.size() / sizeof(float));
    std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
};

std::vector<std::byte> quantized(DType type, std::span<const float> rows, std::int64_t columns,
                                 std::span<const float> importance, int threads) {
  ThreadPool pool(threads);
  std::vector<std::byte> bytes(rows.size() / static_cast<std::size_t>(columns) *
                               ggml_row_bytes(type, columns));
  quantize_ggml_rows(type, rows, columns, importance, BlockSearch::kGgml, bytes, pool);
  return bytes;
}

const DType kTypes[] = {DType::kF16,  DType::kBF16, DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0,
                        DType::kQ5_1, DType::kQ8_0, DType::kQ2_K,   DType::kQ3_K,  DType::kQ4_K,
                        DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

class GgmlBlocks : public ::testing::TestWithParam<DType> {};

// The first block that differs, or -1.
std::int64_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b, DType type) {
  if (a.size() != b.size()) return 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return static_cast<std::int64_t>(i) / dtype_row(type).block_bytes;
  return -1;
}

TEST_P(GgmlBlocks, AreGgmlsBytes) {
  const GoldenFile file;
  const DType type = GetParam();
  const std::string name(dtype_row(type).name);
  const std::size_t width = dtype_row(type).block_elements == 256 ? 512 : 288;
  const std::vector<float> numbers = file.floats("numbers"), importance = file.floats("importance");
  ASSERT_EQ(numbers.size(), 4096u);
  const auto rows = std::span(numbers).first(numbers.size() / width * width);
  for (const int threads : {1, 3}) {
    EXPECT_EQ(first_difference(quantized(type, rows, static_cast<std::int64_t>(width), {}, threads),
                               file.of(name + ".plain"), type),
              -1);
    EXPECT_EQ(first_difference(quantized(type, rows, static_cast<std::int64_t>(width),
                                         std::span(importance).first(width), threads),
                               file.of(name + ".importance"), type),
              -1);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GgmlBlocks, ::testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(dtype_row(type.param).name); });

// FNV-1a with the offset 1469598103934665603, as the hashes were taken.
std::uint64_t fnv(std::span<const std::byte> bytes) {
  std::uint64_t hash = 1469598103934665603u;
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

TEST(GgmlBlocks, HashesOfAnIntegerSequence) {
  std::vector<float> numbers, importance;
  for (int i = 0; i < 256; ++i) {
    numbers.push_back(static_cast<float>(37 * i % 101 - 50) / 32);
    importance.push_back(static_cast<float>(13 * i % 17 + 1));
  }
  struct Hashes {
    DType type;
    std::uint64_t plain, importance;
  };
  for (const Hashes& hashes : {Hashes{DType::kQ4_0, 0x654b498c982bc880, 0x265fb595258facc3},
                               Hashes{DType::kQ4_1, 0x1b317747f6882777, 0x659e071383d3f6f6},
                               Hashes{DType::kQ5_0, 0xa195d8957eaf9ede, 0x9caa2a493ccdacc5},
                               Hashes{DType::kQ8_0, 0x26e5eb65ef700e30, 0x26e5eb65ef700e30},
                               Hashes{DType::kQ4_K, 0x14b33eccb707e466, 0xeef03f37a0f3a69b},
                               Hashes{DType::kQ5_K, 0x7de39ab8956c3390, 0x0408715d3ef487f1},
                               Hashes{DType::kQ6_K, 0xa00e5e87b747ad1a, 0x299fea28aee43c27},
                               Hashes{DType::kIQ4_NL, 0xad88f6a20ddba33f, 0x663508a5a59ed933},
                               Hashes{DType::kIQ4_XS, 0x25496a58bacd4054, 0x7d1cfe4f8ad8a978}}) {
    EXPECT_EQ(fnv(quantized(hashes.type, numbers, 256, {}, 1)), hashes.plain) << dtype_row(hashes.type).name;
    EXPECT_EQ(fnv(quantized(hashes.type, numbers, 256, importance, 1)), hashes.importance)
        << dtype_row(hashes.type).name;
  }
}

}  // namespace
}  // namespace llmq
