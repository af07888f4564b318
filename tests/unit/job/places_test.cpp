// Ranks whose nodes have directories of their own: the bytes of one process under rank 0's, and nothing left
// with the others, in one run or in two, whichever nodes go on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "base/error.h"
#include "job/conversion_job.h"
#include "tests/support/counting_io.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/job/job_by_ranks.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct NodeStopped {};

using Nodes = std::vector<int>;  // of each rank
using Keys = std::vector<std::string>;

std::string text_of(const Nodes& nodes) { return fmt::format("{}", fmt::join(nodes, "-")); }

const Keys kRounded = {"method=rtn", "scheme=nvfp4a16", "shard_bytes=50000"};

// So many samples that as many ranks have some each.
Keys calibrated(int ranks) {
  return {"method=gptq", "scheme=w4a16_g32_sym", fmt::format("calibration.samples={}", 32 * (ranks - 1) + 1),
          "calibration.sequence_length=128", "shard_bytes=50000"};
}

// Calls `see` ahead of everything that changes or reads something.
class WatchedIo final : public testing::InterceptedIo {
 public:
  explicit WatchedIo(std::function<void(const std::string&, const Path&)> see)
      : InterceptedIo(system_io()), see_(std::move(see)) {}
  std::uint64_t free_bytes(const Path& directory) override {
    return room_ == 0 ? InterceptedIo::free_bytes(directory) : room_;
  }
  void leave_room(std::uint64_t bytes) { room_ = bytes; }

 private:
  void before(const char* operation, const Path& path) override { see_(operation, path); }
  std::function<void(const std::string&, const Path&)> see_;
  std::uint64_t room_ = 0;
};

// Of names in the making, a network's file system as another machine sees it: what was not there is not there
// until somebody lists the directory above.
class LateNamesIo final : public testing::InterceptedIo {
 public:
  LateNamesIo() : InterceptedIo(system_io()) {}
  bool exists(const Path& path) override {
    const bool in_the_making = path.string().find(".unfinished") != std::string::npos;
    return InterceptedIo::exists(path) && (!in_the_making || listed_.count(path.parent_path()) != 0);
  }

 private:
  void before(const char* operation, const Path& path) override {
    if (std::string_view(operation) == "list") listed_.insert(path);
  }
  std::set<Path> listed_;
};

class Places : public ::testing::Test {
 protected:
  Path output(int node, const std::string& name) const {
    return scratch_ / fmt::format("node{}", node) / name;
  }

  RankWork work(const std::string& name, const Keys& keys, const Nodes& nodes) const {
    RankWork work;
    work.request = [this, name, keys, nodes](int rank) {
      return shared_request(output(nodes[static_cast<std::size_t>(rank)], name).string(), keys);
    };
    return work;
  }
  Json run(const std::string& name, const Keys& keys, const Nodes& nodes) const {
    return job_by_ranks(work(name, keys, nodes), static_cast<int>(nodes.size()));
  }

  // The digest of one process.
  std::string whole(const Keys& keys) {
    std::string key;
    for (const std::string& one : keys) key += one + '\n';
    std::string& digest = whole_[key];
    if (digest.empty())
      digest =
          job_by_ranks(shared_request((scratch_ / fmt::format("whole{}", whole_.size())).string(), keys), 1)
              .at("digest")
              .as_string();
    return digest;
  }

  std::vector<std::string> names_on(int node) const {
    const Path directory = scratch_ / fmt::format("node{}", node);
    return system_io().is_directory(directory) ? system_io().list(directory) : std::vector<std::string>();
  }

  // Under rank 0's name alone, and whole.
  void expect_gathered(const std::string& name, const Nodes& nodes, const std::string& digest) const {
    EXPECT_EQ(output_digest(system_io(), output(nodes[0], name)), digest);
    for (const int node : nodes)
      for (const std::string& left : names_on(node))
        EXPECT_TRUE(left == name ? node == nodes[0] : !left.starts_with(name + ".")) << node << ": " << left;
  }

  // Stopped by `stop` at the places of `before`, and ended by those of `after`.
  Json stopped_and_ended(const std::string& name, const Keys& keys, const Nodes& before, const Nodes& after,
                         const std::function<void(RankWork&)>& stop) {
    RankWork first = work(name, keys, before);
    stop(first);
    bool stopped = false;
    try {
      job_by_ranks(first, static_cast<int>(before.size()));
    } catch (const NodeStopped&) {
      stopped = true;
    }
    EXPECT_TRUE(stopped) << "the first run came to its end";
    for (const int node : before) EXPECT_FALSE(system_io().exists(output(node, name))) << node;
    Json end = run(name, keys, after);
    EXPECT_EQ(end.at("digest").as_string(), whole(keys));
    expect_gathered(name, after, whole(keys));
    return end;
  }

