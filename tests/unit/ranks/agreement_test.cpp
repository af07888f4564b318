// All begin, or one sentence says why not, on every rank alike.
#include "ranks/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>

#include "ranks/thread_ranks.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

struct Beginning {
  std::function<void(int rank)> prepare = [](int) {};
  std::function<std::vector<Fact>(int rank)> facts = [](int) { return std::vector<Fact>(); };
};

// What each rank was told, by rank; "begins" where nothing was.
std::vector<std::string> told(int size, const Beginning& beginning) {
  std::vector<std::string> words(static_cast<std::size_t>(size));
  run_as_ranks(size, [&](Ranks& ranks) {
    const int rank = ranks.rank();
    std::string& mine = words[static_cast<std::size_t>(rank)];
    try {
      begin_together(
          ranks, [&] { beginning.prepare(rank); }, [&] { return beginning.facts(rank); });
      mine = "begins";
    } catch (const RanksRefused& refused) {
      mine = std::string(kind_name(refused.kind())) + ": " + refused.what();
    }
  });
  return words;
}

std::vector<Fact> some_facts(const std::string& version, const std::string& model) {
  return {{"version", version, "start one program"}, {"model/config.json", model, "copy the model"}};
}

TEST(Agreement, EqualFactsBegin) {
  Beginning beginning;
  beginning.facts = [](int) { return some_facts("1", "abc"); };
  EXPECT_THAT(told(4, beginning), AllOf(SizeIs(4), Each("begins")));
}

TEST(Agreement, ADifferenceIsNamedOnEveryRankAlike) {
  Beginning beginning;
  beginning.facts = [](int rank) { return some_facts("1", rank == 2 ? "abd" : "abc"); };
  const std::vector<std::string> words = told(3, beginning);
  EXPECT_THAT(words, Each(words.front()));
  EXPECT_THAT(words.front(),
              AllOf(HasSubstr("bad input: "), HasSubstr("rank 2 ("), HasSubstr(") of 3 has another "),
                    HasSubstr("model/config.json than rank 0 ("), HasSubstr("abd, and not abc"),
                    HasSubstr("copy the model")));
}

// The first of the list, for a program of another version may know other facts.
TEST(Agreement, TheFirstDifferenceIsTold) {
  Beginning beginning;
  beginning.facts = [](int rank) {
    std::vector<Fact> facts = some_facts(rank == 0 ? "1" : "2", "abc");
    if (rank == 1) facts.pop_back();
    return facts;
  };
  EXPECT_THAT(told(2, beginning).front(), HasSubstr("another version than rank 0"));
  beginning.facts = [](int rank) {
    std::vector<Fact> facts = some_facts("1", "abc");
    if (rank == 1) facts.pop_back();
    return facts;
  };
  EXPECT_THAT(told(2, beginning).front(), HasSubstr("nothing of this name, and not abc"));
}

TEST(Agreement, AFactMoreIsADifference) {
  Beginning beginning;
  const auto more_of = [&](int which, bool last) {
    beginning.facts = [=](int rank) {
      std::vector<Fact> facts = some_facts("1", "abc");
      if (rank == which)
        facts.insert(last ? facts.end() : facts.begin() + 1, {"added.json", "def", "leave it out"});
      return facts;
    };
    return told(3, beginning);
  };
  for (const bool last : {true, false}) {
    EXPECT_THAT(more_of(1, last),
                Each(AllOf(HasSubstr("rank 1 ("), HasSubstr("another added.json than rank 0"),
                           HasSubstr("def, and not nothing of this name; leave it out"))));
    EXPECT_THAT(more_of(0, last),
                Each(AllOf(HasSubstr("rank 1 ("), HasSubstr("another added.json than rank 0"),
                           HasSubstr("nothing of this name, and not def; leave it out"))));
  }
}

TEST(Agreement, AnErrorOfOneIsToldWithItsRank) {
  Beginning beginning;
  beginning.prepare = [](int rank) {
    if (rank > 0) fail(ErrorKind::kIo, {"no such file", "/data/model", "config.json", "copy it there"});
  };
  const std::vector<std::string> words = told(3, beginning);
  EXPECT_THAT(words, Each(words.front()));
  EXPECT_THAT(words.front(),
              AllOf(HasSubstr("i/o: /data/model: config.json: ranks 1 ("), HasSubstr(" and 2 ("),
                    HasSubstr(") of 3 cannot begin: no such file; copy it there")));
}

// Not only ours: no memory, a file system that fails.
TEST(Agreement, AnErrorOfTheStandardLibraryIsOneOfItsRank) {
  Beginning beginning;
  beginning.prepare = [](int rank) {
    if (rank == 1) throw std::bad_alloc();
  };
  EXPECT_THAT(told(3, beginning),
              Each(AllOf(HasSubstr("resource: "), HasSubstr("rank 1 ("),
                         HasSubstr(") of 3 cannot begin: out of memory; lower --threads"))));
  beginning.prepare = [](int rank) {
    if (rank == 2) throw std::filesystem::filesystem_error("cannot stat", std::error_code());
  };
  EXPECT_THAT(told(3, beginning), Each(AllOf(HasSubstr("internal: "), HasSubstr("rank 2 ("),
                                             HasSubstr(") of 3 cannot begin: "), HasSubstr("cannot stat"))));
  beginning.prepare = [](int) { throw std::out_of_range("at 7"); };
  EXPECT_THAT(told(2, beginning), Each(HasSubstr("internal: at 7; this is a defect")));
}

// A signal is no reason not to begin: whoever catches it ends the job.
TEST(Agreement, WhatIsNoErrorPasses) {
  struct Signal : std::exception {};
  bool passed = false;
  EXPECT_ANY_THROW(run_as_ranks(2, [&](Ranks& ranks) {
    try {
      begin_together(
          ranks,
          [&] {
            if (ranks.rank() == 1) throw Signal();
          },
          [] { return std::vector<Fact>(); });
    } catch (const Signal&) {
      passed = true;
      throw;
    }
  }));
  EXPECT_TRUE(passed);
}

TEST(Agreement, AnErrorOfAllIsToldAsItIs) {
  Beginning beginning;
  beginning.prepare = [](int) { fail(ErrorKind::kUsage, {"no such model", "x", {}, "name one"}); };
  EXPECT_THAT(told(3, beginning), Each("usage: x: no such model; name one"));
}

// An error in finding a fact out is one of preparing; differences are told only where nobody failed.
TEST(Agreement, AnErrorOfFactsComesBeforeADifference) {
  Beginning beginning;
  beginning.facts = [](int rank) -> std::vector<Fact> {
    if (rank == 1) fail(ErrorKind::kIo, {"cannot be read", "w", {}, {}});
    return some_facts(rank == 0 ? "1" : "2", "abc");
  };
  EXPECT_THAT(told(3, beginning).front(),
              AllOf(HasSubstr("cannot begin: cannot be read"), Not(HasSubstr("version"))));
}

TEST(Agreement, OneAloneIsAskedForNoFacts) {
  OneRank one;
  bool prepared = false;
  begin_together(
      one, [&] { prepared = true; },
      []() -> std::vector<Fact> {
        ADD_FAILURE() << "hashing a model takes minutes";
        return {};
      });
  EXPECT_TRUE(prepared);
  EXPECT_THROW(begin_together(
                   one, [] { fail(ErrorKind::kIo, "gone"); }, [] { return std::vector<Fact>(); }),
               Error);
}

}  // namespace
}  // namespace llmq
