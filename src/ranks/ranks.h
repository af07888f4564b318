// Processes that share one job: how many there are, and how bytes get from one to another
// (docs/adr/0030-ranks.md).
//
// Every verb is of all ranks: each calls the same verbs in the same order, and none returns before the bytes
// that it needs are there. What arrives depends on what the ranks gave and never on who was late. An error of
// one rank ends the waiting of the others.
//
// Bodies: one process (here), threads of one process (thread_ranks.h), MPI (mpi_ranks.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq {

using RankBytes = std::vector<std::byte>;

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;  // 0 .. size() - 1
  virtual int size() const = 0;
  // values[i] of all ranks, added up at `owner` modulo 2^64, so that no order is to be seen in it; those of
  // the others stay. As many on every rank.
  virtual void sum_to(int owner, std::span<std::int64_t> values) = 0;
  // The bytes of rank `from`, on every rank. As many on every rank.
  virtual void broadcast(int from, std::span<std::byte> bytes) = 0;
  // At `owner` what each rank gave, by rank; elsewhere nothing. Any number of bytes on any rank.
  virtual std::vector<RankBytes> gather(int owner, std::span<const std::byte> bytes) = 0;
  virtual void barrier() = 0;
  // Bytes of this rank's messages so far: each counts once, where a sum or a gathering takes it from and
  // where a broadcast brings it to. Added up over the ranks: what the network carried, but for lengths.
  std::uint64_t traffic() const { return traffic_; }
  // How much of this process's memory was taken when the ranks were joined, measured; 0 of ranks without a
  // library of their own.
  virtual std::uint64_t joining_bytes() const { return 0; }

 protected:
  void count(std::size_t bytes) { traffic_ += bytes; }

 private:
  std::uint64_t traffic_ = 0;
};

// This process alone: nothing is waited for, and nothing is copied but what gather() returns.
class OneRank final : public Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void sum_to(int, std::span<std::int64_t>) override {}
  void broadcast(int, std::span<std::byte>) override {}
  std::vector<RankBytes> gather(int, std::span<const std::byte> bytes) override {
    return {RankBytes(bytes.begin(), bytes.end())};
  }
  void barrier() override {}
};

// This process alone, and it for who is given nobody to share with.
Ranks& alone();
inline Ranks& or_alone(Ranks* given) { return given == nullptr ? alone() : *given; }

// The text or document of rank `from`, on every rank, whatever the others give.
std::string broadcast_text(Ranks& ranks, int from, std::string_view text);
Json broadcast_json(Ranks& ranks, int from, const Json& document);
// The list of each rank, by rank, at rank 0; elsewhere nothing. And the items of all of them, rank by rank.
std::vector<std::vector<Json>> gathered_lists(Ranks& ranks, const Json& list);
std::vector<Json> gathered_items(Ranks& ranks, const Json& list);
// What each rank gives, by rank, on every rank. And the largest of it.
std::vector<std::int64_t> given_by_all(Ranks& ranks, std::int64_t own);
std::int64_t most_of(Ranks& ranks, std::int64_t own);

}  // namespace llmq
