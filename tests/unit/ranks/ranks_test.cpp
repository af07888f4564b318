// The six verbs by their definitions, of one rank and of threads: any owner, lengths that are odd or nothing,
// and what happens where a rank fails or does something else.
#include "ranks/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <limits>

#include "base/error.h"
#include "ranks/thread_ranks.h"
#include "unit/ranks/stand_in_mpi.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankBytes text_bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return RankBytes(bytes.begin(), bytes.end());
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// A body of the interface, and how many ranks of it.
struct Body {
  const char* name;
  void (*run)(int size, const std::function<void(Ranks&)>& work);
  int size;
};

class ManyRanks : public ::testing::TestWithParam<Body> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(Ranks&)>& work) const { GetParam().run(size(), work); }
};

TEST_P(ManyRanks, EachHasItsNumber) {
  std::vector<std::atomic<int>> seen(static_cast<std::size_t>(size()));
  run([&](Ranks& ranks) {
    EXPECT_EQ(ranks.size(), size());
    ++seen[static_cast<std::size_t>(ranks.rank())];
  });
  for (const std::atomic<int>& times : seen) EXPECT_EQ(times, 1);
}

TEST_P(ManyRanks, SumsGoToTheirOwnerAndWrapAround) {
  run([&](Ranks& ranks) {
    for (int owner = 0; owner < size(); ++owner) {
      const std::int64_t most = std::numeric_limits<std::int64_t>::max();
      std::vector<std::int64_t> values = {ranks.rank(), -5, most, 0};
      ranks.sum_to(owner, values);
      if (ranks.rank() != owner)
        EXPECT_THAT(values, ElementsAre(ranks.rank(), -5, most, 0)) << "of a rank that does not own it";
      else
        EXPECT_THAT(values, ElementsAre(size() * (size() - 1) / 2, -5 * size(),
                                        static_cast<std::int64_t>(static_cast<std::uint64_t>(most) *
                                                                  static_cast<std::uint64_t>(size())),
                                        0));
    }
    ranks.sum_to(0, {});
  });
}

TEST_P(ManyRanks, OneSaysAndAllHear) {
  run([&](Ranks& ranks) {
    for (int from = 0; from < ranks.size(); ++from) {
      std::array<std::int32_t, 3> numbers = {ranks.rank(), 10 * ranks.rank(), -1};
      ranks.broadcast(from, std::as_writable_bytes(std::span(numbers)));
      EXPECT_THAT(numbers, ElementsAre(from, 10 * from, -1));
    }
    EXPECT_EQ(broadcast_text(ranks, ranks.size() - 1, "of rank " + std::to_string(ranks.rank())),
              "of rank " + std::to_string(ranks.size() - 1));
    EXPECT_EQ(broadcast_text(ranks, 0, ranks.rank() == 0 ? "" : "longer"), "");
  });
}

TEST_P(ManyRanks, TheOwnerHasEachRanksBytesInTheirOrder) {
  run([&](Ranks& ranks) {
    for (int owner = 0; owner < ranks.size(); ++owner) {
      const std::string mine(static_cast<std::size_t>(3 * ranks.rank()), static_cast<char>('a' + owner));
      const std::vector<RankBytes> all = ranks.gather(owner, std::as_bytes(std::span(mine)));
      if (ranks.rank() != owner) {
        EXPECT_TRUE(all.empty());
        continue;
      }
      ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks.size()));
      for (std::size_t r = 0; r < all.size(); ++r)
        EXPECT_EQ(all[r], text_bytes(std::string(3 * r, static_cast<char>('a' + owner))));
    }
  });
}

