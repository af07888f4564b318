// A directory appears under its own name whole or not at all, whatever call to the disk fails.
#include "export/output/model_directory.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "export/output/published_output.h"
#include "tests/support/failing_io.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorDeclaration floats(const std::string& name, std::int64_t count) { return {name, DType::kF32, {count}}; }

DirectoryContents two_tensors() {
  DirectoryContents contents;
  contents.tensors = {floats("a", 4), floats("b", 2)};
  contents.texts = {{"tokenizer.json", "{}"}};
  return contents;
}

void fill_and_finish(ModelDirectory& directory) {
  const std::vector<float> a = {1, 2, 3, 4}, b = {5, 6};
  directory.add("b", DType::kF32, {2}, std::as_bytes(std::span(b)));
  directory.add("a", DType::kF32, {4}, std::as_bytes(std::span(a)));
  directory.complete(Json::object({{"model_type", "llama"}}), {{"quantize_config.json", "{}"}});
  directory.publish({{kReportFile, "{\"schema\":\"llmq.report/1\"}"}}, {}, true);
}

void write_output(Io& io, const OutputTarget& target) {
  ModelDirectory directory(io, target, two_tensors());
  fill_and_finish(directory);
}

ErrorKind kind_of(const std::function<void()>& step, std::string* message = nullptr) {
  try {
    step();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kInternal;
}

std::vector<std::string> names_in(const Path& directory) { return system_io().list(directory); }

TEST(SplitShards, FillsInOrderAndNeverCutsATensor) {
  // 4000-byte tensors with a header line of 6 * 1 + 320 bytes each; two and the slack of 4096 fit 13,000,
  // three do not.
  const std::vector<TensorDeclaration> tensors = {floats("a", 1000), floats("b", 1000), floats("c", 1000),
                                                  floats("d", 5000), floats("e", 1)};
  const std::vector<ShardRange> shards = split_shards(tensors, 13'000);
  std::vector<std::size_t> counts;
  for (const ShardRange& shard : shards) counts.push_back(shard.count);
  EXPECT_THAT(counts, ElementsAre(2u, 1u, 1u, 1u));  // d alone is larger than a shard may be
  EXPECT_EQ(shards[2].first, 3u);
  EXPECT_EQ(split_shards(tensors, 1'000'000).size(), 1u);
}

TEST(SplitShards, NamesAsTransformersDoes) {
  EXPECT_EQ(shard_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_name(1, 14), "model-00002-of-00014.safetensors");
}

TEST(ModelDirectory, OneShardHasNoIndex) {
  const TemporaryDirectory disk;
  write_output(system_io(), {disk / "out", false});
  EXPECT_THAT(names_in(disk.path()), ElementsAre("out"));
  EXPECT_THAT(names_in(disk / "out"), ElementsAre("config.json", "model.safetensors", "quantize_config.json",
                                                  "report.json", "tokenizer.json"));
}

TEST(ModelDirectory, SeveralShardsHaveAnIndexSortedByName) {
  const TemporaryDirectory disk;
  OutputTarget target{disk / "out/", false};
  target.shard_bytes = 1;  // one tensor each
  write_output(system_io(), target);
  EXPECT_THAT(
      names_in(disk / "out"),
      ElementsAre("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                  "model.safetensors.index.json", "quantize_config.json", "report.json", "tokenizer.json"));
  EXPECT_EQ(
      Json::parse(disk.read("out/model.safetensors.index.json"), "index"),
      Json::parse(
          R"({"metadata":{"total_size":24},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})",
          "wanted"));
}

TEST(ModelDirectory, AWriterThatIsDroppedLeavesNothing) {
  const TemporaryDirectory disk;
  {
    ModelDirectory directory(system_io(), {disk / "out", false}, two_tensors());
    EXPECT_FALSE(system_io().exists(disk / "out"));
    EXPECT_THAT(names_in(disk.path()), ElementsAre("out.unfinished"));
  }
  EXPECT_TRUE(names_in(disk.path()).empty());
}

TEST(ModelDirectory, RemovesWhatAKilledRunToTheSameTargetLeft) {
  const TemporaryDirectory disk;
  disk.write("out.unfinished/files/model.safetensors", "half");
  disk.write("out.unfinished/lock", "process 1 on nowhere");
  write_output(system_io(), {disk / "out", false});
  EXPECT_THAT(names_in(disk.path()), ElementsAre("out"));
}

TEST(ModelDirectory, LeavesAloneWhatItDidNotWrite) {
  const TemporaryDirectory disk;
  disk.write("elsewhere/file", "kept");
  disk.write("out.unfinished/notes.txt", "kept");
  disk.write("in.unfinished/files/directory/file", "kept");
  std::filesystem::create_directory_symlink(disk / "elsewhere", disk / "on.unfinished");
  std::filesystem::create_directories(disk / "at.unfinished");
  std::filesystem::create_directory_symlink(disk / "elsewhere", disk / "at.unfinished" / "files");
  std::filesystem::create_directory_symlink(disk / "elsewhere", disk / "link");
  for (const char* name : {"out", "in", "on", "at", "link"})
    EXPECT_EQ(kind_of([&] { write_output(system_io(), {disk / name, true}); }), ErrorKind::kUsage) << name;
  EXPECT_EQ(disk.read("elsewhere/file"), "kept");
  EXPECT_EQ(disk.read("out.unfinished/notes.txt"), "kept");
  EXPECT_EQ(disk.read("in.unfinished/files/directory/file"), "kept");
}

// A name that somebody else uses is refused and left to them.
TEST(ModelDirectory, LeavesAloneWhatStandsInThePlaceOfTheUnfinished) {
  const TemporaryDirectory disk;
  disk.write("file.unfinished", "mine");
  system_io().make_link("elsewhere", disk / "link.unfinished");
  for (const char* name : {"file", "link"})
    EXPECT_NE(kind_of([&] { write_output(system_io(), {disk / name}); }), ErrorKind::kInternal) << name;
  EXPECT_EQ(disk.read("file.unfinished"), "mine");
  EXPECT_EQ(system_io().read_link(disk / "link.unfinished"), "elsewhere");
  EXPECT_THAT(names_in(disk / "."), ::testing::UnorderedElementsAre("file.unfinished", "link.unfinished"));
}

// The second is told who holds the lock; once that one is dead its lock is taken over.
TEST(ModelDirectory, OneJobAtATime) {
  const TemporaryDirectory disk;
  std::string message;
  {
    ModelDirectory first(system_io(), {disk / "out", false}, two_tensors());
    EXPECT_EQ(kind_of(
                  [&] {
                    write_output(system_io(), {disk / "out", false});
                  },
                  &message),
              ErrorKind::kResource);
    EXPECT_THAT(message, HasSubstr(fmt::format("process {} on ", ::getpid())));
    fill_and_finish(first);
  }
  EXPECT_THAT(names_in(disk.path()), ElementsAre("out"));
}

TEST(ModelDirectory, RefusesWhatWasNotDeclaredOrNeverCame) {
  const TemporaryDirectory disk;
  ModelDirectory directory(system_io(), {disk / "out", false}, two_tensors());
  const std::vector<float> values = {1, 2, 3, 4};
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_EQ(kind_of([&] { directory.add("c", DType::kF32, {4}, bytes); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { directory.add("a", DType::kI32, {4}, bytes); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { directory.add("a", DType::kF32, {2, 2}, bytes); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { directory.add("a", DType::kF32, {4}, bytes.first(12)); }), ErrorKind::kInternal);
  directory.add("a", DType::kF32, {4}, bytes);
  EXPECT_EQ(kind_of([&] { directory.add("a", DType::kF32, {4}, bytes); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { directory.complete(Json::object()); }), ErrorKind::kInternal);  // b never came
  EXPECT_FALSE(system_io().exists(disk / "out"));
}

TEST(ModelDirectory, AnEmptyDirectoryMayBeFilled) {
  const TemporaryDirectory disk;
  system_io().make_directory(disk / "out");
  write_output(system_io(), {disk / "out", false});
  EXPECT_TRUE(system_io().exists(disk / "out" / "config.json"));
}

TEST(ModelDirectory, RefusesADirectoryThatHoldsSomethingElse) {
  const TemporaryDirectory disk;
  disk.write("notes/todo.txt", "milk");
  disk.write("other/config.json", "{}");
  disk.write("other/report.json", "{\"schema\": \"another tool\"}");
  disk.write("file", "");
  std::string message;
  for (const char* name : {"notes", "other", "file"})
    for (const bool overwrite : {false, true})
      EXPECT_EQ(kind_of([&] {
                  write_output(system_io(), {disk / name, overwrite});
                }),
                ErrorKind::kUsage)
          << name;
  EXPECT_EQ(disk.read("notes/todo.txt"), "milk");
  EXPECT_THAT(names_in(disk.path()), ElementsAre("file", "notes", "other"));
}

TEST(ModelDirectory, ReplacesAnEarlierOutputOnlyWhenAsked) {
  const TemporaryDirectory disk;
  write_output(system_io(), {disk / "out", false});
  disk.write("out/note.txt", "old");
  EXPECT_EQ(kind_of([&] { write_output(system_io(), {disk / "out", false}); }), ErrorKind::kUsage);
  EXPECT_TRUE(system_io().exists(disk / "out" / "note.txt"));
  write_output(system_io(), {disk / "out", true});
  EXPECT_FALSE(system_io().exists(disk / "out" / "note.txt"));
  EXPECT_THAT(names_in(disk.path()), ElementsAre("out"));
}

TEST(ModelDirectory, KeepsAnEarlierOutputThatHoldsADirectory) {
  const TemporaryDirectory disk;
  write_output(system_io(), {disk / "out", false});
  disk.write("out/runs/1.txt", "precious");
  EXPECT_EQ(kind_of([&] { write_output(system_io(), {disk / "out", true}); }), ErrorKind::kUsage);
  EXPECT_EQ(disk.read("out/runs/1.txt"), "precious");
}

class FullDisk final : public InterceptedIo {
 public:
  FullDisk() : InterceptedIo(system_io()) {}
  std::uint64_t free_bytes(const Path&) override { return 1000; }

 private:
  void before(const char*, const Path&) override {}
};

TEST(ModelDirectory, SaysWhatItNeedsWhenTheDiskIsFull) {
  const TemporaryDirectory disk;
  FullDisk io;
  std::string message;
  EXPECT_EQ(kind_of([&] { write_output(io, {disk / "out", false}); }, &message), ErrorKind::kIo);
  EXPECT_THAT(message, HasSubstr("1.0 kB free"));
  EXPECT_THAT(message, HasSubstr("needs 1.1 MB"));  // a mebibyte of slack and the tensors
  EXPECT_TRUE(names_in(disk.path()).empty());
}

// What a power cut must not undo: when the directory gets its name, every byte in it has been synced,
// config.json (whose presence says that a model is there) was made after everything else that loaders read,
// and the name itself is synced after. What is left to do then is to remove.
TEST(ModelDirectory, EverythingIsOnTheDiskBeforeTheName) {
  const TemporaryDirectory disk;
  disk.write("source/merges.txt", "a b\n");
  CountingIo io;
  {
    DirectoryContents contents = two_tensors();
    contents.copies = {disk / "source/merges.txt"};
    ModelDirectory directory(io, {disk / "out", false}, contents);
    fill_and_finish(directory);
  }
  const std::vector<std::string>& calls = io.calls();
  const auto at = [&](const std::string& call) {
    return std::find(calls.begin(), calls.end(), call) - calls.begin();
  };
  const auto named = at("rename out");
  ASSERT_LT(named, std::ssize(calls));
  std::vector<std::string> created;
  for (std::ptrdiff_t i = 0; i < named; ++i) {
    const std::string& call = calls[static_cast<std::size_t>(i)];
    if (call.starts_with("create ")) created.push_back(call.substr(7));
    if (!call.starts_with("write ")) continue;
    EXPECT_TRUE(std::any_of(calls.begin() + i, calls.begin() + named, [&](const std::string& later) {
      return later == "sync " + call.substr(6);
    })) << call;
  }
  EXPECT_THAT(created, ElementsAre("model.safetensors", "merges.txt", "tokenizer.json",
                                   "quantize_config.json", "config.json", "report.json"));
  const auto synced = std::find(calls.rend() - named, calls.rend(), "sync_directory files");
  EXPECT_GT(calls.rend() - synced, at("sync report.json"));
  EXPECT_EQ(calls[static_cast<std::size_t>(named) + 1], "sync_directory " + disk.path().filename().string());
  for (std::size_t i = static_cast<std::size_t>(named) + 3; i < calls.size(); ++i)
    EXPECT_THAT(calls[i], ::testing::StartsWith("remove ")) << calls[i];
}

// Every call in turn fails, once or from then on: an Error each time, and nothing under the output's name.
TEST(ModelDirectory, NoFailureLeavesTheOutputsName) {
  for (const auto how : {FailingIo::How::kOnce, FailingIo::How::kFromThenOn}) {
    int failures = 0;
    for (int k = 0;; ++k) {
      SCOPED_TRACE(fmt::format("call {}, {}", k, how == FailingIo::How::kOnce ? "once" : "from then on"));
      ASSERT_LT(k, 500);
      const TemporaryDirectory disk;
      disk.write("source/merges.txt", "a b\n");
      FailingIo io(k, how);
      OutputTarget target{disk / "out", false};
      target.shard_bytes = 1;
      bool failed = false;
      try {
        DirectoryContents contents = two_tensors();
        contents.copies = {disk / "source/merges.txt"};
        ModelDirectory directory(io, target, contents);
        fill_and_finish(directory);
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.kind(), ErrorKind::kIo);
      }
      if (!io.failed()) break;
      ++failures;
      if (!failed) {  // what was left to remove was not: the output is whole
        EXPECT_EQ(names_in(disk / "out").size(), 8u);
        continue;
      }
      EXPECT_THAT(names_in(disk.path()), ElementsAre("source"))
          << "even the unfinished directory goes, as removal still works";
    }
    EXPECT_GT(failures, 30);
  }
}

// With an earlier output in place, the name always leads to a whole one: the old or the new.
TEST(ModelDirectory, NoFailureLosesTheEarlierOutput) {
  for (int k = 0;; ++k) {
    SCOPED_TRACE(fmt::format("call {}", k));
    ASSERT_LT(k, 500);
    const TemporaryDirectory disk;
    write_output(system_io(), {disk / "out", false});
    disk.write("out/old.txt", "old");
    FailingIo io(k, FailingIo::How::kOnce);
    bool failed = false;
    try {
      write_output(io, {disk / "out", true});
    } catch (const Error&) {
      failed = true;
    }
    const bool old = system_io().exists(disk / "out/old.txt");
    EXPECT_TRUE(system_io().exists(disk / "out/config.json"));
    EXPECT_EQ(failed, old) << "an error means the old one is still there";
    if (failed) {
      EXPECT_THAT(names_in(disk.path()), ElementsAre("out"));
    }
    if (!io.failed()) break;
  }
}

}  // namespace
}  // namespace llmq::testing
