// Every rule of the safetensors header, each broken once.
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::Attack;
using testing::expect_refusal;
using testing::little_endian;
using testing::safetensors_file;

SafetensorsHeader safetensors_header(std::string_view file) {
  return parse_safetensors(as_bytes(file), "x.safetensors");
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return "\"" + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":[)" +
         std::string(shape) + R"(],"data_offsets":[)" + std::string(offsets) + "]}";
}
std::string object(std::string_view members) { return "{" + std::string(members) + "}"; }

TEST(Safetensors, ReadsEntriesByOffsetAndMetadata) {
  const std::string header = object(entry("b", "F32", "2,3", "8,32") + "," + entry("a", "BF16", "4", "0,8") +
                                    R"(,"__metadata__":{"format":"pt"})") +
                             "   ";
  const auto parsed = safetensors_header(safetensors_file(header, 32));
  ASSERT_EQ(parsed.entries.size(), 2u);
  EXPECT_EQ(parsed.entries[0].name, "a");
  EXPECT_EQ(parsed.entries[0].dtype, DType::kBF16);
  EXPECT_EQ(parsed.entries[0].offset, 8 + header.size());
  EXPECT_EQ(parsed.entries[1].shape, (Shape{2, 3}));
  EXPECT_EQ(parsed.entries[1].bytes, 24u);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
}

// What the reference reader takes beside the plain form (tests/interop/safetensors_check.py asks it itself).
TEST(Safetensors, ReadsWhatTheReferenceReads) {
  const std::string good = entry("t", "F32", "1", "0,4");
  for (const std::string& header :
       {object(R"("__metadata__":null,)" + good), object(good + R"(,"__metadata__":null)"),
        " \n\t\r" + object(good) + "\r\n\t ",
        object(R"("t":{"x":[1,{"y":null}],"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]})")}) {
    SCOPED_TRACE(header);
    const auto parsed = safetensors_header(safetensors_file(header, 4));
    ASSERT_EQ(parsed.entries.size(), 1u);
    EXPECT_EQ(parsed.entries[0].offset, 8 + header.size());
    EXPECT_EQ(parsed.entries[0].bytes, 4u);
    EXPECT_TRUE(parsed.metadata.empty());
  }
}

// Elements narrower than a byte lie bit after bit, and end with a byte.
TEST(Safetensors, ReadsTypesThatNoModelHereComputesWith) {
  struct Case {
    const char *dtype, *shape;
    std::size_t bytes;
  };
  for (const Case& one :
       {Case{"F4", "2,3", 3}, Case{"F6_E2M3", "4,2", 6}, Case{"F6_E3M2", "4", 3}, Case{"F8_E8M0", "3", 3},
        Case{"F8_E4M3FNUZ", "3", 3}, Case{"F8_E5M2FNUZ", "3", 3}, Case{"C64", "2", 16}}) {
    SCOPED_TRACE(one.dtype);
    const std::string offsets = "0," + std::to_string(one.bytes);
    const auto parsed =
        safetensors_header(safetensors_file(object(entry("t", one.dtype, one.shape, offsets)), one.bytes));
    ASSERT_EQ(parsed.entries.size(), 1u);
    EXPECT_EQ(dtype_row(parsed.entries[0].dtype).safetensors_name, one.dtype);
    EXPECT_EQ(parsed.entries[0].bytes, one.bytes);
    const TensorView view(static_cast<const void*>(nullptr), parsed.entries[0].dtype,
                          parsed.entries[0].shape);
    EXPECT_EQ(view.bytes(), one.bytes);
  }
}

TEST(Safetensors, ReadsEmptyTensorsScalarsAndNoTensors) {
  EXPECT_TRUE(safetensors_header(safetensors_file("{}")).entries.empty());
  const auto parsed = safetensors_header(
      safetensors_file(object(entry("empty", "F32", "0,7", "0,0") + "," + entry("scalar", "F32", "", "0,4") +
                              "," + entry("late", "F32", "0", "4,4")),
                       4));
  ASSERT_EQ(parsed.entries.size(), 3u);
  EXPECT_EQ(parsed.entries[1].name, "scalar");
  EXPECT_EQ(parsed.entries[1].shape.rank(), 0);
}

