#include "ranks/ranks.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

namespace llmq {
namespace {

// What a rank of this job made: as large as what it tells of.
Json of_a_rank(std::string_view text) {
  return Json::parse(text, "a rank", {.max_bytes = std::numeric_limits<std::size_t>::max()});
}

}  // namespace

Ranks& alone() {
  static OneRank one;
  return one;
}

std::string broadcast_text(Ranks& ranks, int from, std::string_view text) {
  std::uint64_t size = text.size();
  ranks.broadcast(from, std::as_writable_bytes(std::span(&size, 1)));
  std::string said(ranks.rank() == from ? text : std::string_view());
  said.resize(size);
  ranks.broadcast(from, std::as_writable_bytes(std::span(said)));
  return said;
}

Json broadcast_json(Ranks& ranks, int from, const Json& document) {
  return of_a_rank(broadcast_text(ranks, from, ranks.rank() == from ? document.dump() : std::string()));
}

std::vector<std::vector<Json>> gathered_lists(Ranks& ranks, const Json& list) {
  const std::string own = list.dump();
  std::vector<std::vector<Json>> all;
  for (const RankBytes& bytes : ranks.gather(0, std::as_bytes(std::span(own))))
    all.push_back(of_a_rank({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).items());
  return all;
}

std::vector<Json> gathered_items(Ranks& ranks, const Json& list) {
  std::vector<Json> all;
  for (std::vector<Json>& theirs : gathered_lists(ranks, list))
    std::move(theirs.begin(), theirs.end(), std::back_inserter(all));
  return all;
}

std::vector<std::int64_t> given_by_all(Ranks& ranks, std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks.size()));
  const std::vector<RankBytes> given = ranks.gather(0, std::as_bytes(std::span(&own, 1)));
  for (std::size_t rank = 0; rank < given.size(); ++rank)
    std::memcpy(&all[rank], given[rank].data(), sizeof own);
  ranks.broadcast(0, std::as_writable_bytes(std::span(all)));
  return all;
}

std::int64_t most_of(Ranks& ranks, std::int64_t own) {
  const std::vector<std::int64_t> all = given_by_all(ranks, own);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace llmq
