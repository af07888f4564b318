// Every rule of the GGUF tables, each broken once (CVE-2024-21802, CVE-2025-53630, CVE-2026-27940,
// CVE-2026-7482 and their kin).
#include "io/gguf.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::Attack;
using testing::expect_refusal;
using testing::gguf_text;
using testing::GgufBytes;
using testing::little_endian;

GgufHeader gguf_header(std::string_view file) { return parse_gguf(as_bytes(file), "x.gguf"); }

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kF32 = 0, kQ4_0 = 2;

GgufBytes sound() {
  GgufBytes file;
  file.text("general.architecture", "llama")
      .u32("n", 7)
      .array("list", GgufType::kI16, 2, little_endian<std::int16_t>(-1) + little_endian<std::int16_t>(5));
  file.array("words", GgufType::kString, 3, gguf_text("a") + gguf_text("") + gguf_text("bcd"));
  file.tensor("w", {3, 2}, {1, 2, 3, 4, 5, 6}).tensor("v", {2}, {7, 8});
  return file;
}

TEST(Gguf, ReadsBothVersions) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufBytes bytes = sound();
    bytes.version = version;
    const std::string file = bytes.bytes();
    const GgufHeader header = gguf_header(file);
    EXPECT_EQ(header.version, version);
    EXPECT_EQ(header.string("general.architecture"), "llama");
    EXPECT_EQ(header.integer("n"), 7);
    EXPECT_EQ(header.number("n"), 7.0);
    EXPECT_EQ(header.integers("list"), (std::vector<std::int64_t>{-1, 5}));
    EXPECT_EQ(header.numbers("list"), (std::vector<double>{-1, 5}));
    EXPECT_EQ(header.strings("words"), (std::vector<std::string_view>{"a", "", "bcd"}));
    ASSERT_EQ(header.tensors.size(), 2u);
    EXPECT_EQ(header.tensors[0].shape, (Shape{2, 3}));  // outermost first
    float last = 0;
    std::memcpy(&last, file.data() + header.tensors[1].offset + 4, 4);
    EXPECT_EQ(last, 8.0f);
  }
}

TEST(Gguf, ReadsEveryIntegerType) {
  GgufBytes bytes;
  bytes.key("u8", GgufType::kU8, "\xff")
      .key("i8", GgufType::kI8, "\xff")
      .key("u16", GgufType::kU16, "\xff\xff");
  bytes.key("i16", GgufType::kI16, "\xff\xff")
      .key("i32", GgufType::kI32, little_endian(-2))
      .key("u64", GgufType::kU64, little_endian(kHuge));
  bytes.key("i64", GgufType::kI64, little_endian(std::int64_t{-3}))
      .key("f64", GgufType::kF64, little_endian(0.5));
  bytes.key("yes", GgufType::kBool, "\x01").key("no", GgufType::kBool, std::string_view("\0", 1));
  const std::string file = bytes.bytes();
  const GgufHeader header = gguf_header(file);
  EXPECT_EQ(header.integer("u8"), 255);
  EXPECT_EQ(header.integer("i8"), -1);
  EXPECT_EQ(header.integer("u16"), 65535);
  EXPECT_EQ(header.integer("i16"), -1);
  EXPECT_EQ(header.integer("i32"), -2);
  EXPECT_EQ(header.integer("i64"), -3);
  EXPECT_EQ(header.number("f64"), 0.5);
  EXPECT_EQ(header.number("u64"), 0x1p64);
  EXPECT_TRUE(header.boolean("yes"));
  EXPECT_FALSE(header.boolean("no"));
  EXPECT_FALSE(header.find_integer("absent").has_value());
  expect_refusal(ErrorKind::kBadInput, "u64", [&] { header.integer("u64"); });
  expect_refusal(ErrorKind::kBadInput, "float64", [&] { header.integer("f64"); });
  expect_refusal(ErrorKind::kBadInput, "float64", [&] { (void)header.find_integer("f64"); });
  expect_refusal(ErrorKind::kBadInput, "absent", [&] { header.string("absent"); });
  expect_refusal(ErrorKind::kBadInput, "string", [&] { header.string("u8"); });
  expect_refusal(ErrorKind::kBadInput, "an array", [&] { header.strings("u8"); });
  expect_refusal(ErrorKind::kBadInput, "boolean", [&] { header.boolean("u8"); });
  expect_refusal(ErrorKind::kBadInput, "integer", [&] { header.integer("yes"); });
}