std::vector<Attack> safetensors_attacks() {
  const auto one = [](std::string_view members, std::size_t bytes = 4) {
    return safetensors_file(object(members), bytes);
  };
  const std::string good = entry("t", "F32", "1", "0,4");
  std::string deep = R"({"t":{"dtype":)";
  deep.append(100'000, '[');
  std::string control = one(entry("a\\u0000b", "F32", "1", "0,4"));
  std::vector<Attack> list{
      {"empty file", "", "0 bytes"},
      {"seven bytes", "1234567", "7 bytes"},
      {"length beyond the file", little_endian<std::uint64_t>(1000) + "{}", "claims 1000 bytes"},
      {"length of 2^64-1", little_endian<std::uint64_t>(~0ull) + "{}", "claims 18446744073709551615"},
      {"length just over the cap", little_endian<std::uint64_t>(100'000'001) + "{}", "claims 100000001"},
      {"length zero", little_endian<std::uint64_t>(0), "'{'"},
      {"spaces alone", safetensors_file("   "), "'{'"},
      {"a zero before the object", safetensors_file(std::string_view("\0{}", 3)), "'{'"},
      {"an array", safetensors_file("[]"), "'{'"},
      {"a letter after the object", safetensors_file("{}\nx"), "spaces"},
      {"two objects", safetensors_file("{}{}"), "x.safetensors"},
      {"NUL after the object", safetensors_file(std::string_view("{}\0", 3)), "spaces"},
      {"truncated JSON", safetensors_file("{\"t\":}"), "x.safetensors"},
      {"invalid UTF-8", safetensors_file("{\"\xff\":{}}"), "x.safetensors"},
      {"depth bomb", safetensors_file(deep + "}"), "x.safetensors"},
      {"duplicate tensor", one(good + "," + good), "twice"},
      {"duplicate dtype", one(R"("t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
       "twice"},
      {"duplicate metadata", one(good + R"(,"__metadata__":{"a":"1","a":"2"})"), "twice"},
      {"metadata of numbers", one(good + R"(,"__metadata__":{"a":1})"), "not a string"},
      {"metadata of null", one(good + R"(,"__metadata__":{"a":null})"), "not a string"},
      {"metadata twice", one(good + R"(,"__metadata__":null,"__metadata__":null)"), "twice"},
      {"metadata array", one(good + R"(,"__metadata__":[])"), "__metadata__"},
      {"tensor is a number", one(R"("t":1)"), "not an object"},
      {"missing shape", one(R"("t":{"dtype":"F32","data_offsets":[0,4]})"), "dtype, shape and data_offsets"},
      {"a member that nobody reads, twice",
       one(R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1,"x":1})"), "twice"},
      {"a tensor without names of members", one(R"("t":["F32",[1],[0,4]])"), "is an array"},
      {"half a byte", one(entry("t", "F4", "1", "0,1"), 1), "ends inside a byte"},
      {"three quarters of a byte", one(entry("t", "F6_E2M3", "1", "0,1"), 1), "ends inside a byte"},
      {"dtype is a number", one(R"("t":{"dtype":1,"shape":[1],"data_offsets":[0,4]})"), "not a string"},
      {"unknown dtype", one(entry("t", "F33", "1", "0,4")), "F33", ErrorKind::kUnsupported},
      {"negative extent", one(entry("t", "F32", "-1", "0,4")), "non-negative"},
      {"fractional extent", one(entry("t", "F32", "1.0", "0,4")), "non-negative"},
      {"extent of 2^63", one(entry("t", "F32", "9223372036854775808", "0,4")), "non-negative"},
      {"extent of 2^64", one(entry("t", "F32", "18446744073709551616", "0,4")), "non-negative"},
      {"product overflows to 0", one(entry("t", "F32", "4294967296,4294967296", "0,0")), "overflows"},
      {"product overflows to 1", one(entry("t", "U8", "6700417,641,4294967297", "0,4")), "overflows"},
      {"product overflows around a zero", one(entry("t", "F32", "0,34359738368,4611686018427387904", "0,0")),
       "overflows"},
      {"size overflows", one(entry("t", "F64", "2305843009213693952", "0,0")), "overflows"},
      {"nine extents", one(entry("t", "F32", "1,1,1,1,1,1,1,1,1", "0,4")), "9 extents"},
      {"shape is a string", one(R"("t":{"dtype":"F32","shape":"1","data_offsets":[0,4]})"), "not an array"},
      {"one offset", one(entry("t", "F32", "1", "0")), "pair"},
      {"three offsets", one(entry("t", "F32", "1", "0,4,8")), "pair"},
      {"negative offset", one(entry("t", "F32", "1", "-4,0")), "non-negative"},
      {"end before begin", one(entry("t", "F32", "1", "4,0")), "before their begin"},
      {"size below the shape", one(entry("t", "F32", "2", "0,4")), "takes 8 bytes"},
      {"size above the shape", one(entry("t", "F16", "1", "0,4")), "takes 2 bytes"},
      {"first byte skipped", one(entry("t", "F32", "1", "1,5"), 5), "hole"},
      {"hole", one(entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "1", "8,12"), 12), "hole"},
      {"overlap", one(entry("a", "F32", "2", "0,8") + "," + entry("b", "F32", "1", "4,8"), 8), "overlap"},
      {"the same bytes twice", one(entry("a", "F32", "1", "0,4") + "," + entry("b", "F32", "1", "0,4")),
       "overlap"},
      {"truncated tensors", one(entry("t", "F32", "2", "0,8"), 7), "truncated"},
      {"end near 2^63", one(entry("t", "U8", "9223372036854775807", "0,9223372036854775807")), "overflows"},
      {"end near 2^61", one(entry("t", "U8", "2305843009213693951", "0,2305843009213693951")), "truncated"},
      {"trailing bytes", one(good, 5), "1 bytes follow"},
      {"trailing bytes, no tensor", safetensors_file("{}", 3), "3 bytes follow"},
      {"NUL in a name", control, "control character"},
      {"long name", one(entry(std::string(5000, 'x'), "F32", "1", "0,4")), "5000 bytes long"},
      {"LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"},
      {"HTML", "<!DOCTYPE html><html>", "HTML"},
      {"html", "<html><body>404</body>", "HTML"},
      {"hub error", "Entry not found", "Entry not found"},
      {"zip", "PK\x03\x04" + std::string(40, '\0'), "zip"},
      {"pickle", "\x80\x02\x8a\x0a" + std::string(40, '\0'), "pickle"},
      {"GGUF", "GGUF" + std::string(40, '\0'), "GGUF"},
      {"gzip", std::string("\x1f\x8b\x08\0\0\0\0\0", 8) + std::string(600'000, '\0'), "gzip"},
  };
  return list;
}

TEST(Safetensors, RefusesEveryAttack) {
  for (const Attack& attack : safetensors_attacks()) {
    SCOPED_TRACE(attack.what);
    expect_refusal(attack.kind, attack.expected, [&] { safetensors_header(attack.file); });
  }
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file =
      safetensors_file(object(entry("a", "F32", "2", "0,8") + "," + entry("b", "BF16", "4", "8,16")), 16);
  safetensors_header(file);
  for (std::size_t size = 0; size < file.size(); ++size) {
    SCOPED_TRACE(size);
    expect_refusal(ErrorKind::kBadInput, "x.safetensors",
                   [&] { safetensors_header(std::string_view(file).substr(0, size)); });
  }
}

}  // namespace
}  // namespace llmq
