#include "device/cpu/attention_items.h"

#include <algorithm>
#include <functional>

namespace llmq {
namespace {

// (position, head) pairs of one item
constexpr std::int64_t kLeastItemRows = 192, kMostItemRows = 768;

// Some of the query heads of a KV head: where many share one, as where pages hold latents, the few rows of a
// step are work for several workers, and few enough to read keys and values where they lie.
struct SharedHeads {
  static constexpr int kMost = 24;  // of an item
  int group, parts, each;
  explicit SharedHeads(const AttentionProblem& problem)
      : group(problem.heads / problem.kv_heads),
        parts((group + kMost - 1) / kMost),
        each((group + parts - 1) / parts) {}
  std::int64_t items(const AttentionProblem& problem) const { return std::int64_t{problem.kv_heads} * parts; }
};

// `item` is one of SharedHeads::items().
void attend_tile(const CpuWork& work, const TensorView& out, const TensorView& q, const KvPages& pages,
                 const SequenceRows& s, const AttentionProblem& problem, const SharedHeads& shared,
                 std::int64_t first, int item, int positions, int worker) {
  const int kv_head = item / shared.parts, from = item % shared.parts * shared.each,
            group = std::min(shared.each, shared.group - from), head = kv_head * shared.group + from;
  const std::int64_t row = s.first_row + first,
                     width = static_cast<std::int64_t>(problem.heads) * problem.head_dim;
  const std::int64_t offset = static_cast<std::int64_t>(head) * problem.head_dim;
  const std::int64_t out_row = out.shape.rank() == 2 ? out.row_stride : width;
  AttentionTile tile;
  tile.q = q.as<const float>() + row * width + offset;
  tile.q_row = width;
  tile.out = out.as<unsigned char>() + (row * out_row + offset) * element_bytes(out.dtype);
  tile.out_row = out_row;
  tile.positions = static_cast<int>(std::min<std::int64_t>(positions, s.rows - first));
  tile.group = group;
  tile.head_dim = problem.head_dim;
  tile.scale = problem.scale;
  tile.softcap = problem.softcap;
  if (problem.sinks.pointer != nullptr) tile.sinks = problem.sinks.as<const float>() + head;
  tile.first_position = s.context + first;
  tile.look_back = problem.look_back();
  tile.keys = pages.keys.pointer;
  tile.values = pages.values.pointer;
  tile.pages = format_of(pages.keys.dtype);
  tile.packed = pages.packed.has_value();
  if (pages.packed)
    tile.key_row = {pages.packed->keys, problem.head_dim},
    tile.value_row = {pages.packed->values, problem.head_dim};
  tile.key_scale = pages.key_scale;
  tile.value_scale = pages.value_scale;
  tile.block_size = pages.block_size;
  tile.kv_heads = problem.kv_heads;
  tile.kv_head = kv_head;
  tile.block_table = s.block_table.data();
  tile.scratch =
      work.scratch->take(worker, work.kernels->attention_scratch(tile.positions, group, problem.head_dim));
  work.kernels->attention[static_cast<int>(format_of(problem.compute))](tile);
}

}  // namespace

void attend(const CpuWork& work, const TensorView& out, const TensorView& q, const KvPages& pages,
            std::span<const SequenceRows> sequences, const AttentionProblem& problem) {
  const SharedHeads shared(problem);
  const std::int64_t group = shared.each, heads = shared.items(problem);
  std::int64_t all = 0;
  for (const SequenceRows& s : sequences) all += s.rows;
  // Large tiles, whose packed keys serve many rows, as long as every worker has a few of them.
  const std::int64_t positions = std::clamp<std::int64_t>(all * heads / (std::int64_t{4} * work.pool->size()),
                                                          std::max<std::int64_t>(1, kLeastItemRows / group),
                                                          std::max<std::int64_t>(1, kMostItemRows / group));
  // Item -> (sequence, tile, heads), the latest positions of a sequence (the most keys) first.
  std::int64_t items = 0;
  for (const SequenceRows& s : sequences) items += (s.rows + positions - 1) / positions * heads;
  const auto run = [&](std::size_t index, int worker) {
    std::int64_t left = static_cast<std::int64_t>(index);
    for (const SequenceRows& s : sequences) {
      const std::int64_t tiles = (s.rows + positions - 1) / positions;
      if (left < tiles * heads) {
        attend_tile(work, out, q, pages, s, problem, shared, (tiles - 1 - left / heads) * positions,
                    static_cast<int>(left % heads), static_cast<int>(positions), worker);
        return;
      }
      left -= tiles * heads;
    }
  };
  work.pool->parallel_for(static_cast<std::size_t>(items), std::cref(run));
}

}  // namespace llmq
