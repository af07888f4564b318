#include "device/cpu/kv_pages.h"

#include "base/half.h"
#include "kernels/cpu/kv_layout.h"

namespace llmq {
namespace {

// One head of one position.
struct KvSlot {
  KvLayout layout;
  std::int64_t block, head, place;
};

// use(an element of the pages, KvSlot, the row of [T * heads, head_dim]) for each head of each slot.
template <class Use>
void each_kv_head(ThreadPool& pool, const KvPages& pages, const TensorView& k,
                  std::span<const std::int64_t> slots, const Use& use) {
  const std::int64_t heads = k.shape[1];
  const bool narrow = pages.keys.dtype == DType::kBF16;
  KvSlot at{{pages.block_size, heads, k.cols(), narrow ? 2 : 1}, 0, 0, 0};
  by_rows(pool, static_cast<std::int64_t>(slots.size()), 2 * heads * k.cols(), [&, at](std::int64_t t) {
    KvSlot mine = at;
    mine.block = slots[static_cast<std::size_t>(t)] / pages.block_size;
    mine.place = slots[static_cast<std::size_t>(t)] % pages.block_size;
    for (mine.head = 0; mine.head < heads; ++mine.head)
      if (narrow)
        use(BFloat16{}, mine, t * heads + mine.head);
      else
        use(float{}, mine, t * heads + mine.head);
  });
}

// use(KvRow of keys, of values, the row of [T * heads, head_dim], its place among the pages' rows) for each
// head of each slot.
template <class Use>
void each_packed_row(ThreadPool& pool, const KvPages& pages, const TensorView& k,
                     std::span<const std::int64_t> slots, const Use& use) {
  const std::int64_t heads = k.shape[1], size = pages.block_size;
  const KvRow keys{pages.packed->keys, k.cols()}, values{pages.packed->values, k.cols()};
  by_rows(pool, static_cast<std::int64_t>(slots.size()), 2 * heads * k.cols(), [&](std::int64_t t) {
    const std::int64_t slot = slots[static_cast<std::size_t>(t)];
    for (std::int64_t h = 0; h < heads; ++h)
      use(keys, values, t * heads + h, (slot / size * heads + h) * size + slot % size);
  });
}

float number(float v) { return v; }
float number(BFloat16 v) { return to_float(v); }
void place_element(float* to, float from) { *to = from; }
void place_element(BFloat16* to, float from) { *to = to_bfloat16(from); }

template <class Element>
void store_head(const KvPages& pages, const KvSlot& at, const float* key, const float* value) {
  constexpr std::int64_t kPerUnit = 4 / sizeof(Element);
  const KvLayout& layout = at.layout;
  const std::int64_t dim = layout.head_dim, stride = layout.width(at.place) * kPerUnit;
  Element* const keys = pages.keys.as<Element>();
  Element* to = keys + layout.key(at.block, at.head, at.place, 0);
  for (std::int64_t d = 0; d + kPerUnit <= dim; d += kPerUnit, to += stride)
    for (std::int64_t i = 0; i < kPerUnit; ++i) place_element(to + i, key[d + i]);
  if (dim % kPerUnit != 0)
    place_element(keys + layout.key(at.block, at.head, at.place, dim - 1), key[dim - 1]);
  const std::int64_t first = layout.value(at.block, at.head, at.place, 0),
                     step = layout.value(at.block, at.head, at.place, 1) - first;
  to = pages.values.as<Element>() + first;
  for (std::int64_t d = 0; d < dim; ++d, to += step) place_element(to, value[d]);
}

}  // namespace

void store_in_pages(ThreadPool& pool, const KvPages& pages, const TensorView& k, const TensorView& v,
                    std::span<const std::int64_t> slots) {
  if (pages.packed)
    return each_packed_row(pool, pages, k, slots,
                           [&](KvRow keys, KvRow values, std::int64_t row, std::int64_t place) {
                             kv_store_row(keys, pages.keys.as<unsigned char>() + place * keys.bytes(),
                                          k.row<const float>(row), pages.key_scale);
                             kv_store_row(values, pages.values.as<unsigned char>() + place * values.bytes(),
                                          v.row<const float>(row), pages.value_scale);
                           });
  each_kv_head(pool, pages, k, slots, [&](auto element, const KvSlot& at, std::int64_t row) {
    store_head<decltype(element)>(pages, at, k.row<const float>(row), v.row<const float>(row));
  });
}

void load_from_pages(ThreadPool& pool, const TensorView& k, const TensorView& v, const KvPages& pages,
                     std::span<const std::int64_t> slots) {
  if (pages.packed)
    return each_packed_row(
        pool, pages, k, slots, [&](KvRow keys, KvRow values, std::int64_t row, std::int64_t place) {
          kv_load_row(keys, k.row<float>(row), pages.keys.as<const unsigned char>() + place * keys.bytes(),
                      pages.key_scale);
          kv_load_row(values, v.row<float>(row),
                      pages.values.as<const unsigned char>() + place * values.bytes(), pages.value_scale);
        });
  each_kv_head(pool, pages, k, slots, [&](auto element, const KvSlot& at, std::int64_t row) {
    using Element = decltype(element);
    for (std::int64_t d = 0; d < at.layout.head_dim; ++d) {
      k.row<float>(row)[d] =
          number(pages.keys.as<const Element>()[at.layout.key(at.block, at.head, at.place, d)]);
      v.row<float>(row)[d] =
          number(pages.values.as<const Element>()[at.layout.value(at.block, at.head, at.place, d)]);
    }
  });
}

}  // namespace llmq
