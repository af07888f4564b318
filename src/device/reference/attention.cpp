#include "device/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "device/reference/elements.h"

namespace llmq::reference {
namespace {

// use(row of [T * heads, head_dim], the pages' row of that head, dimension)
template <class Use>
void each_kv_element(const TensorView& k, std::span<const std::int64_t> slots, const Use& use) {
  const std::int64_t heads = k.shape[1];
  for (std::size_t t = 0; t < slots.size(); ++t)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t d = 0; d < k.cols(); ++d)
        use(static_cast<std::int64_t>(t) * heads + head, slots[t] * heads + head, d);
}

// The bytes of one position and head in packed pages, `from` being their keys or their values.
unsigned char* packed_row(const KvPages& pages, const TensorView& from, std::int64_t slot,
                          std::int64_t head) {
  const std::int64_t row =
      (slot / pages.block_size * from.shape[1] + head) * pages.block_size + slot % pages.block_size;
  return from.as<unsigned char>() + row * from.cols();
}

// use(row of [T * heads, head_dim], slot, head)
template <class Use>
void each_packed_row(const TensorView& k, std::span<const std::int64_t> slots, const Use& use) {
  const std::int64_t heads = k.shape[1];
  for (std::size_t t = 0; t < slots.size(); ++t)
    for (std::int64_t head = 0; head < heads; ++head)
      use(static_cast<std::int64_t>(t) * heads + head, slots[t], head);
}

// Attention of one query row: scores over the visible positions, softmax, weighted values.
struct AttentionRow {
  const TensorView& out;
  const TensorView& q;
  const KvPages& pages;
  const AttentionProblem& problem;

  // Keys or values of a position and KV head.
  void read_row(bool values, const SequenceRows& sequence, std::int64_t position, std::int64_t kv_head,
                std::vector<double>& row) const {
    const TensorView& from = values ? pages.values : pages.keys;
    const std::int64_t block = sequence.block_table[static_cast<std::size_t>(position / pages.block_size)];
    const std::int64_t slot = block * pages.block_size + position % pages.block_size;
    row.resize(static_cast<std::size_t>(problem.head_dim));
    if (pages.packed) {
      std::vector<float> numbers(row.size());
      kv_load_row({values ? pages.packed->values : pages.packed->keys, problem.head_dim}, numbers.data(),
                  packed_row(pages, from, slot, kv_head), values ? pages.value_scale : pages.key_scale);
      std::copy(numbers.begin(), numbers.end(), row.begin());
    } else {
      for (std::size_t d = 0; d < row.size(); ++d)
        row[d] = read(from, slot * problem.kv_heads + kv_head, static_cast<std::int64_t>(d));
    }
  }

  double score_of(double dot) const {
    const double score = dot * static_cast<double>(problem.scale);
    return problem.softcap == 0 ? score : softcapped(score, static_cast<double>(problem.softcap));
  }

  void run(const SequenceRows& sequence, std::int64_t row, std::int64_t head,
           std::vector<double>& weights) const {
    const std::int64_t position = sequence.context + row - sequence.first_row;
    const std::int64_t first = problem.look_back().first_seen(position);
    const std::int64_t kv_head = head / (problem.heads / problem.kv_heads);
    weights.assign(static_cast<std::size_t>(position - first + 1), 0.0);
    double greatest = -std::numeric_limits<double>::infinity();
    std::vector<double> key, value, mixed(static_cast<std::size_t>(problem.head_dim));
    for (std::int64_t p = first; p <= position; ++p) {
      double dot = 0;
      read_row(false, sequence, p, kv_head, key);
      for (std::int64_t d = 0; d < problem.head_dim; ++d)
        dot += read(q, row * problem.heads + head, d) * key[static_cast<std::size_t>(d)];
      weights[static_cast<std::size_t>(p - first)] = score_of(dot);
      greatest = std::max(greatest, weights[static_cast<std::size_t>(p - first)]);
    }
    double sum = 0;
    if (problem.sinks.pointer != nullptr) {  // a key that has no value
      const double sink = static_cast<double>(problem.sinks.as<const float>()[head]);
      if (sink > greatest) greatest = sink;
      sum = std::exp(sink - greatest);
    }
    for (double& weight : weights) sum += weight = std::exp(weight - greatest);
    for (std::int64_t p = first; p <= position; ++p) {
      read_row(true, sequence, p, kv_head, value);
      for (std::size_t d = 0; d < mixed.size(); ++d)
        mixed[d] += weights[static_cast<std::size_t>(p - first)] * value[d];
    }
    for (std::int64_t d = 0; d < problem.head_dim; ++d)
      write(out, row, head * problem.head_dim + d, mixed[static_cast<std::size_t>(d)] / sum);
  }
};

}  // namespace

void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
              std::span<const std::int64_t> slots) {
  if (pages.packed)
    return each_packed_row(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t head) {
      kv_store_row({pages.packed->keys, k.cols()}, packed_row(pages, pages.keys, slot, head),
                   k.row<const float>(row), pages.key_scale);
      kv_store_row({pages.packed->values, k.cols()}, packed_row(pages, pages.values, slot, head),
                   v.row<const float>(row), pages.value_scale);
    });
  each_kv_element(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t d) {
    write(pages.keys, slot, d, read(k, row, d));
    write(pages.values, slot, d, read(v, row, d));
  });
}

void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
             std::span<const std::int64_t> slots) {
  if (pages.packed)
    return each_packed_row(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t head) {
      kv_load_row({pages.packed->keys, k.cols()}, k.row<float>(row),
                  packed_row(pages, pages.keys, slot, head), pages.key_scale);
      kv_load_row({pages.packed->values, k.cols()}, v.row<float>(row),
                  packed_row(pages, pages.values, slot, head), pages.value_scale);
    });
  each_kv_element(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t d) {
    write(k, row, d, read(pages.keys, slot, d));
    write(v, row, d, read(pages.values, slot, d));
  });
}

void attend(const TensorView& out, const TensorView& q, const KvPages& pages,
            std::span<const SequenceRows> sequences, const AttentionProblem& problem) {
  const AttentionRow one{out, q, pages, problem};
  std::vector<double> weights;
  for (const SequenceRows& sequence : sequences)
    for (std::int64_t row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row)
      for (int head = 0; head < problem.heads; ++head) one.run(sequence, row, head, weights);
}

}  // namespace llmq::reference
