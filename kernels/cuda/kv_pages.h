// Keys or values of one layer's pages, as kernels read and write them. With block = slot / block_size and
// offset = slot % block_size:
//
//   plain   numbers [slot][kv_head][head_dim], F32 or BF16
//   packed  rows [block][kv_head][offset] as kernels/common/kv_row.h has them, of `row.bytes()` each
#pragma once
#include "kernels/common/kv_row.h"
#include "kernels/cuda/elementwise.h"

namespace llmq::cuda {

struct KvStore {
  void* first = nullptr;
  KvRow row;  // n = head_dim; its format where packed
  float scale = 1;
  int kv_heads = 0, block_size = 16;
  bool packed = false;
  Element element = Element::kF32;  // where plain

  // Of a position's numbers: where they begin, counted in numbers, or in bytes where packed.
  LLMQ_BLOCK int64_t place(int64_t slot, int kv_head) const {
    if (!packed) return (slot * kv_heads + kv_head) * row.n;
    return ((slot / block_size * kv_heads + kv_head) * block_size + slot % block_size) * row.bytes();
  }
  LLMQ_BLOCK unsigned char* bytes_at(int64_t place) const {
    return static_cast<unsigned char*>(first) + place;
  }
  LLMQ_BLOCK float get(int64_t place, int d) const {
    if (!packed) return load(first, place + d, element);
    float number;
    kv_load_part<1>(row, &number, bytes_at(place), d, scale);
    return number;
  }
};

// k, v [rows, kv_heads, head_dim] to the slots of their rows, or back. An element is a number where pages are
// plain, else a whole row of a head: its scale needs all of it.
struct MoveKv {
  int64_t elements = 0, width = 0;  // elements of one slot
  Rows k, v;
  KvStore keys, values;
  const int64_t* slots = nullptr;
  bool to_pages = true;

  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t slot = slots[i / width];
    if (keys.packed) {
      const int head = static_cast<int>(i % width);
      move_row(keys, slot, head, k, i);
      move_row(values, slot, head, v, i);
      return;
    }
    const int64_t row = i / keys.row.n, d = i % keys.row.n, at = slot * width + i % width;
    move_number(keys, at, k, row, d);
    move_number(values, at, v, row, d);
  }

 private:
  LLMQ_BLOCK void move_row(const KvStore& pages, int64_t slot, int head, const Rows& rows, int64_t r) const {
    unsigned char* const bytes = pages.bytes_at(pages.place(slot, head));
    float* const numbers = static_cast<float*>(rows.first) + r * rows.row;
    if (to_pages)
      kv_store_row(pages.row, bytes, numbers, pages.scale);
    else
      kv_load_row(pages.row, numbers, bytes, pages.scale);
  }
  LLMQ_BLOCK void move_number(const KvStore& pages, int64_t at, const Rows& rows, int64_t r,
                              int64_t d) const {
    if (to_pages)
      store(pages.first, at, pages.element, rows.get(r, d));
    else
      rows.put(r, d, load(pages.first, at, pages.element));
  }
};

}  // namespace llmq::cuda