  testing::TemporaryDirectory scratch_;
  std::map<std::string, std::string> whole_;
};

std::function<void(RankWork&)> at_step(int victim, int step) {
  return [=](RankWork& work) {
    work.on_step = [victim, left = std::make_shared<std::atomic<int>>(step)](int rank) {
      if (rank == victim && (*left)-- == 0) throw NodeStopped();
    };
  };
}

// Rank 0 stops at a call that `is_it`.
std::function<void(RankWork&)> at_call(std::function<bool(const std::string&, const Path&)> is_it) {
  return [is_it = std::move(is_it)](RankWork& work) {
    const auto io = std::make_shared<WatchedIo>([is_it](const std::string& operation, const Path& path) {
      if (is_it(operation, path)) throw NodeStopped();
    });
    work.io = [io](int rank) -> Io& { return rank == 0 ? *io : system_io(); };
  };
}

// Each rank that keeps a journal stops where it would record the second block.
void behind_the_first_block(RankWork& work) {
  const auto ios = std::make_shared<std::vector<std::unique_ptr<WatchedIo>>>();
  for (int rank = 0; rank < 4; ++rank)
    ios->push_back(std::make_unique<WatchedIo>(
        [records = std::make_shared<int>(0)](const std::string& operation, const Path& path) {
          if (operation == "write" && path.filename() == "journal" && ++*records == 3) throw NodeStopped();
        }));
  work.io = [ios](int rank) -> Io& { return *(*ios)[static_cast<std::size_t>(rank)]; };
}

const std::vector<Nodes> kNodes = {{0, 1}, {0, 1, 1}, {0, 0, 1}, {0, 1, 0}, {0, 1, 2}};

TEST_F(Places, RoundingIsGathered) {
  int number = 0;
  for (const Keys& keys : {kRounded, Keys{"method=rtn", "scheme=w4a16_g32_asym"}})
    for (const Nodes& nodes : kNodes) {
      const std::string name = fmt::format("q{}", ++number);
      SCOPED_TRACE(name);
      EXPECT_EQ(run(name, keys, nodes).at("digest").as_string(), whole(keys));
      expect_gathered(name, nodes, whole(keys));
    }
}

TEST_F(Places, CalibrationIsGathered) {
  for (const Nodes& nodes : std::vector<Nodes>{{0, 1}, {0, 0, 1}}) {
    const Keys keys = calibrated(static_cast<int>(nodes.size()));
    const std::string name = fmt::format("q{}", text_of(nodes));
    EXPECT_EQ(run(name, keys, nodes).at("digest").as_string(), whole(keys));
    expect_gathered(name, nodes, whole(keys));
  }
}

TEST_F(Places, ConversionsAreGathered) {
  for (const Nodes& nodes : std::vector<Nodes>{{0}, {0, 1}, {0, 1, 0}, {0, 1, 2}}) {
    const std::string name = "c" + text_of(nodes);
    std::string digest;
    run_as_ranks(static_cast<int>(nodes.size()), [&](Ranks& rank) {
      ConvertRequest asked;
      asked.source = kSharedModel, asked.to = "safetensors", asked.dtype = "bf16";
      asked.split_max_size = 70000;
      asked.target.directory = output(nodes[static_cast<std::size_t>(rank.rank())], name);
      asked.target.ranks = &rank;
      const auto end = run_conversion(system_io(), asked, true, kSharingProgram);
      if (rank.rank() == 0) digest = std::get<ConvertReport>(end).to_json().at("digest").as_string();
    });
    expect_gathered(name, nodes, digest);
    EXPECT_EQ(output_digest(system_io(), output(0, "c0")), digest);
  }
}

// What went over the network on top of one directory's: the shards of the other place, and little else.
TEST_F(Places, OneDirectoryCostsNothingMore) {
  const Keys keys = {"method=rtn", "scheme=w8a16_channel_sym", "shard_bytes=50000"};
  const Json near = run("near", keys, {0, 0}), far = run("far", keys, {0, 1});
  const auto told = [](const Json& end) { return end.at("ranks").at("traffic_bytes").as_double(); };
  double gathered = 0;
  for (const std::string& shard : system_io().list(output(0, "far")))
    if (shard.ends_with(".safetensors") && std::stoi(shard.substr(6, 5)) % 2 == 0)
      gathered += static_cast<double>(std::filesystem::file_size(output(0, "far") / shard));
  EXPECT_GT(gathered, 1e5);
  EXPECT_NEAR((told(far) - told(near)) / gathered, 1, 0.1);
}

