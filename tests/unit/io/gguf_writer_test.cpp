// What the writer writes byte by byte, that the reader agrees, and what is left when the disk fails.
#include <gtest/gtest.h>

#include "io/gguf_writer.h"
#include "tests/support/failing_disk.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::count_failures_of_a_disk;
using testing::CountingIo;
using testing::expect_refusal;
using testing::gguf_text;
using testing::GgufBytes;
using testing::little_endian;
using testing::TemporaryDirectory;

GgufMetadata metadata() {
  GgufMetadata made;
  made.set_string("general.architecture", "llama");
  made.set_u32("llama.block_count", 9);
  made.set_f32("llama.epsilon", 0.5f);
  made.set_bool("yes", true);
  made.set_strings("words", std::vector<std::string>{"a", "", "bcd"});
  made.set_i32s("types", std::vector<std::int32_t>{-1, 7});
  made.set_f32s("scores", std::vector<float>{1.5f});
  made.set_u32("llama.block_count", 2);  // keeps its place
  return made;
}

std::vector<TensorDeclaration> gguf_declarations() {
  return {{"norm", DType::kF32, Shape{3}},
          {"matrix", DType::kQ4_0, Shape{2, 32}},
          {"half", DType::kF16, Shape{2, 3, 1}}};
}

const std::string kNorm = "ABCDEFGHIJKL", kMatrix(36, 'm'), kHalf = "0123456789ab";

void write_gguf(Io& io, const Path& path, bool backwards) {
  GgufWriter writer(io, path, metadata(), gguf_declarations());
  const std::vector<std::pair<std::string, std::string>> tensors{
      {"norm", kNorm}, {"matrix", kMatrix}, {"half", kHalf}};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, bytes] = tensors[backwards ? tensors.size() - 1 - i : i];
    writer.append(name, as_bytes(bytes).first(5));
    writer.append(name, as_bytes(bytes).subspan(5));
  }
  writer.finish();
}

TEST(GgufWriter, WritesKeysAndTensorsInOrderPaddedTo32) {
  TemporaryDirectory directory;
  write_gguf(system_io(), directory / "m.gguf", false);
  GgufBytes expected;
  expected.text("general.architecture", "llama").u32("llama.block_count", 2).f32("llama.epsilon", 0.5f);
  expected.key("yes", GgufType::kBool, "\1");
  expected.array("words", GgufType::kString, 3, gguf_text("a") + gguf_text("") + gguf_text("bcd"));
  expected.array("types", GgufType::kI32, 2,
                 little_endian(std::int32_t{-1}) + little_endian(std::int32_t{7}));
  expected.array("scores", GgufType::kF32, 1, little_endian(1.5f));
  const auto padded = [](const std::string& text, std::size_t size) {
    return text + std::string(size - text.size(), '\0');
  };
  expected.raw_tensor("norm", {3}, 0, 0, padded(kNorm, 32));
  expected.raw_tensor("matrix", {32, 2}, 2, 32, padded(kMatrix, 64));
  expected.raw_tensor("half", {1, 3, 2}, 1, 96, padded(kHalf, 32));
  EXPECT_EQ(directory.read("m.gguf"), expected.bytes());
}

TEST(GgufWriter, TheReaderFindsWhatWasWritten) {
  TemporaryDirectory directory;
  write_gguf(system_io(), directory / "m.gguf", true);
  const std::string bytes = directory.read("m.gguf");
  const GgufHeader header = parse_gguf(as_bytes(bytes), "m.gguf");
  EXPECT_EQ(header.integer("llama.block_count"), 2);
  EXPECT_EQ(header.strings("words"), (std::vector<std::string_view>{"a", "", "bcd"}));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[1].name, "matrix");
  EXPECT_EQ(header.tensors[1].shape, (Shape{2, 32}));
  EXPECT_EQ(bytes.substr(header.tensors[1].offset, header.tensors[1].bytes), kMatrix);
}

TEST(GgufWriter, OrderOfFeedingChangesNothing) {
  TemporaryDirectory directory;
  write_gguf(system_io(), directory / "one", false);
  write_gguf(system_io(), directory / "two", true);
  EXPECT_EQ(directory.read("one"), directory.read("two"));
}

