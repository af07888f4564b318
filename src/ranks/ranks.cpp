#include "ranks/ranks.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace llmq {

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

std::vector<std::vector<Json>> gathered_lists(Ranks& ranks, const Json& list) {
  const std::string own = list.dump();
  std::vector<std::vector<Json>> all;
  for (const RankBytes& bytes : ranks.gather(0, std::as_bytes(std::span(own))))
    all.push_back(Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "a rank").items());
  return all;
}

std::vector<Json> gathered_items(Ranks& ranks, const Json& list) {
  std::vector<Json> all;
  for (std::vector<Json>& theirs : gathered_lists(ranks, list))
    std::move(theirs.begin(), theirs.end(), std::back_inserter(all));
  return all;
}

std::int64_t most_of(Ranks& ranks, std::int64_t own) {
  std::int64_t most = own;
  for (const RankBytes& bytes : ranks.gather(0, std::as_bytes(std::span(&own, 1)))) {
    std::int64_t theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    most = std::max(most, theirs);
  }
  ranks.broadcast(0, std::as_writable_bytes(std::span(&most, 1)));
  return most;
}

}  // namespace llmq
