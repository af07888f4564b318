// Where ranks write an output: one directory that all see, or directories of each node's own.
//
// A place is a directory in the making with the ranks that see it. The lowest of them leads it: it holds lock
// and journal there, and lays out its files. Place 0 is rank 0's, and the only one that is given the output's
// name. Who sees what is found out by files of new names (UnfinishedOutput::lay_probe()), one for each place.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "export/output/unfinished_output.h"

namespace llmq {

struct OutputPlaces {
  std::vector<int> of_rank;             // the place of each rank
  std::vector<int> leads;               // the rank that leads each place, ascending
  std::vector<std::string> lead_texts;  // "rank 2 (node7) of 3", by place, at rank 0 of several places

  std::size_t count() const { return leads.size(); }
  int of(int rank) const { return of_rank[static_cast<std::size_t>(rank)]; }
  // The rank that writes a shard where it is written in that place: rank `shard` mod N where it sees the
  // place, else those that do, in turn.
  int dealt_to(int place, std::size_t shard) const;
};

// Of all ranks. `own`: the directory in the making, at ranks that lead a place; its errors are RanksRefused
// on all ranks. The probe of the last place is still there. Cost: four small messages of each rank a place.
OutputPlaces find_places(Io& io, const OutputTarget& target, std::optional<UnfinishedOutput>& own);

// The blocks that an interrupted run recorded, on every rank: those of the place that has most of them.
// `own`: the records of this rank's place, at its lead.
std::vector<Json> longest_records(Ranks& ranks, const OutputPlaces& places, std::vector<Json> own);

// The rank that writes each shard: of the place that holds most of its recorded tensors; where several do, of
// that of rank `shard` mod N, or else of the first. `held`: how many of a shard's recorded tensors this
// rank's place holds, by shard, as far as this rank has looked. Of all ranks; of one place, or where nothing
// was recorded (`held` is empty), without a message.
std::vector<int> deal_shards(Ranks& ranks, const OutputPlaces& places, std::size_t shards,
                             std::span<const std::int64_t> held);

}  // namespace llmq
