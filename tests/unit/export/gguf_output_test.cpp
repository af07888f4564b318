// A GGUF in the making: what it may replace, what a failing disk or a kill leaves, and how a run goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "export/gguf/gguf_file.h"
#include "export/output/published_output.h"
#include "io/digest_cache.h"
#include "tests/support/failing_io.h"
#include "tests/support/full_journal_io.h"
#include "tests/support/killing_io.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::FailingIo;
using testing::golden_model;
using testing::kTinystories;
using testing::TemporaryDirectory;
using testing::to_gguf;

TEST(GgufFile, AGgufWrittenAgainKeepsItsKeysAndTensors) {
  TemporaryDirectory directory;
  to_gguf(system_io(), kTinystories.string(), directory / "a.gguf", "f32");
  to_gguf(system_io(), (directory / "a.gguf").string(), directory / "b.gguf", "f32");
  EXPECT_EQ(directory.read("a.gguf"), directory.read("b.gguf"));
  to_gguf(system_io(), (directory / "a.gguf").string(), directory / "c.gguf", "bf16");
  to_gguf(system_io(), kTinystories.string(), directory / "d.gguf", "bf16");
  EXPECT_EQ(directory.read("c.gguf"), directory.read("d.gguf"));
}

// Norms are F32 in every GGUF; the embedding says what the model's numbers are.
TEST(GgufFile, AsSafetensorsItsNumbersKeepTheirType) {
  TemporaryDirectory directory;
  for (const auto& [written, expected] : {std::pair<std::string, DType>{"f32", DType::kF32},
                                          {"f16", DType::kF16},
                                          {"bf16", DType::kBF16},
                                          {"q8_0", DType::kBF16}}) {
    const Path file = directory / (written + ".gguf");
    to_gguf(system_io(), kTinystories.string(), file, written);
    ConvertRequest request;
    request.source = file.string();
    request.target.directory = directory / written;
    request.to = "safetensors";
    convert(system_io(), open_checkpoint(system_io(), request.source), request);
    const Checkpoint made = open_checkpoint(system_io(), (directory / written).string());
    for (const StoredTensor& tensor : made.tensors()) EXPECT_EQ(tensor.view.dtype, expected) << tensor.name;
    request.target.directory = directory / (written + "-again.gguf");
    request.to = "gguf";
    EXPECT_EQ(convert(system_io(), open_checkpoint(system_io(), request.source), request).dtype, "as stored");
    EXPECT_EQ(directory.read(written + "-again.gguf"), directory.read(written + ".gguf"));
  }
}