TEST(GgufMetadata, CopiesValuesAsTheyLie) {
  TemporaryDirectory directory;
  write_gguf(system_io(), directory / "m.gguf", false);
  const std::string bytes = directory.read("m.gguf");
  const GgufHeader header = parse_gguf(as_bytes(bytes), "m.gguf");
  const GgufMetadata original = metadata();
  GgufMetadata copied;
  for (const GgufMetadata::Entry& entry : original.entries())
    copied.set_value(entry.key, header.at(entry.key));
  ASSERT_EQ(copied.entries().size(), original.entries().size());
  for (const GgufMetadata::Entry& entry : original.entries()) {
    ASSERT_NE(copied.find(entry.key), nullptr);
    EXPECT_EQ(copied.find(entry.key)->type, entry.type) << entry.key;
    EXPECT_EQ(copied.find(entry.key)->bytes, entry.bytes) << entry.key;
  }
  copied.erase("words");
  EXPECT_EQ(copied.find("words"), nullptr);
}

TEST(GgufWriter, NothingHasTheNameUntilFinished) {
  TemporaryDirectory directory;
  {
    GgufWriter writer(system_io(), directory / "m", metadata(), gguf_declarations());
    writer.append("norm", as_bytes(kNorm));
    EXPECT_FALSE(system_io().exists(directory / "m"));
    expect_refusal(ErrorKind::kInternal, "0 of ", [&] { writer.finish(); });
    expect_refusal(ErrorKind::kInternal, "1 bytes came where 0 of 12",
                   [&] { writer.append("norm", as_bytes("x")); });
    expect_refusal(ErrorKind::kInternal, "not declared", [&] { writer.append("y", as_bytes("xyz")); });
  }
  EXPECT_TRUE(system_io().list(directory.path()).empty());
}

TEST(GgufWriter, RefusesWhatGgufCannotHold) {
  TemporaryDirectory directory;
  const auto declare = [&](std::vector<TensorDeclaration> list) {
    GgufWriter(system_io(), directory / "m", {}, list);
  };
  expect_refusal(ErrorKind::kUnsupported, "BOOL", [&] { declare({{"a", DType::kBool, Shape{32}}}); });
  expect_refusal(ErrorKind::kUnsupported, "64 bytes", [&] {
    declare({{std::string(64, 'n'), DType::kF32, Shape{1}}});
  });
  expect_refusal(ErrorKind::kUnsupported, "5 dimensions", [&] {
    declare({{"a", DType::kF32, Shape{1, 1, 1, 1, 1}}});
  });
  expect_refusal(ErrorKind::kInternal, "whole blocks", [&] { declare({{"a", DType::kQ4_0, Shape{2, 33}}}); });
  expect_refusal(ErrorKind::kInternal, "twice", [&] {
    declare({{"a", DType::kF32, Shape{1}}, {"a", DType::kF32, Shape{1}}});
  });
  EXPECT_TRUE(system_io().list(directory.path()).empty());
}

TEST(GgufWriter, SyncsBeforeItRenames) {
  TemporaryDirectory directory;
  CountingIo io;
  write_gguf(io, directory / "m", false);
  const std::vector<std::string>& calls = io.calls();
  ASSERT_GE(calls.size(), 3u);
  EXPECT_TRUE(calls[calls.size() - 3].starts_with("sync m.partial-"));
  EXPECT_EQ(calls[calls.size() - 2], "rename m");
  EXPECT_TRUE(calls.back().starts_with("sync_directory "));
  EXPECT_EQ(io.count("create"), 1);
  EXPECT_EQ(io.count("reserve"), 1);
}

TEST(GgufWriter, AFailingDiskLeavesNothingThatLooksFinished) {
  const int failures =
      count_failures_of_a_disk([](Io& io, const Path& path) { write_gguf(io, path, false); },
                               [](const std::string& bytes) { parse_gguf(as_bytes(bytes), "m"); });
  EXPECT_GE(failures, 12);  // create, reserve, tables, six pieces, sync, rename, directory
}

}  // namespace
}  // namespace llmq
