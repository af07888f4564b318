// to_float32 of every element type: block types against golden bits, plain types against their definitions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "base/threads.h"
#include "tensor/tensor_view.h"
#include "tests/unit/tensor/dequantize_golden.h"

namespace llmq {
namespace {

std::vector<std::uint8_t> from_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  return bytes;
}

std::uint64_t fnv1a(const std::vector<float>& values) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const float value : values)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (bits_from_float(value) >> shift & 255u)) * 0x100000001b3ull;
  return hash;
}

std::vector<float> read(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.rows() * view.cols()), NAN);
  to_float32(view, values);
  return values;
}

TEST(ToFloat32, AnyNumberOfThreadsGivesTheSame) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 5}, {3, 70'000}, {700, 257}, {0, 4}, {4, 0}}) {
    std::vector<std::uint16_t> stored(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::uint16_t>(0x3f80u + i % 127);
    const TensorView view(static_cast<const void*>(stored.data()), DType::kBF16, {rows, cols});
    const std::vector<float> wanted = read(view);
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      std::vector<float> values(wanted.size(), NAN);
      to_float32(view, values, pool);
      EXPECT_EQ(values, wanted) << rows << " x " << cols << ", " << threads << " threads";
    }
  }
}

TEST(ToFloat32, BlockTypesGiveTheBitsOfGguf) {
  std::size_t seen = 0;
  for (const DequantizeGolden& golden : kDequantizeGoldens) {
    const DTypeRow& row = dtype_row(golden.dtype);
    const std::vector<std::uint8_t> blocks = from_hex(golden.blocks);
    ASSERT_EQ(blocks.size(), 2u * static_cast<std::size_t>(row.block_bytes)) << row.name;
    // At an odd address, as a mapped file may have it; as one row of two blocks and as two rows of one.
    std::vector<std::uint8_t> shifted(blocks.size() + 1);
    std::memcpy(shifted.data() + 1, blocks.data(), blocks.size());
    for (const Shape& shape : {Shape{1, 2 * row.block_elements}, Shape{2, row.block_elements}}) {
      const std::vector<float> values =
          read(TensorView(static_cast<const void*>(shifted.data() + 1), golden.dtype, shape));
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_EQ(bits_from_float(values[i]), golden.first[i]) << row.name << " " << i;
      EXPECT_EQ(fnv1a(values), golden.fnv) << row.name;
    }
    ++seen;
  }
  EXPECT_EQ(seen, 23u) << "one golden for each block type";
}

TEST(ToFloat32, EveryE4M3Pattern) {  // OCP OFP8: 4 exponent bits biased by 7, 3 fraction bits, no infinity
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    const float value = read(TensorView(static_cast<const void*>(&byte), DType::kF8E4M3, Shape{1}))[0];
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(static_cast<double>(value), bits & 128 ? -magnitude : magnitude) << bits;
    }
    EXPECT_EQ(std::signbit(value), bits >= 128);
  }
}

TEST(ToFloat32, EveryE5M2Pattern) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    const float value = read(TensorView(static_cast<const void*>(&byte), DType::kF8E5M2, Shape{1}))[0];
    const int exponent = bits >> 2 & 31, fraction = bits & 3;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -16) : std::ldexp(4 + fraction, exponent - 17);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0);
    } else {
      EXPECT_EQ(static_cast<double>(value), bits & 128 ? -magnitude : magnitude) << bits;
    }
  }
}

template <typename T>
void expect_values(DType dtype, const std::vector<T>& stored, const std::vector<float>& expected) {
  EXPECT_EQ(sizeof(T), static_cast<std::size_t>(element_bytes(dtype)));
  EXPECT_EQ(read(TensorView(static_cast<const void*>(stored.data()), dtype,
                            Shape{static_cast<std::int64_t>(stored.size())})),
            expected)
      << dtype_row(dtype).name;
}

TEST(ToFloat32, PlainTypes) {
  expect_values<double>(DType::kF64, {1.5, -0.1, 1e300}, {1.5f, -0.1f, HUGE_VALF});
  expect_values<float>(DType::kF32, {1.5f, -0.1f}, {1.5f, -0.1f});
  expect_values<std::uint16_t>(DType::kF16, {0x3c00, 0x8001}, {1.f, -0x1p-24f});
  expect_values<std::uint16_t>(DType::kBF16, {0x3f80, 0xc040}, {1.f, -3.f});
  expect_values<std::int64_t>(DType::kI64, {-5, 1ll << 40}, {-5.f, 0x1p40f});
  expect_values<std::uint64_t>(DType::kU64, {5, ~0ull}, {5.f, 0x1p64f});
  expect_values<std::int32_t>(DType::kI32, {-5, 1 << 30}, {-5.f, 0x1p30f});
  expect_values<std::uint32_t>(DType::kU32, {5, 1u << 31}, {5.f, 0x1p31f});
  expect_values<std::int16_t>(DType::kI16, {-5, 32767}, {-5.f, 32767.f});
  expect_values<std::uint16_t>(DType::kU16, {5, 65535}, {5.f, 65535.f});
  expect_values<std::int8_t>(DType::kI8, {-128, 127}, {-128.f, 127.f});
  expect_values<std::uint8_t>(DType::kU8, {0, 255}, {0.f, 255.f});
  expect_values<std::uint8_t>(DType::kBool, {0, 1, 255}, {0.f, 1.f, 1.f});
}

TEST(ToFloat32, FollowsTheRowStride) {
  const std::vector<float> stored = {1, 2, 3, 4, 5, 6};
  TensorView columns(static_cast<const void*>(stored.data()), DType::kF32, Shape{2, 2});
  columns.row_stride = 3;
  EXPECT_EQ(read(columns), (std::vector<float>{1, 2, 4, 5}));
}

TEST(ToFloat32, RefusesWrongRoomPartialBlocksAndClosedMemory) {
  const std::vector<std::uint8_t> bytes(64);
  std::vector<float> room(32);
  EXPECT_THROW(to_float32(TensorView(static_cast<const void*>(bytes.data()), DType::kQ4_0, Shape{1, 16}),
                          std::span(room).first(16)),
               Error);
  EXPECT_THROW(
      to_float32(TensorView(static_cast<const void*>(bytes.data()), DType::kQ4_0, Shape{1, 64}), room),
      Error);
  EXPECT_THROW(to_float32(TensorView(static_cast<const void*>(bytes.data()), DType::kU8, Shape{32},
                                     Device{DeviceKind::kFake, 0}),
                          room),
               Error);
}

}  // namespace
}  // namespace llmq
