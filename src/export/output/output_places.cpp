#include "export/output/output_places.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/parent_path.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

constexpr std::chrono::seconds kPatience{70};  // NFS remembers for 60 at most, unless it is told to
constexpr std::chrono::milliseconds kPause{50};

// Whether it is there by now. A network's file system may remember that a name which another machine made
// since was not there. To open the directory above is what makes NFS ask again; for others the name is in the
// list until it is forgotten that it was not.
bool is_seen(Io& io, const Path& path) {
  if (io.exists(path)) return true;
  const Path above = parent_of(path);
  if (above == path || !is_seen(io, above) || !io.is_directory(above)) return false;
  try {
    const std::vector<std::string> names = io.list(above);
    if (!std::binary_search(names.begin(), names.end(), path.filename().string())) return false;
  } catch (const Error&) {  // it may be entered and written to, and not be listed
    return false;
  }
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!io.exists(path) && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kPause);
  return io.exists(path);
}

}  // namespace

int OutputPlaces::dealt_to(int place, std::size_t shard) const {
  const std::size_t rank = shard % of_rank.size();
  if (of_rank[rank] == place) return static_cast<int>(rank);
  std::vector<int> members;
  for (int other = 0; other < static_cast<int>(of_rank.size()); ++other)
    if (of(other) == place) members.push_back(other);
  return members[shard % members.size()];
}

OutputPlaces find_places(Io& io, const OutputTarget& target, std::optional<UnfinishedOutput>& own) {
  Ranks& ranks = ranks_of(target);
  OutputPlaces places;
  std::int64_t place = -1;
  std::vector<std::int64_t> all;
  for (int lead = 0; lead < ranks.size();) {
    const bool leads = ranks.rank() == lead;
    std::string probe;
    begin_together(ranks, [&] {
      if (own) own->remove_probe();
      if (!leads) return;
      own.emplace(io, target);
      if (ranks.size() > 1) probe = own->lay_probe();
    });
    probe = ranks.size() > 1 ? broadcast_text(ranks, lead, probe) : probe;
    begin_together(ranks, [&] {
      if (leads || (place < 0 && is_seen(io, probe_place(target, probe))))
        place = static_cast<std::int64_t>(places.count());
    });
    places.leads.push_back(lead);
    all = ranks.size() > 1 ? given_by_all(ranks, place) : std::vector<std::int64_t>{0};
    lead = static_cast<int>(std::find(all.begin(), all.end(), -1) - all.begin());
  }
  places.of_rank.assign(all.begin(), all.end());
  if (places.count() > 1)
    for (const Json& text :
         gathered_items(ranks, own ? Json(Json::Array{own_rank_text(ranks)}) : Json::array()))
      places.lead_texts.push_back(text.as_string());
  return places;
}

std::vector<Json> longest_records(Ranks& ranks, const OutputPlaces& places, std::vector<Json> own) {
  if (ranks.size() == 1) return own;
  int from = 0;
  if (places.count() > 1) {
    const std::vector<std::int64_t> counts = given_by_all(ranks, static_cast<std::int64_t>(own.size()));
    from = static_cast<int>(std::max_element(counts.begin(), counts.end()) - counts.begin());
  }
  return broadcast_json(ranks, from, Json(Json::Array(std::move(own)))).items();
}

std::vector<int> deal_shards(Ranks& ranks, const OutputPlaces& places, std::size_t shards,
                             std::span<const std::int64_t> held) {
  std::vector<std::int64_t> all(places.count() > 1 ? places.count() * held.size() : 0);
  if (!all.empty()) {
    const auto own = static_cast<std::size_t>(places.of(ranks.rank()));
    std::copy(held.begin(), held.end(), all.begin() + static_cast<std::ptrdiff_t>(own * held.size()));
    ranks.sum_to(0, all);
    ranks.broadcast(0, std::as_writable_bytes(std::span(all)));
  }
  std::vector<int> owners;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    int best = places.of_rank[shard % places.of_rank.size()];
    const auto holds = [&](int place) { return all[static_cast<std::size_t>(place) * shards + shard]; };
    for (int place = 0; !all.empty() && place < static_cast<int>(places.count()); ++place)
      if (holds(place) > holds(best)) best = place;
    owners.push_back(places.dealt_to(best, shard));
  }
  return owners;
}

}  // namespace llmq