TEST_P(ManyRanks, TheMostIsKnownToAllAndListsComeToTheFirst) {
  run([&](Ranks& ranks) {
    EXPECT_EQ(most_of(ranks, 5 - ranks.rank()), 5);
    EXPECT_EQ(most_of(ranks, -ranks.rank()), 0);
    EXPECT_EQ(most_of(ranks, ranks.rank()), ranks.size() - 1);
    Json mine = Json::array();
    for (int i = 0; i < ranks.rank(); ++i) mine.push_back(Json::array({ranks.rank(), i}));
    const std::vector<Json> all = gathered_items(ranks, mine);
    if (ranks.rank() != 0) {
      EXPECT_TRUE(all.empty());
      return;
    }
    std::vector<Json> wanted;
    for (int rank = 0; rank < ranks.size(); ++rank)
      for (int i = 0; i < rank; ++i) wanted.push_back(Json::array({rank, i}));
    EXPECT_EQ(all, wanted);
  });
}

TEST_P(ManyRanks, NobodyLeavesABarrierBeforeAllAreThere) {
  std::atomic<int> here = 0;
  run([&](Ranks& ranks) {
    for (int round = 1; round <= 50; ++round) {
      ++here;
      ranks.barrier();
      EXPECT_EQ(here, round * ranks.size());
      ranks.barrier();
    }
  });
}

TEST_P(ManyRanks, AnErrorOfOneEndsAll) {
  const int last = size() - 1;
  EXPECT_THAT(error_of([&] {
                run([&](Ranks& ranks) {
                  ranks.barrier();
                  if (ranks.rank() == last) fail(ErrorKind::kIo, "the disk of rank {}", last);
                  ranks.barrier();
                });
              }),
              HasSubstr("the disk of rank " + std::to_string(last)));
}

// The table's calls get 10 bytes at most: one number of eight, and no text of the tests in one piece.
void run_over_the_table(int size, const std::function<void(Ranks&)>& work) {
  testing::run_over_stand_in(size, 10, [&](MpiRanks& ranks) { work(ranks); });
}

INSTANTIATE_TEST_SUITE_P(Bodies, ManyRanks,
                         ::testing::Values(Body{"threads", run_as_ranks, 1}, Body{"threads", run_as_ranks, 2},
                                           Body{"threads", run_as_ranks, 3}, Body{"threads", run_as_ranks, 8},
                                           Body{"table", run_over_the_table, 1},
                                           Body{"table", run_over_the_table, 3},
                                           Body{"table", run_over_the_table, 8}),
                         [](const auto& body) {
                           return fmt::format("{}_{}", body.param.name, body.param.size);
                         });

TEST(Ranks, ThreadsNoticeWhoDoesSomethingElse) {
  EXPECT_THAT(error_of([] {
                run_as_ranks(3, [](Ranks& ranks) {
                  std::array<std::byte, 4> bytes = {};
                  ranks.broadcast(0, std::span(bytes).first(ranks.rank() == 2 ? 3 : 4));
                });
              }),
              HasSubstr("broadcast(0) of 4 bytes and broadcast(0) of 3 bytes"));
  EXPECT_THAT(error_of([] {
                run_as_ranks(2, [](Ranks& ranks) {
                  if (ranks.rank() == 1) return;
                  ranks.barrier();
                });
              }),
              HasSubstr("one has ended"));
}

// A journal may be larger than what is read of strangers.
TEST(Ranks, ADocumentHasAnySize) {
  const std::size_t size = JsonLimits().max_bytes + 1;
  run_as_ranks(2, [&](Ranks& ranks) {
    const Json own = ranks.rank() == 1 ? Json(std::string(size, 'x')) : Json();
    EXPECT_EQ(broadcast_json(ranks, 1, own).as_string().size(), size);
  });
}

TEST(Ranks, OneAloneHasItsOwn) {
  OneRank one;
  EXPECT_EQ(one.rank(), 0);
  EXPECT_EQ(one.size(), 1);
  std::array<std::int64_t, 2> values = {7, -8};
  one.sum_to(0, values);
  one.broadcast(0, std::as_writable_bytes(std::span(values)));
  one.barrier();
  EXPECT_THAT(values, ElementsAre(7, -8));
  const std::string mine = "bytes";
  EXPECT_THAT(one.gather(0, std::as_bytes(std::span(mine))), ElementsAre(text_bytes(mine)));
  EXPECT_EQ(broadcast_text(one, 0, mine), mine);
}

}  // namespace
}  // namespace llmq