TEST(GgufFile, ReplacesOnlyAnOutputOfLlmqAndOnlyWhenAsked) {
  TemporaryDirectory directory;
  const auto check = [&](const Path& path, bool overwrite) {
    check_gguf_destination(system_io(), {path, overwrite}, kTinystories);
  };
  write_text_atomically(system_io(), directory / "text.gguf", "some text");
  to_gguf(system_io(), kTinystories.string(), directory / "a.gguf", "f16");
  EXPECT_NO_THROW(check(directory / "new.gguf", false));
  EXPECT_NO_THROW(check(directory / "a.gguf", true));
  expect_refusal(ErrorKind::kUsage, "--overwrite", [&] { check(directory / "a.gguf", false); });
  for (const bool overwrite : {false, true})
    expect_refusal(ErrorKind::kUsage, "text.gguf.report.json says that llmq wrote it",
                   [&] { check(directory / "text.gguf", overwrite); });
  std::filesystem::copy_file(directory / "a.gguf", directory / "elses.gguf");
  directory.write("elses.gguf.report.json", R"({"schema": "somebody's"})");
  expect_refusal(ErrorKind::kUsage, "remove it yourself", [&] { check(directory / "elses.gguf", true); });
  std::filesystem::create_directory(directory / "elses.gguf.unfinished");  // of llmq, stopped as it ended
  EXPECT_NO_THROW(check(directory / "elses.gguf", true));
  std::filesystem::copy_file(directory / "a.gguf.report.json", directory / "text.gguf.report.json");
  expect_refusal(ErrorKind::kUsage, "no GGUF", [&] { check(directory / "text.gguf", true); });
  expect_refusal(ErrorKind::kUsage, ".gguf", [&] { check(directory / "model", false); });
  expect_refusal(ErrorKind::kUsage, "that is read", [&] {
    check_gguf_destination(system_io(), {directory / "a.gguf", true}, directory / "a.gguf");
  });
}

TEST(GgufFile, AFailingDiskLeavesNothingUnderItsName) {
  TemporaryDirectory directory;
  const std::string source = golden_model(directory, "qwen3");
  for (int call = 0;; ++call) {
    FailingIo io(call);
    const Path target = directory / "m.gguf";
    try {
      to_gguf(io, source, target, "bf16");
      EXPECT_GT(call, 30);
      break;
    } catch (const Error&) {
      if (system_io().exists(
              target)) {  // only what follows the rename may fail with the file in place: then it is whole
        EXPECT_NO_THROW(open_gguf(system_io(), target));
        system_io().remove(target);
      }
      for (const std::string& name : system_io().list(directory.path()))
        EXPECT_EQ(name.find("partial"), std::string::npos);
    }
  }
}

// A journalled file with its documents, as llmq quantize writes it; the blocks taken up.
std::int64_t quantize_small(Io& io, const Path& target, const std::string& job = "one",
                            std::uint64_t part_bytes = 0) {
  const Checkpoint checkpoint = open_checkpoint(io, kTinystories.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  GgufRequest request;
  request.target = {target, true};
  request.target.job = Json::object({{"job", job}});
  request.target.single_file = true;
  request.name = "m";
  request.file_type = find_gguf_file_type("q8_0");
  request.weighted = true;
  request.part_bytes = part_bytes;
  if (const auto found =
          find_unchanged(io, request.target, [&](const Path& path) { return file_sha256(io, path); }))
    return -1;
  GgufOutput output(io, checkpoint, spec, request);
  if (!output.importance()) {
    Imatrix imatrix;
    imatrix.entries["blk.0.attn_q.weight"] = {std::vector<float>(128, 2.0f), {1.0f}};
    output.keep_importance(imatrix);
  }
  ThreadPool pool(1);
  const GgufWritten written = output.write(&*output.importance(), pool);
  const Json report =
      Json::object({{"schema", kReportSchema}, {"job", request.target.job}, {"digest", written.digest}});
  output.publish(written, report.dump(), [](const std::vector<NamedDigest>&) { return "{}"; });
  return output.resumed_blocks();
}

TEST(GgufOutput, KilledAtEveryCallItEndsWithTheSameBytes) {
  const TemporaryDirectory models;
  quantize_small(system_io(), models / "m.gguf");
  const std::string whole = models.read("m.gguf");
  std::int64_t most_resumed = 0;
  for (int k = 0;; ++k) {
    SCOPED_TRACE(fmt::format("killed at call {}", k));
    const TemporaryDirectory disk;
    const Path target = disk / "m.gguf";
    const bool survived = testing::survives([&] {
      testing::KillingIo io(k);
      quantize_small(io, target);
    });
    if (system_io().exists(target)) {
      EXPECT_EQ(disk.read("m.gguf"), whole) << "whole or absent";
    }
    settle_publication(system_io(), [&] {
      OutputTarget settled{target, true};
      settled.job = Json::object({{"job", "one"}});
      settled.single_file = true;
      return settled;
    }());
    most_resumed = std::max(most_resumed, quantize_small(system_io(), target));
    EXPECT_EQ(disk.read("m.gguf"), whole);
    EXPECT_EQ(system_io().list(disk.path()),
              (std::vector<std::string>{"m.gguf", "m.gguf.manifest.json", "m.gguf.report.json"}));
    if (survived) {
      EXPECT_GT(k, 40);
      break;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(most_resumed, 2) << "the importance and both blocks";
}

// Of a split model the first part, by which it is known, gets its name last.
TEST(GgufOutput, KilledAtAnyCallASplitModelEndsWithTheSameBytes) {
  constexpr std::uint64_t kMost = 250'000;
  const TemporaryDirectory models;
  quantize_small(system_io(), models / "m.gguf", "one", kMost);
  const std::vector<std::string> names = system_io().list(models.path());
  ASSERT_GT(names.size(), 4u);
  for (int k = 0;; k += 9) {
    SCOPED_TRACE(fmt::format("killed at call {}", k));
    const TemporaryDirectory disk;
    const bool survived = testing::survives([&] {
      testing::KillingIo io(k);
      quantize_small(io, disk / "m.gguf", "one", kMost);
    });
    const bool has_its_name = system_io().exists(disk / names.front());
    for (const std::string& name : names) {
      if (!has_its_name || !name.ends_with(".gguf")) continue;
      ASSERT_EQ(disk.read(name), models.read(name));
    }
    quantize_small(system_io(), disk / "m.gguf", "one", kMost);
    OutputTarget settled{disk / names.front(), true};
    settled.single_file = true;
    settled.job = Json::object({{"job", "one"}});
    settle_publication(system_io(), settled);
    EXPECT_EQ(system_io().list(disk.path()), names);
    for (const std::string& name : names) EXPECT_EQ(disk.read(name), models.read(name)) << name;
    if (survived || HasFailure()) break;
  }
}

TEST(GgufOutput, ADamagedBlockIsDoneAgainAndAnotherJobIsTold) {
  const TemporaryDirectory disk;
  quantize_small(system_io(), disk / "whole.gguf");
  testing::FullJournalIo io(4);
  EXPECT_THROW(quantize_small(io, disk / "m.gguf"), Error);
  expect_refusal(ErrorKind::kUsage, "--restart",
                 [&] { quantize_small(system_io(), disk / "m.gguf", "another"); });
  {
    const Path made = disk / "m.gguf.unfinished/files/m.gguf";
    const GgufFile file = open_gguf(system_io(), made);
    std::uint64_t offset = 0;
    for (const GgufTensor& tensor : file.header.tensors)
      if (tensor.name == "blk.0.attn_q.weight") offset = tensor.offset;
    const std::byte flipped{0x5a};
    system_io().open_to_write(made)->write_at(offset + 3, {&flipped, 1});
  }
  EXPECT_LE(quantize_small(system_io(), disk / "m.gguf"), 2) << "what lies before the damaged block";
  EXPECT_EQ(disk.read("m.gguf"), disk.read("whole.gguf"));
}

}  // namespace
}  // namespace llmq
