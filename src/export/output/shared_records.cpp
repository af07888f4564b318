#include "export/output/shared_records.h"

#include <algorithm>
#include <utility>

namespace llmq {

void SharedRecords::add(Json record) {
  const std::lock_guard lock(mutex_);
  own_.push_back(std::move(record));
}

// Every rank has a part of it: all their tensors. What they found is the same.
Json SharedRecords::take_block() {
  Json tensors = Json::object();
  for (const std::deque<Json>& parts : waiting_)
    for (const auto& [name, sha256] : parts.front().at("tensors").members())
      tensors.members().emplace_back(name, sha256);
  Json block =
      Json::object({{"tensors", std::move(tensors)}, {"findings", waiting_[0].front().at("findings")}});
  for (std::deque<Json>& parts : waiting_) parts.pop_front();
  return block;
}

std::vector<Json> SharedRecords::take(Committed what) {
  Json own = Json::array();
  {
    const std::lock_guard lock(mutex_);
    std::swap(own, own_);
  }
  if (what == Committed::kParts) return gathered_items(ranks_, own);
  const std::vector<std::vector<Json>> all = gathered_lists(ranks_, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    waiting_[rank].insert(waiting_[rank].end(), all[rank].begin(), all[rank].end());
  std::vector<Json> blocks;
  while (std::none_of(waiting_.begin(), waiting_.end(), [](const auto& parts) { return parts.empty(); }))
    blocks.push_back(take_block());
  return blocks;
}

}  // namespace llmq
