// Where shards are written when ranks do not all see one directory, and how they come to rank 0.
#include "export/output/shard_gathering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/sha256.h"
#include "export/output/output_places.h"
#include "io/digest_cache.h"
#include "ranks/thread_ranks.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ranks between which a bit is lost: of the longest message that rank 0 gathers, or that others are sent.
class LossyRanks final : public Ranks {
 public:
  explicit LossyRanks(Ranks& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void sum_to(int owner, std::span<std::int64_t> values) override { inner_.sum_to(owner, values); }
  void broadcast(int from, std::span<std::byte> bytes) override {
    inner_.broadcast(from, bytes);
    if (rank() != from && bytes.size() > 1000) bytes[bytes.size() - 1] ^= std::byte{1};
  }
  std::vector<RankBytes> gather(int owner, std::span<const std::byte> bytes) override {
    std::vector<RankBytes> all = inner_.gather(owner, bytes);
    for (RankBytes& given : all)
      if (given.size() > 1000) given[given.size() / 2] ^= std::byte{1};
    return all;
  }
  void barrier() override { inner_.barrier(); }

 private:
  Ranks& inner_;
};

std::string some_text(std::size_t bytes) {
  std::string text(bytes, 'a');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>('a' + i * i % 23);
  return text;
}

std::string caught(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return std::string(error.what()) + "; " + error.detail().hint;
  }
  return "nothing was noticed";
}

// The file of rank 2 of three, each with a directory of its own; more than one piece, and an odd rest.
class ShardGathering : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = (4u << 20) + 4711;

  ShardGathering() : text_(some_text(kBytes)) {
    for (const char* name : {"0/shard", "1/shard"}) scratch_.write(name, std::string(kBytes, '\0'));
    scratch_.write("2/shard", text_);
  }
  Path file_of(const Ranks& ranks) const { return scratch_ / std::to_string(ranks.rank()) / "shard"; }
  std::string digest() const { return sha256_hex(std::as_bytes(std::span(text_))); }

  TemporaryDirectory scratch_;
  std::string text_;
};

TEST_F(ShardGathering, BringsTheBytesToRank0) {
  run_as_ranks(3, [&](Ranks& ranks) {
    gather_file(ranks, system_io(), 2, file_of(ranks), ranks.rank() == 0 ? digest() : "");
  });
  EXPECT_TRUE(scratch_.read("0/shard") == text_);
  EXPECT_TRUE(scratch_.read("1/shard") == std::string(kBytes, '\0'));
}

TEST_F(ShardGathering, SpreadsThemToWhoeverTakesThem) {
  run_as_ranks(3,
               [&](Ranks& ranks) { spread_file(ranks, system_io(), 2, file_of(ranks), ranks.rank() == 1); });
  EXPECT_TRUE(scratch_.read("1/shard") == text_);
  EXPECT_TRUE(scratch_.read("0/shard") == std::string(kBytes, '\0'));
}

TEST_F(ShardGathering, NoticesABitThatIsLostOnTheWay) {
  EXPECT_THAT(caught([&] {
                run_as_ranks(3, [&](Ranks& ranks) {
                  LossyRanks lossy(ranks);
                  gather_file(lossy, system_io(), 2, file_of(ranks), ranks.rank() == 0 ? digest() : "");
                });
              }),
              AllOf(HasSubstr("0/shard"), HasSubstr("came from rank 2 with SHA-256"), HasSubstr(digest()),
                    HasSubstr("the same command goes on")));
  EXPECT_THAT(caught([&] {
                run_as_ranks(3, [&](Ranks& ranks) {
                  LossyRanks lossy(ranks);
                  spread_file(lossy, system_io(), 2, file_of(ranks), ranks.rank() == 1);
                });
              }),
              AllOf(HasSubstr("1/shard"), HasSubstr("came from rank 2 with SHA-256"), HasSubstr(digest())));
}

TEST_F(ShardGathering, NoticesAFileOfAnotherSize) {
  scratch_.write("0/shard", "short");
  EXPECT_THAT(caught([&] {
                run_as_ranks(3, [&](Ranks& ranks) {
                  gather_file(ranks, system_io(), 2, file_of(ranks), ranks.rank() == 0 ? digest() : "");
                });
              }),
              AllOf(HasSubstr("0/shard"), HasSubstr("has 5 bytes")));
}

// Ranks 0 and 2 see one directory, rank 1 another.
OutputPlaces two_places() { return {{0, 1, 0}, {0, 1}, {}}; }

// By rank what each found of `held` (place, shard).
std::vector<int> dealt(const std::vector<std::vector<std::int64_t>>& held_of_rank, std::size_t shards) {
  std::vector<int> owners;
  run_as_ranks(3, [&](Ranks& ranks) {
    const std::vector<int> mine =
        deal_shards(ranks, two_places(), shards, held_of_rank[static_cast<std::size_t>(ranks.rank())]);
    if (ranks.rank() == 0) owners = mine;
    if (ranks.rank() == 1) ranks.gather(0, std::as_bytes(std::span(mine)));
    if (ranks.rank() != 1) {
      const auto other = ranks.gather(0, {});
      if (ranks.rank() == 0) {
        EXPECT_EQ(other[1].size(), mine.size() * sizeof(int));
        EXPECT_EQ(std::memcmp(other[1].data(), mine.data(), other[1].size()), 0) << "all deal alike";
      }
    }
  });
  return owners;
}

TEST(OutputPlaces, AShardIsThatOfTheRankOfItsNumber) {
  EXPECT_THAT(dealt({{}, {}, {}}, 5), ElementsAre(0, 1, 2, 0, 1));
}

// Shard 0: rank 1's place has more. 1: place 0 has, and rank 1 does not see it, so those that do take turns.
// 2, 3: both have as many, so the number decides. 4: nobody has any.
TEST(OutputPlaces, AShardGoesOnWhereMostOfItIs) {
  EXPECT_THAT(dealt({{1, 0, 0, 7, 0}, {2, 0, 4, 7, 0}, {0, 3, 4, 0, 0}}, 5), ElementsAre(1, 2, 2, 0, 1));
}

TEST(OutputPlaces, RecordsAreThoseOfThePlaceThatHasMost) {
  run_as_ranks(3, [](Ranks& ranks) {
    const std::vector<Json> own = ranks.rank() == 1   ? std::vector<Json>{Json(5), Json(6)}
                                  : ranks.rank() == 0 ? std::vector<Json>{Json(5)}
                                                      : std::vector<Json>{};
    EXPECT_EQ(longest_records(ranks, two_places(), own), (std::vector<Json>{Json(5), Json(6)}));
  });
}

}  // namespace
}  // namespace llmq::testing
