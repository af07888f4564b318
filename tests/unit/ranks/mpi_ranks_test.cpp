// What MpiRanks makes of a plug-in: spans in pieces, MPI's words, waiting that ends, files that are none.
// The verbs themselves are ranks_test.cpp's.
#include "ranks/mpi_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/error.h"
#include "unit/ranks/stand_in_mpi.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Work>
std::string words_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MpiRanks, NoCallGetsMoreThanAPiece) {
  EXPECT_LT(MpiRanks::kMost, std::size_t{1} << 31) << "MPI counts in int";
  for (const std::size_t most : {8u, 24u, 1000u}) {
    testing::run_over_stand_in(3, most, [&](MpiRanks& ranks) {
      std::vector<std::int64_t> numbers(100, ranks.rank());
      ranks.sum_to(1, numbers);
      EXPECT_EQ(numbers, std::vector<std::int64_t>(100, ranks.rank() == 1 ? 3 : ranks.rank()));
      RankBytes bytes(555, std::byte{static_cast<unsigned char>(ranks.rank())});
      ranks.broadcast(2, bytes);
      EXPECT_EQ(bytes, RankBytes(555, std::byte{2}));
      const auto all = ranks.gather(0, std::span(bytes).first(static_cast<std::size_t>(ranks.rank()) * 200));
      if (ranks.rank() != 0) return;
      EXPECT_THAT(all, ElementsAre(RankBytes(), RankBytes(200, std::byte{2}), RankBytes(400, std::byte{2})));
    });
    EXPECT_EQ(testing::StandInMpi::get().most(), std::min<std::size_t>(most, 800));
  }
}

TEST(MpiRanks, SaysWhatMpiSays) {
  EXPECT_EQ(library_text(testing::stand_in_table()), "Stand-in MPI v1.2");
  LlmqMpiTable tabbed = testing::stand_in_table();
  tabbed.library = [] { return "MPICH Version:\t4.0.2\nMPICH Release date:\t2022"; };
  EXPECT_EQ(library_text(tabbed), "MPICH Version: 4.0.2");
  testing::run_over_stand_in(1, 8, [](MpiRanks&) {
    LlmqMpiTable broken = testing::stand_in_table();
    broken.barrier = [] { return kMpiFailed; };
    MpiRanks other(broken, [] {});
    EXPECT_THAT(words_of([&] { other.barrier(); }), HasSubstr("rank 0 of 1: the wire was cut"));
  });
}

TEST(MpiRanks, CountsWhatJoiningTook) {
  testing::run_over_stand_in(1, 8, [](MpiRanks& ranks) {
    EXPECT_EQ(ranks.joining_bytes(), 0u) << "before it was counted";
    ranks.count_joining(0);
    const std::uint64_t all = ranks.joining_bytes();
    EXPECT_GT(all, 0u);
    ranks.count_joining(all / 2);
    EXPECT_GE(ranks.joining_bytes(), all / 4);
    EXPECT_LT(ranks.joining_bytes(), all);
    ranks.count_joining(UINT64_MAX);
    EXPECT_EQ(ranks.joining_bytes(), 0u) << "a process that has become smaller";
  });
}

struct Signal {};

TEST(MpiRanks, WaitingEndsWithWhatTheCallerThrows) {
  static int (*ask)(void*);
  static void* context;
  LlmqMpiTable table = testing::stand_in_table();
  table.begin = [](int (*given)(void*), void* with, int*, int*) {
    ask = given;
    context = with;
    return kMpiDone;
  };
  table.barrier = [] {
    while (ask(context) == 0) continue;
    return kMpiStopped;
  };
  int asked = 0;
  MpiRanks ranks(table, [&] {
    if (++asked == 3) throw Signal{};
  });
  EXPECT_THROW(ranks.barrier(), Signal) << "and not an Error of MPI's";
  EXPECT_EQ(asked, 3);
}

TEST(MpiPlugin, LiesBesideTheProgramsFolderOrWhereItIsNamed) {
  unsetenv("LLMQ_MPI_PLUGIN");
  EXPECT_THAT(plugin_places("/opt/llmq/bin/llmq"), ElementsAre("/opt/llmq/lib/llmq/libllmq_mpi.so"));
  setenv("LLMQ_MPI_PLUGIN", "/site/libllmq_mpi.so", 1);
  EXPECT_THAT(plugin_places("/opt/llmq/bin/llmq"), ElementsAre("/site/libllmq_mpi.so"));
  setenv("LLMQ_MPI_PLUGIN", "", 1);
  EXPECT_THAT(plugin_places("/a/b/c"), ElementsAre("/a/lib/llmq/libllmq_mpi.so"));
  unsetenv("LLMQ_MPI_PLUGIN");
}

TEST(MpiPlugin, AnotherFileIsNone) {
  const MpiPlugin none = open_mpi_plugin({"/nowhere/libllmq_mpi.so"});
  EXPECT_EQ(none.table, nullptr);
  EXPECT_THAT(none.missing, HasSubstr("/nowhere/libllmq_mpi.so"));
  EXPECT_THAT(words_of([] { open_mpi_plugin({"libm.so.6"}); }), HasSubstr("it has no llmq_mpi_table"));
  LlmqMpiTable older = testing::stand_in_table();
  EXPECT_EQ(taken_plugin(older, "x").table, &older);
  older.version = 7;
  EXPECT_THAT(words_of([&] { taken_plugin(older, "/x/libllmq_mpi.so"); }),
              AllOf(HasSubstr("/x/libllmq_mpi.so"), HasSubstr("version 7, and this program takes 1")));
}

}  // namespace
}  // namespace llmq
