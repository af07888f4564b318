#include "device/cuda/cuda_attention.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "device/backend_scratch.h"
#include "device/cuda/attention_tiles.h"

namespace llmq {
namespace {

cuda::KvStore store_of(const KvPages& pages, const TensorView& numbers, int kv_heads, int head_dim,
                       KvFormat format, float scale) {
  return {numbers.pointer,
          {format, head_dim},
          scale,
          kv_heads,
          pages.block_size,
          pages.packed.has_value(),
          pages.packed ? cuda::Element::kF32 : element_of(numbers.dtype)};
}
cuda::KvStore keys_of(const KvPages& pages, int kv_heads, int head_dim) {
  return store_of(pages, pages.keys, kv_heads, head_dim, pages.packed.value_or(KvFormats{}).keys,
                  pages.key_scale);
}
cuda::KvStore values_of(const KvPages& pages, int kv_heads, int head_dim) {
  return store_of(pages, pages.values, kv_heads, head_dim, pages.packed.value_or(KvFormats{}).values,
                  pages.value_scale);
}

// By absolute position and by block table, one entry for each row of a batch (kernels/cuda/attention.h,
// tile_attention.h).
struct RowPlaces {
  std::vector<std::int64_t> positions, first_block;
  std::vector<std::int32_t> tables;
};

RowPlaces places_of(std::span<const SequenceRows> sequences) {
  RowPlaces places;
  std::size_t rows = 0;
  for (const SequenceRows& s : sequences)
    rows = std::max(rows, static_cast<std::size_t>(s.first_row + s.rows));
  places.positions.resize(rows);
  places.first_block.resize(rows);
  for (const SequenceRows& s : sequences) {
    for (std::int64_t i = 0; i < s.rows; ++i) {
      places.positions[static_cast<std::size_t>(s.first_row + i)] = s.context + i;
      places.first_block[static_cast<std::size_t>(s.first_row + i)] =
          static_cast<std::int64_t>(places.tables.size());
    }
    places.tables.insert(places.tables.end(), s.block_table.begin(), s.block_table.end());
  }
  return places;
}

struct Attention {
  const TensorView& out;
  const TensorView& q;
  const KvPages& pages;
  std::span<const SequenceRows> sequences;
  const AttentionProblem& problem;
  RowPlaces places;