TEST_F(Places, ADirectoryWhoseNamesComeLateIsOne) {
  RankWork two = work("late", kRounded, {0, 0});
  LateNamesIo late;
  two.io = [&](int rank) -> Io& { return rank == 1 ? late : system_io(); };
  EXPECT_EQ(job_by_ranks(two, 2).at("digest").as_string(), whole(kRounded));
  expect_gathered("late", {0, 0}, whole(kRounded));
}

// A directory above may be entered and written to by those who may not list it.
TEST_F(Places, ANodeThatMayNotListWhatIsAboveHasAPlace) {
  WatchedIo closed([&](const std::string& operation, const Path& path) {
    if (operation == "list" && output(1, "closed").string().starts_with(path.string() + "/"))
      fail(ErrorKind::kIo, "cannot be listed");
  });
  RankWork two = work("closed", kRounded, {0, 1});
  two.io = [&](int rank) -> Io& { return rank == 1 ? closed : system_io(); };
  EXPECT_EQ(job_by_ranks(two, 2).at("digest").as_string(), whole(kRounded));
  expect_gathered("closed", {0, 1}, whole(kRounded));
}

// NFS gives an open file that is removed another name, and keeps the directory.
TEST_F(Places, WhatIsRemovedElsewhereIsClosed) {
  int removed = 0, open = 0;
  WatchedIo watched([&](const std::string& operation, const Path& path) {
    if (operation != "remove" || path.extension() != ".safetensors") return;
    ++removed;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone) == path) ++open;
    }
  });
  RankWork two = work("shut", kRounded, {0, 1});
  two.io = [&](int rank) -> Io& { return rank == 1 ? watched : system_io(); };
  job_by_ranks(two, 2);
  EXPECT_GT(removed, 0);
  EXPECT_EQ(open, 0);
}

TEST_F(Places, OtherNodesGoOn) {
  int number = 0, resumed = 0;
  for (const auto& [before, after] : std::vector<std::pair<Nodes, Nodes>>{{{0, 1}, {0, 1}},
                                                                          {{0, 1}, {1, 0}},
                                                                          {{0, 1}, {0}},
                                                                          {{0, 1}, {1}},
                                                                          {{0}, {1, 0}},
                                                                          {{0, 0}, {1, 0, 1}},
                                                                          {{0, 1, 2}, {2, 1}},
                                                                          {{0, 1}, {2, 1, 0, 1}}})
    for (const int step : {3, before.size() > 2 ? 5 : 8}) {
      SCOPED_TRACE(fmt::format("{} then {}, stopped at {}", text_of(before), text_of(after), step));
      const int victim = number % static_cast<int>(before.size());
      resumed +=
          stopped_and_ended(fmt::format("q{}", ++number), kRounded, before, after, at_step(victim, step))
              .at("resumed_blocks")
              .as_integer() > 0;
    }
  EXPECT_GT(resumed, 0) << "no run went on behind a block";
}

// Its shards lie on both nodes, and each needs what the other has to go on.
TEST_F(Places, CalibrationGoesOnWhereItsBlocksAre) {
  const struct {
    Nodes before, after;
    std::int64_t blocks;
  } cases[] = {{{0, 1}, {0, 1}, 1},
               {{0, 1}, {1, 0}, 1},
               {{0}, {1, 0}, 1},
               {{0, 1}, {0}, 0},
               {{0, 1, 1}, {2, 1, 0}, 1}};
  int number = 0;
  for (const auto& one : cases) {
    SCOPED_TRACE(fmt::format("{} then {}", text_of(one.before), text_of(one.after)));
    const Keys keys = calibrated(static_cast<int>(std::max<std::size_t>(2, one.before.size())));
    const Json end =
        stopped_and_ended(fmt::format("q{}", ++number), keys, one.before, one.after, behind_the_first_block);
    EXPECT_EQ(end.at("resumed_blocks"), Json(one.blocks));
  }
}

// Rank 0's node had the first shard, which is dense; all that was recorded is the other's, and it remembers.
TEST_F(Places, ANodeThatIsReplacedCostsItsOwnShards) {
  Keys keys = calibrated(2);
  keys.back() = "shard_bytes=1053500";
  const Json end = stopped_and_ended("q", keys, {0, 1}, {2, 1}, behind_the_first_block);
  EXPECT_EQ(end.at("resumed_blocks"), Json(1));
  EXPECT_TRUE(system_io().exists(output(2, "q") / "model-00002-of-00002.safetensors"));
}

