// A model in several GGUF files: what each holds, and that they are one model again.
#include <gtest/gtest.h>

#include <filesystem>

#include "export/gguf/gguf_file.h"
#include "io/gguf_writer.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::GgufBytes;
using testing::kTinystories;
using testing::little_endian;
using testing::TemporaryDirectory;
using testing::to_gguf;

constexpr std::uint64_t kMost = 300'000;

class SplitGguf : public ::testing::Test {
 protected:
  SplitGguf() {
    to_gguf(system_io(), kTinystories.string(), disk_ / "whole.gguf", "f16");
    to_gguf(system_io(), kTinystories.string(), disk_ / "m.gguf", "f16", kMost);
    for (const std::string& name : system_io().list(disk_.path()))
      if (name.starts_with("m-") && name.ends_with(".gguf")) names_.push_back(name);
  }
  Path first() const { return disk_ / names_.front(); }
  void expect_refused(ErrorKind kind, const std::string& part) const {
    expect_refusal(kind, part, [&] { open_gguf(system_io(), first()); });
  }

  TemporaryDirectory disk_;
  std::vector<std::string> names_;
};

// Keys as llama.cpp's converter writes them: u16, u16 and i32, behind all others, which the first file alone
// has.
TEST_F(SplitGguf, EachFileSaysWhichPartItIs) {
  const GgufFile whole = open_gguf(system_io(), disk_ / "whole.gguf");
  ASSERT_GT(names_.size(), 3u);
  EXPECT_FALSE(system_io().exists(disk_ / "m.gguf"));
  std::size_t next = 0;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    EXPECT_EQ(names_[i], gguf_part_name("m", static_cast<int>(i) + 1, static_cast<int>(names_.size())));
    const std::string bytes = disk_.read(names_[i]);
    const GgufHeader part = parse_gguf(testing::as_bytes(bytes), names_[i]);
    EXPECT_EQ(part.metadata.size(), i == 0 ? whole.header.metadata.size() + 3 : 3);
    EXPECT_EQ(part.integer("split.no"), static_cast<std::int64_t>(i));
    EXPECT_EQ(part.integer("split.count"), std::ssize(names_));
    EXPECT_EQ(part.integer("split.tensors.count"), std::ssize(whole.header.tensors));
    EXPECT_EQ(part.at("split.no").type, GgufType::kU16);
    EXPECT_EQ(part.at("split.tensors.count").type, GgufType::kI32);
    std::uint64_t taken = 0;
    for (const GgufTensor& tensor : part.tensors) {
      const GgufTensor& own = whole.header.tensors.at(next++);
      EXPECT_EQ(tensor.name, own.name);
      EXPECT_EQ(std::string_view(bytes).substr(tensor.offset, tensor.bytes),
                std::string_view(reinterpret_cast<const char*>(own.data), own.bytes));
      taken += (tensor.bytes + 31) / 32 * 32;
    }
    EXPECT_TRUE(taken <= kMost || part.tensors.size() == 1) << names_[i];
    if (next < whole.header.tensors.size()) {
      EXPECT_GT(taken + whole.header.tensors[next].bytes, kMost) << "the next would have fit";
    }
  }
  EXPECT_EQ(next, whole.header.tensors.size());
}

TEST_F(SplitGguf, IsOneModelAgain) {
  const Checkpoint parts = open_checkpoint(system_io(), first().string()),
                   whole = open_checkpoint(system_io(), (disk_ / "whole.gguf").string());
  EXPECT_EQ(parts.shards().size(), names_.size());
  EXPECT_EQ(parts.config(), whole.config());
  ASSERT_EQ(parts.tensors().size(), whole.tensors().size());
  for (const StoredTensor& tensor : whole.tensors())
    EXPECT_EQ(parts.read_float32(parts.at(tensor.name)), whole.read_float32(tensor)) << tensor.name;
  to_gguf(system_io(), first().string(), disk_ / "joined.gguf", "f16");
  EXPECT_EQ(disk_.read("joined.gguf"), disk_.read("whole.gguf"));
}

TEST_F(SplitGguf, WhatFitsIsOneFile) {
  to_gguf(system_io(), kTinystories.string(), disk_ / "n.gguf", "f16", 1'000'000'000);
  EXPECT_EQ(disk_.read("n.gguf"), disk_.read("whole.gguf"));
}

TEST_F(SplitGguf, PartsThatAreMissingOrOfOthersAreNamed) {
  const Path second = disk_ / names_[1], third = disk_ / names_[2];
  expect_refusal(ErrorKind::kUsage, "pass the first part", [&] { open_gguf(system_io(), second); });
  expect_refusal(ErrorKind::kUsage, "exists already",
                 [&] { to_gguf(system_io(), kTinystories.string(), disk_ / "m.gguf", "f16", kMost); });
  const std::string of_second = disk_.read(names_[1]);
  std::filesystem::rename(third, disk_ / "aside");
  expect_refused(ErrorKind::kBadInput, "part 3 of");
  std::filesystem::copy_file(second, third);
  expect_refused(ErrorKind::kBadInput, "is not 2");
  std::filesystem::rename(disk_ / "aside", third);
  std::filesystem::resize_file(third, std::filesystem::file_size(third) - 64);
  expect_refused(ErrorKind::kBadInput, "truncated");
  std::filesystem::rename(first(), disk_ / "x.gguf");
  expect_refusal(ErrorKind::kBadInput, "its name does not say",
                 [&] { open_gguf(system_io(), disk_ / "x.gguf"); });
}

TEST(SplitGgufs, LieNeitherAboutTheirNumberNorAboutTensors) {
  const TemporaryDirectory disk;
  const auto write = [&](int number, int count, int tensors, const char* name) {
    GgufBytes bytes;
    bytes.key("split.no", GgufType::kU16, little_endian(static_cast<std::uint16_t>(number)));
    bytes.key("split.count", GgufType::kU16, little_endian(static_cast<std::uint16_t>(count)));
    bytes.key("split.tensors.count", GgufType::kI32, little_endian(tensors));
    bytes.tensor(name, {2}, {1, 2});
    write_text_atomically(system_io(), disk / gguf_part_name("m", number + 1, 2), bytes.bytes());
  };
  const auto open = [&] { open_gguf(system_io(), disk / "m-00001-of-00002.gguf"); };
  write(0, 2, 2, "a");
  write(1, 2, 2, "a");
  expect_refusal(ErrorKind::kBadInput, "in two parts", open);
  write(1, 2, 2, "b");
  EXPECT_NO_THROW(open());
  write(1, 3, 2, "b");
  expect_refusal(ErrorKind::kBadInput, "split.count", open);
  write(0, 2, 5, "a");
  write(1, 2, 5, "b");
  expect_refusal(ErrorKind::kBadInput, "hold 2 tensors", open);
  GgufBytes beyond;
  beyond.key("split.no", GgufType::kI64, little_endian(INT64_MAX));
  beyond.key("split.count", GgufType::kU16, little_endian(std::uint16_t{2})).tensor("a", {2}, {1, 2});
  write_text_atomically(system_io(), disk / gguf_part_name("m", 1, 2), beyond.bytes());
  expect_refusal(ErrorKind::kBadInput, "is 9223372036854775807, and the model has the parts 0 to 1", open);
}

}  // namespace
}  // namespace llmq