  std::int64_t rows() const { return static_cast<std::int64_t>(places.positions.size()); }
  std::int64_t width() const { return std::int64_t{problem.heads} * problem.head_dim; }
  cuda::KvStore keys() const { return keys_of(pages, problem.kv_heads, problem.head_dim); }
  cuda::KvStore values() const { return values_of(pages, problem.kv_heads, problem.head_dim); }
};

bool takes_tiles(const Attention& a) {
  return a.out.dtype == DType::kBF16 && a.problem.head_dim <= cuda::kMostTileDim && a.q.contiguous() &&
         a.out.contiguous();
}

std::int64_t splits_of(std::int64_t positions) {
  return (positions + cuda::kSplitKeys - 1) / cuda::kSplitKeys;
}

// As many rows at once as leave their partial results within the device's scratch_bytes().
void attend_by_tiles(CudaWork& work, const Attention& all) {
  const AttentionProblem& problem = all.problem;
  const RowPlaces& places = all.places;
  const std::int64_t rows = all.rows(), width = all.width();
  if (rows == 0) return;
  const std::int64_t positions_seen = *std::max_element(places.positions.begin(), places.positions.end()) + 1,
                     splits = splits_of(positions_seen), parts = problem.heads * splits;
  const auto most = static_cast<std::int64_t>(
      attention_rows_at_once(attention_row_bytes(problem.heads, problem.head_dim, positions_seen),
                             static_cast<std::uint64_t>(work.device().scratch_bytes())));
  const auto held = static_cast<std::size_t>(parts * std::min(rows, most)) * sizeof(float);
  const auto positions = work.list_of(std::span<const std::int64_t>(places.positions)),
             tables = work.list_of(std::span<const std::int32_t>(places.tables));
  const Buffer mixed = work.scratch(held * static_cast<std::size_t>(problem.head_dim)),
               greatest = work.scratch(held), sum = work.scratch(held);
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t end = std::min(rows, first + most);
    const auto [tiles, wide_count] =
        attention_tiles(all.sequences, places.first_block, first, end, problem.heads / problem.kv_heads);
    const auto on_device = work.list_of(std::span<const cuda::AttentionTile>(tiles));
    cuda::TileAttentionArguments a;
    a.q = all.q.as<const float>() + first * width;
    a.keys = all.keys();
    a.values = all.values();
    a.out = all.out.as<BFloat16>() + first * width;
    a.tiles = on_device->as<cuda::AttentionTile>();
    a.wide_count = wide_count;
    a.tile_count = static_cast<std::int64_t>(tiles.size());
    a.tables = tables->as<std::int32_t>();
    a.positions = positions->as<std::int64_t>() + first;
    a.rows = end - first;
    a.heads = problem.heads;
    a.head_dim = problem.head_dim;
    a.scale = problem.scale, a.softcap = problem.softcap;
    a.sinks = problem.sinks.as<const float>();
    a.look_back = problem.look_back();
    a.splits = static_cast<int>(splits);
    a.mixed = mixed.as<float>();
    a.greatest = greatest.as<float>();
    a.sum = sum.as<float>();
    work.start("attention", work.kernels().tile_attention, a, all.q);
  }
}

void attend_in_float32(CudaWork& work, const Attention& all) {
  const RowPlaces& places = all.places;
  const auto positions = work.list_of(std::span<const std::int64_t>(places.positions)),
             first_block = work.list_of(std::span<const std::int64_t>(places.first_block)),
             tables = work.list_of(std::span<const std::int32_t>(places.tables));
  cuda::PlainAttention::Arguments a;
  a.rows = all.rows();
  a.heads = all.problem.heads;
  a.head_dim = all.problem.head_dim;
  a.scale = all.problem.scale, a.softcap = all.problem.softcap;
  a.sinks = all.problem.sinks.as<const float>();
  a.look_back = all.problem.look_back();
  a.q = rows_of(all.q);
  a.out = rows_of(all.out);
  if (all.out.shape.rank() != 2) a.out.row = all.width();
  a.keys = all.keys();
  a.values = all.values();
  a.positions = positions->as<std::int64_t>();
  a.first_block = first_block->as<std::int64_t>();
  a.tables = tables->as<std::int32_t>();
  work.start("attention", work.kernels().attention, a, all.q);
}

}  // namespace

// Of each split of each head: what its values add up to, their greatest score, and their sum.
std::uint64_t attention_row_bytes(std::int64_t heads, std::int64_t head_dim, std::int64_t positions) {
  return static_cast<std::uint64_t>(heads * splits_of(positions) * (head_dim + 2)) * sizeof(float);
}
std::uint64_t attention_rows_at_once(std::uint64_t row_bytes, std::uint64_t scratch) {
  return std::max<std::uint64_t>(1, scratch / row_bytes);
}

void attend(CudaWork& work, const TensorView& out, const TensorView& q, const KvPages& pages,
            std::span<const SequenceRows> sequences, const AttentionProblem& problem) {
  if (problem.head_dim > cuda::kMostHeadDim)
    fail(ErrorKind::kUnsupported, "heads of {} dimensions are more than the {} that attention on CUDA takes",
         problem.head_dim, cuda::kMostHeadDim);
  const Attention all{out, q, pages, sequences, problem, places_of(sequences)};
  if (takes_tiles(all))
    attend_by_tiles(work, all);
  else
    attend_in_float32(work, all);
}

void move_kv(CudaWork& work, const char* operation, const KvPages& pages, const TensorView& k,
             const TensorView& v, std::span<const std::int64_t> slots, bool to_pages) {
  const auto on_device = work.list_of(slots);
  const auto heads = static_cast<int>(k.shape[1]), dim = static_cast<int>(k.cols());
  const std::int64_t width = pages.packed ? heads : heads * dim;
  work.start(
      operation, work.kernels().move_kv,
      {static_cast<std::int64_t>(slots.size()) * width, width, rows_of(k), rows_of(v),
       keys_of(pages, heads, dim), values_of(pages, heads, dim), on_device->as<std::int64_t>(), to_pages},
      k);
}

}  // namespace llmq
