// Importance matrices in both forms: what is written is read, and lies are refused.
#include <gtest/gtest.h>

#include "io/imatrix.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::expect_refusal;
using testing::little_endian;
using testing::TemporaryDirectory;

Imatrix example() {
  Imatrix imatrix;
  imatrix.entries["blk.0.attn_q.weight"] = {{8, 2, 0}, {4}};
  imatrix.entries["blk.0.ffn_down_exps.weight"] = {{6, 3, 5, 5}, {3, 0}};
  imatrix.datasets = {"text"};
  imatrix.chunk_count = 2;
  imatrix.chunk_size = 2;
  return imatrix;
}

TEST(Imatrix, ImportanceIsTheMeanSquare) {
  EXPECT_EQ(example().importance("blk.0.attn_q.weight"), (std::vector<float>{2, 0.5f, 0}));
  EXPECT_EQ(example().importance("blk.0.ffn_down_exps.weight"), (std::vector<float>{2, 1, 1, 1}));
  EXPECT_TRUE(example().importance("output.weight").empty());
}

TEST(Imatrix, GgufComesBackWhole) {
  TemporaryDirectory directory;
  save_imatrix(system_io(), directory / "i.gguf", example());
  const Imatrix read = load_imatrix(system_io(), directory / "i.gguf");
  EXPECT_EQ(read.datasets, example().datasets);
  EXPECT_EQ(read.chunk_count, 2u);
  EXPECT_EQ(read.chunk_size, 2u);
  ASSERT_EQ(read.entries.size(), 2u);
  for (const auto& [name, entry] : example().entries) {
    EXPECT_EQ(read.entries.at(name).sums, entry.sums);
    EXPECT_EQ(read.entries.at(name).counts, entry.counts);
  }
}

TEST(Imatrix, DatBytes) {
  TemporaryDirectory directory;
  Imatrix one = example();
  one.entries.erase("blk.0.ffn_down_exps.weight");
  save_imatrix(system_io(), directory / "i.dat", one);
  const auto i32 = [](std::int32_t value) { return little_endian(value); };
  const std::string expected = i32(1) + i32(19) + "blk.0.attn_q.weight" + i32(2) + i32(3) +
                               little_endian(4.0f) + little_endian(1.0f) + little_endian(0.0f) + i32(2) +
                               i32(4) + "text";
  EXPECT_EQ(directory.read("i.dat"), expected);
  const Imatrix read = load_imatrix(system_io(), directory / "i.dat");
  EXPECT_EQ(read.importance("blk.0.attn_q.weight"), one.importance("blk.0.attn_q.weight"));
  EXPECT_EQ(read.chunk_count, 2u);
}

TEST(Imatrix, FilesWithoutTheLastFieldsAreRead) {
  const auto i32 = [](std::int32_t value) { return little_endian(value); };
  const std::string bytes = i32(1) + i32(1) + "w" + i32(2) + i32(1) + little_endian(4.0f);
  EXPECT_EQ(parse_imatrix(as_bytes(bytes), "i.dat").importance("w"), std::vector<float>{2});
}

TEST(Imatrix, RefusesLies) {
  const auto i32 = [](std::int32_t value) { return little_endian(value); };
  const auto refuse = [&](const std::string& bytes, std::string_view part) {
    expect_refusal(ErrorKind::kBadInput, part, [&] { parse_imatrix(as_bytes(bytes), "i.dat"); });
  };
  const std::string entry = i32(1) + "w" + i32(2) + i32(1) + little_endian(4.0f);
  refuse("", "0 are left");
  refuse(i32(0), "0 entries");
  refuse(i32(-1), "-1 entries");
  refuse(i32(1) + i32(-5), "-5 bytes");
  refuse(i32(1) + i32(1 << 30), "name");
  refuse(i32(1) + i32(1) + "w" + i32(1) + i32(-1), "announced");
  refuse(i32(1) + i32(1) + "w" + i32(1) + i32(0), "0 sums");
  refuse(i32(1) + i32(1) + "w" + i32(1) + i32(1 << 30), "announced");
  refuse(i32(1) + i32(1) + "w" + i32(1) + i32(1) + little_endian(-1.0f), "no sum of squares");
  refuse(i32(1) + i32(1) + "w" + i32(-1) + i32(1) + little_endian(1.0f), "no sum of squares");
  refuse(i32(2) + entry + entry, "twice");
  refuse(i32(1) + entry + i32(1) + i32(0) + "x", "follow");
  testing::GgufBytes model;
  model.text("general.type", "model");
  refuse(model.bytes(), "not \"imatrix\"");
  testing::GgufBytes half;
  half.text("general.type", "imatrix").tensor("w.in_sum2", {2}, {1, 2});
  refuse(half.bytes(), "0 counts");
  testing::GgufBytes odd;
  odd.text("general.type", "imatrix").tensor("w.in_sum2", {3}, {1, 2, 3}).tensor("w.counts", {2}, {1, 2});
  refuse(odd.bytes(), "3 sums do not go with 2");
}

}  // namespace
}  // namespace llmq