// Rank 0 has some bytes of the others' shards, or all of them, and no name yet.
TEST_F(Places, GatheringThatIsStoppedGoesOn) {
  int number = 0;
  for (const auto& [after, writes] :
       std::vector<std::pair<Nodes, int>>{{{0, 1}, 1}, {{1, 0}, 3}, {{0}, 2}, {{2, 0}, 3}}) {
    SCOPED_TRACE(fmt::format("{} after {} writes", text_of(after), writes));
    bool gathers = false;
    int left = writes;
    const Json end = stopped_and_ended(
        fmt::format("q{}", ++number), calibrated(2), {0, 1}, after,
        at_call([&](const std::string& operation, const Path& path) {
          gathers = gathers || (operation == "open_to_write" && path.extension() == ".safetensors");
          return gathers && operation == "write" && left-- == 0;
        }));
    if (after.size() == 2 && after != Nodes{2, 0}) {
      EXPECT_EQ(end.at("resumed_blocks"), Json(2));
    }
  }
}

TEST_F(Places, RankZeroHasAllWhenTheOthersHaveNothing) {
  for (const Nodes& after : std::vector<Nodes>{{1, 0}, {0}}) {
    const std::string name = "q" + text_of(after);
    const Json end = stopped_and_ended(
        name, calibrated(2), {0, 1}, after, at_call([&](const std::string& operation, const Path& path) {
          const bool names = path == output(0, name) && operation == "rename";
          if (names) {
            EXPECT_THAT(names_on(1), ::testing::Not(::testing::Contains(name)));
            EXPECT_FALSE(system_io().exists(output(1, name + ".unfinished/files")));
          }
          return names;
        }));
    EXPECT_EQ(end.at("resumed_blocks"), Json(2));
  }
}

// Between its hashing and its sending the second node's disk loses a bit.
TEST_F(Places, AShardThatIsDamagedOnItsDiskIsNoticed) {
  RankWork asked = work("q", kRounded, {0, 1});
  std::map<Path, int> opened;
  WatchedIo io([&](const std::string& operation, const Path& path) {
    if (operation != "open" || path.extension() != ".safetensors" || ++opened[path] != 2) return;
    std::byte last{};
    const std::unique_ptr<File> file = system_io().open_to_write(path);
    file->read_at(file->size() - 1, {&last, 1});
    last ^= std::byte{1};
    file->write_at(file->size() - 1, {&last, 1});
  });
  asked.io = [&](int rank) -> Io& { return rank == 1 ? io : system_io(); };
  try {
    job_by_ranks(asked, 2);
    ADD_FAILURE() << "nothing was noticed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("model-00002-of-"), HasSubstr("came from rank 1 with SHA-256")));
  }
  EXPECT_FALSE(system_io().exists(output(0, "q")));
  EXPECT_EQ(run("q", kRounded, {0, 1}).at("digest").as_string(), whole(kRounded));
}

std::string refused(const RankWork& work, int ranks) {
  try {
    job_by_ranks(work, ranks);
  } catch (const RanksRefused& refusal) {
    return std::string(refusal.what()) + "; " + refusal.detail().hint;
  }
  return "it began";
}

TEST_F(Places, WhatIsInTheWayOnANodeIsSaidWithTheNode) {
  run("other", kRounded, {1});
  EXPECT_THAT(refused(work("other", kRounded, {0, 1}), 2),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("of 2 cannot begin"), HasSubstr("node1/other"),
                    HasSubstr("holds an earlier output of llmq")));
  WatchedIo full([](const std::string&, const Path&) {});
  full.leave_room(100);
  RankWork little = work("q", kRounded, {0, 1});
  little.io = [&](int rank) -> Io& { return rank == 1 ? full : system_io(); };
  EXPECT_THAT(refused(little, 2), AllOf(HasSubstr("rank 1 ("), HasSubstr("the output needs"),
                                        HasSubstr("the disk has 100 B free"), HasSubstr("node1/q")));
  RankWork stopped = work("q", calibrated(2), {0, 1});
  behind_the_first_block(stopped);
  EXPECT_THROW(job_by_ranks(stopped, 2), NodeStopped);
  EXPECT_THAT(
      refused(work("q", kRounded, {2, 1}), 2),
      AllOf(HasSubstr("rank 1 ("), HasSubstr("an interrupted run of another job left 1 finished block"),
            HasSubstr("--restart")));
  EXPECT_TRUE(names_on(2).empty());
}

}  // namespace
}  // namespace llmq
