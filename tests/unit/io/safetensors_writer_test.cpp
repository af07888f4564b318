// What the writer writes, what it leaves behind when it cannot, and that the reader agrees.
#include <gtest/gtest.h>

#include "base/sha256.h"
#include "io/safetensors.h"
#include "tests/support/failing_disk.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::count_failures_of_a_disk;
using testing::expect_refusal;
using testing::TemporaryDirectory;

std::vector<TensorDeclaration> safetensors_declarations() {
  return {{"z", DType::kU8, Shape{3}},
          {"b", DType::kBF16, Shape{2, 2}},
          {"f", DType::kF32, Shape{2}},
          {"a", DType::kBF16, Shape{}},
          {"e", DType::kF32, Shape{0, 4}}};
}

void write_safetensors(Io& io, const Path& path, bool backwards) {
  SafetensorsWriter writer(io, path, safetensors_declarations(), {{"format", "pt"}});
  const std::vector<std::pair<std::string, std::string>> tensors{
      {"z", "xyz"}, {"b", "12345678"}, {"f", "ABCDEFGH"}, {"a", "pq"}, {"e", ""}};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, bytes] = tensors[backwards ? tensors.size() - 1 - i : i];
    writer.add(name, as_bytes(bytes));
  }
  writer.finish();
}

TEST(SafetensorsWriter, WritesWidestFirstThenByNamePaddedToEight) {
  TemporaryDirectory directory;
  write_safetensors(system_io(), directory / "m.safetensors", false);
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"e":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},)"
      R"("f":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},)"
      R"("b":{"dtype":"BF16","shape":[2,2],"data_offsets":[10,18]},"z":{"dtype":"U8","shape":[3],"data_offsets":[18,21]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(directory.read("m.safetensors"),
            testing::little_endian<std::uint64_t>(padded.size()) + padded + "ABCDEFGHpq12345678xyz");
}

TEST(SafetensorsWriter, OrderOfFeedingChangesNothing) {
  TemporaryDirectory directory;
  write_safetensors(system_io(), directory / "one", false);
  write_safetensors(system_io(), directory / "two", true);
  EXPECT_EQ(directory.read("one"), directory.read("two"));
  EXPECT_EQ(parse_safetensors(as_bytes(directory.read("one")), "one").entries.size(), 5u);
}

TEST(SafetensorsWriter, NothingHasTheNameUntilFinished) {
  TemporaryDirectory directory;
  {
    SafetensorsWriter writer(system_io(), directory / "m", safetensors_declarations(), {});
    writer.add("z", as_bytes("xyz"));
    EXPECT_FALSE(system_io().exists(directory / "m"));
    expect_refusal(ErrorKind::kInternal, "never came", [&] { writer.finish(); });
    expect_refusal(ErrorKind::kInternal, "came twice", [&] { writer.add("z", as_bytes("xyz")); });
    expect_refusal(ErrorKind::kInternal, "not declared", [&] { writer.add("y", as_bytes("xyz")); });
    expect_refusal(ErrorKind::kInternal, "2 bytes came where 8", [&] { writer.add("b", as_bytes("xy")); });
  }
  EXPECT_TRUE(system_io().list(directory.path()).empty());
}

// What an interrupted writer left is gone on with only where its layout and its bytes are those expected.
TEST(SafetensorsWriter, GoesOnWhereAnotherStopped) {
  TemporaryDirectory directory;
  write_safetensors(system_io(), directory / "whole", false);
  {
    SafetensorsWriter first(system_io(), directory / "m", safetensors_declarations(), {{"format", "pt"}},
                            FilePlace::kDirect);
    for (const auto& [name, bytes] :
         std::vector<std::pair<std::string, std::string>>{{"f", "ABCDEFGH"}, {"z", "xyz"}})
      first.add(name, as_bytes(bytes));
  }
  SafetensorsWriter second(system_io(), directory / "m", safetensors_declarations(), {{"format", "pt"}},
                           FilePlace::kExisting);
  EXPECT_TRUE(second.holds("f", sha256_hex(as_bytes("ABCDEFGH"))));
  EXPECT_FALSE(second.holds("b", sha256_hex(as_bytes("12345678"))));
  second.accept("f");
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"z", "xyz"}, {"b", "12345678"}, {"a", "pq"}, {"e", ""}})
    second.add(name, as_bytes(bytes));
  second.finish();
  EXPECT_EQ(directory.read("m"), directory.read("whole"));
  expect_refusal(ErrorKind::kBadInput, "not laid out", [&] {
    SafetensorsWriter(system_io(), directory / "m", safetensors_declarations(), {}, FilePlace::kExisting);
  });
}

TEST(SafetensorsWriter, RefusesWhatSafetensorsCannotHold) {
  TemporaryDirectory directory;
  const auto declare = [&](std::vector<TensorDeclaration> list) {
    SafetensorsWriter(system_io(), directory / "m", std::move(list), {});
  };
  expect_refusal(ErrorKind::kInternal, "Q4_0", [&] { declare({{"a", DType::kQ4_0, Shape{32}}}); });
  expect_refusal(ErrorKind::kInternal, "twice", [&] {
    declare({{"a", DType::kF32, Shape{1}}, {"a", DType::kF32, Shape{1}}});
  });
  EXPECT_TRUE(system_io().list(directory.path()).empty());
}

TEST(SafetensorsWriter, AFailingDiskLeavesNothingThatLooksFinished) {
  const int failures =
      count_failures_of_a_disk([](Io& io, const Path& path) { write_safetensors(io, path, false); },
                               [](const std::string& bytes) { parse_safetensors(as_bytes(bytes), "m"); });
  EXPECT_GE(failures, 9);  // create, reserve, header, five tensors, sync, rename, directory
}

}  // namespace
}  // namespace llmq