TEST(Gguf, HonoursTheAlignment) {
  GgufBytes bytes;
  bytes.alignment = 128;
  bytes.u32("general.alignment", 128).tensor("a", {1}, {1}).tensor("b", {1}, {2});
  const std::string file = bytes.bytes();
  const GgufHeader header = gguf_header(file);
  EXPECT_EQ(header.tensors[1].offset % 128, 0u);
  EXPECT_EQ(header.tensors[1].offset, header.tensors[0].offset + 128);
}

std::vector<Attack> gguf_attacks() {
  const auto make = [](auto change) {
    GgufBytes bytes;
    change(bytes);
    return bytes.bytes();
  };
  const auto tensor = [&](const std::vector<std::uint64_t>& extents, std::uint32_t type,
                          std::uint64_t offset = 0) {
    return make([&](GgufBytes& b) { b.raw_tensor("t", extents, type, offset, "01234567"); });
  };
  const auto aligned = [&](std::uint32_t alignment) {
    return make([&](GgufBytes& b) { b.u32("general.alignment", alignment).tensor("t", {1}, {1}); });
  };
  return {
      {"empty file", "", "GGUF"},
      {"other magic", "GGML" + std::string(60, '\0'), "GGUF"},
      {"magic only", "GGUF", "version"},
      {"version 1", make([](GgufBytes& b) { b.version = 1; }), "version 1", ErrorKind::kUnsupported},
      {"version 4", make([](GgufBytes& b) { b.version = 4; }), "version 4", ErrorKind::kUnsupported},
      {"big-endian", make([](GgufBytes& b) { b.version = 0x03000000; }), "big-endian",
       ErrorKind::kUnsupported},
      {"LFS pointer", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
      {"safetensors", little_endian<std::uint64_t>(2) + "{\"a\":1}", "safetensors"},
      {"one key too many", make([](GgufBytes& b) { b.u32("a", 1).key_lie = 1; }), "x.gguf"},
      {"2^64-1 keys", make([](GgufBytes& b) { b.key_lie = kHuge; }), "keys cannot fit"},
      {"2^63 tensors", make([](GgufBytes& b) { b.tensor_lie = 1ull << 63; }), "tensors cannot fit"},
      {"one tensor too many", make([](GgufBytes& b) { b.tensor("t", {1}, {1}).tensor_lie = 1; }), "x.gguf"},
      {"key of 2^64-1 bytes", make([](GgufBytes& b) { b.u32("a", 1); }).replace(24, 8, little_endian(kHuge)),
       "longer than"},
      {"key beyond the file",
       make([](GgufBytes& b) { b.u32("a", 1); }).replace(24, 8, little_endian(std::uint64_t{60'000})),
       "60000 bytes"},
      {"key of 65536 bytes", make([](GgufBytes& b) { b.u32(std::string(65'536, 'k'), 1); }), "longer than"},
      {"empty key", make([](GgufBytes& b) { b.u32("", 1); }), "empty"},
      {"control character in a key", make([](GgufBytes& b) { b.u32("a\nb", 1); }), "control character"},
      {"duplicate key", make([](GgufBytes& b) { b.u32("a", 1).u32("a", 2); }), "twice"},
      {"value type 13", make([](GgufBytes& b) { b.key("a", static_cast<GgufType>(13), "1234"); }), "type 13"},
      {"value type -1", make([](GgufBytes& b) { b.key("a", static_cast<GgufType>(~0u), "1234"); }),
       "type 4294967295"},
      {"element type 99", make([](GgufBytes& b) { b.array("a", static_cast<GgufType>(99), 1, "1234"); }),
       "type 99"},
      {"array of arrays",
       make([](GgufBytes& b) { b.array("a", GgufType::kArray, 1, std::string(12, '\0')); }),
       "array of arrays", ErrorKind::kUnsupported},
      {"boolean 2", make([](GgufBytes& b) { b.key("a", GgufType::kBool, "\x02"); }), "boolean"},
      {"string of 2^64-1 bytes",
       make([](GgufBytes& b) { b.key("a", GgufType::kString, little_endian(kHuge)); }),
       "18446744073709551615 bytes"},
      {"string one byte too long",
       make([](GgufBytes& b) { b.key("a", GgufType::kString, little_endian(std::uint64_t{4}) + "abc"); }),
       "4 bytes"},
      {"2^64-1 strings", make([](GgufBytes& b) { b.array("a", GgufType::kString, kHuge, ""); }),
       "strings cannot fit"},
      {"array size overflows to 0", make([](GgufBytes& b) { b.array("a", GgufType::kU32, 1ull << 62, ""); }),
       "overflows"},
      {"array size overflows to 8",
       make([](GgufBytes& b) { b.array("a", GgufType::kF64, (1ull << 61) + 1, "12345678"); }), "overflows"},
      {"array beyond the file", make([](GgufBytes& b) { b.array("a", GgufType::kU8, 1ull << 40, "1"); }),
       "1099511627776 bytes"},
      {"string inside an array too long",
       make([](GgufBytes& b) { b.array("a", GgufType::kString, 1, little_endian(kHuge - 7)); }), "x.gguf"},
      {"alignment 0", aligned(0), "power of two"},
      {"alignment 3", aligned(3), "power of two"},
      {"alignment of another type", make([](GgufBytes& b) {
         b.key("general.alignment", GgufType::kU64, little_endian(std::uint64_t{32}));
       }),
       "not uint32"},
      {"alignment 2^31", aligned(1u << 31), "truncated"},
      {"rank 5", tensor({1, 1, 1, 1, 1}, kF32), "5 dimensions"},
      {"rank 2^32-1",
       make([](GgufBytes& b) { b.tensor("t", {1}, {1}); }).replace(24 + 9, 4, little_endian(~0u)),
       "4294967295 dimensions"},
      {"extent -1", tensor({kHuge}, kF32), "overflows"},
      {"extents overflow to 0", tensor({1ull << 32, 1ull << 32}, kF32), "overflows"},
      {"extents overflow to 2", tensor({(1ull << 63) + 1, 2}, kF32), "overflows"},
      {"extents overflow around a zero", tensor({0, 1ull << 35, 1ull << 62}, kF32), "overflows"},
      {"size overflows to 0", tensor({1ull << 62}, kF32), "overflows"},
      {"size overflows to 4", tensor({(1ull << 62) + 1}, kF32), "overflows"},
      {"tensor larger than the file", tensor({1000}, kF32), "truncated"},
      {"rows are not whole blocks", tensor({31, 32}, kQ4_0), "whole blocks"},
      {"rows are not whole blocks of IQ2_XXS", tensor({128, 2}, 16), "whole blocks of 256 (IQ2_XXS)"},
      {"rows are not whole blocks of NVFP4", tensor({96}, 40), "whole blocks of 64 (NVFP4)"},
      {"IQ3_S larger than the file", tensor({25600}, 21), "truncated"},
      {"Q1_0", tensor({256}, 41), "Q1_0", ErrorKind::kUnsupported},
      {"Q4_2, long gone", tensor({32}, 4), "number 4", ErrorKind::kUnsupported},
      {"type -1", tensor({32}, ~0u), "number 4294967295", ErrorKind::kUnsupported},
      {"offset 2^64-32", tensor({2}, kF32, kHuge - 31), "hole"},
      {"odd offset", tensor({2}, kF32, 1), "multiple"},
      {"first tensor not at 0", tensor({2}, kF32, 32), "hole"},
      {"overlap", make([](GgufBytes& b) {
         b.raw_tensor("a", {2}, kF32, 0, "01234567").raw_tensor("b", {2}, kF32, 0, "");
       }),
       "overlap"},
      {"hole", make([](GgufBytes& b) {
         b.raw_tensor("a", {2}, kF32, 0, std::string(200, '1')).raw_tensor("b", {2}, kF32, 64, "");
       }),
       "hole"},
      {"duplicate tensor", make([](GgufBytes& b) { b.tensor("a", {1}, {1}).tensor("a", {1}, {2}); }),
       "twice"},
      {"nameless tensor", make([](GgufBytes& b) { b.tensor("", {1}, {1}); }), "empty"},
      {"long tensor name", make([](GgufBytes& b) { b.tensor(std::string(5000, 'n'), {1}, {1}); }),
       "longer than"},
      {"control character in a tensor name", make([](GgufBytes& b) { b.tensor("a\tb", {1}, {1}); }),
       "control character"},
      {"trailing bytes", make([](GgufBytes& b) {
         b.tensor("a", {8}, {1, 2, 3, 4, 5, 6, 7, 8}).trailing = 1;
       }),
       "1 bytes follow"},
      {"trailing bytes, no tensor", make([](GgufBytes& b) { b.u32("a", 1).trailing = 4096; }),
       "belong to no tensor"},
  };
}

TEST(Gguf, RefusesEveryAttack) {
  for (const Attack& attack : gguf_attacks()) {
    SCOPED_TRACE(attack.what);
    expect_refusal(attack.kind, attack.expected, [&] { gguf_header(attack.file); });
  }
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string file = sound().bytes();
  gguf_header(file);
  for (std::size_t size = 0; size < file.size(); ++size) {
    SCOPED_TRACE(size);
    expect_refusal(ErrorKind::kBadInput, "x.gguf",
                   [&] { gguf_header(std::string_view(file).substr(0, size)); });
  }
}

}  // namespace
}  // namespace llmq
