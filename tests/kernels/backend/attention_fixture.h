// Attention problems as tests pose them: sequences with a past, keys and values scattered over permuted
// pages, unused slots full of NaN; a block that a sliding window has passed is such a one.
#pragma once
#include <numeric>

#include "kernels/backend/backend_fixture.h"

namespace llmq::testing {

struct AttentionCase {
  int heads = 4, kv_heads = 2, head_dim = 16;
  std::int64_t sliding_window = 0;
  int block_size = 16;
  std::vector<std::pair<std::int64_t, std::int64_t>> sequences;  // context, rows
  Compute compute = Compute::kFloat32;
  bool permuted = true;
  float softcap = 0;
  bool sinks = false;
  bool chunks = false;

  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const auto& sequence : sequences) sum += sequence.second;
    return sum;
  }
  AttentionProblem problem() const {
    return {heads,          kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim)),
            sliding_window, compute,  softcap,  {},
            chunks};
  }
  // Of each head: below all scores, among them, above them.
  std::vector<float> sink_scores() const {
    std::vector<float> scores;
    for (int head = 0; sinks && head < heads; ++head)
      scores.push_back(static_cast<float>(head % 4) * 2.5f - 4);
    return scores;
  }
};

// Keys and values of each sequence by absolute position, [positions, kv_heads, head_dim].
struct AttentionData {
  std::vector<float> q;  // [rows, heads, head_dim]
  std::vector<std::vector<float>> keys, values;
};

inline AttentionData make_attention_data(const AttentionCase& c, std::uint64_t seed, double q_scale = 1) {
  Numbers numbers(seed);
  const DType dtype = activation_dtype(c.compute);
  AttentionData data;
  data.q = numbers.values(c.rows() * c.heads * c.head_dim, 0, q_scale);
  for (const auto& [context, rows] : c.sequences) {
    const std::int64_t count = (context + rows) * c.kv_heads * c.head_dim;
    data.keys.push_back(rounded(dtype, numbers.values(count, 0, 2)));
    data.values.push_back(rounded(dtype, numbers.values(count, 0, 2)));
  }
  return data;
}

// Pages of one case on a backend.
struct PlacedPages {
  Placed keys, values;
  KvPages pages;
  std::vector<std::vector<std::int32_t>> tables;
};

inline PlacedPages place_pages(Backend& backend, const AttentionCase& c, const AttentionData& data) {
  PlacedPages placed;
  std::int64_t blocks = 2;  // two that nobody uses
  for (const auto& [context, rows] : c.sequences)
    blocks += (context + rows + c.block_size - 1) / c.block_size;
  const Shape shape{blocks, c.block_size, c.kv_heads, c.head_dim};
  const std::vector<float> unused(static_cast<std::size_t>(shape.elements()), std::nanf(""));
  const DType dtype = activation_dtype(c.compute);
  placed.keys = put(backend, dtype, shape, unused);
  placed.values = put(backend, dtype, shape, unused);
  placed.pages = {placed.keys.view, placed.values.view, c.block_size};
  std::vector<std::int32_t> order(static_cast<std::size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  if (c.permuted) {
    Numbers numbers(77);
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<std::size_t>(numbers.below(static_cast<std::int64_t>(i)))]);
  }
  std::size_t taken = 0;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    std::vector<std::int32_t>& table = placed.tables.emplace_back();
    std::vector<std::int64_t> slots;
    const std::int64_t positions = c.sequences[s].first + c.sequences[s].second;
    for (std::int64_t p = 0; p < positions; ++p) {
      if (p % c.block_size == 0) table.push_back(order[taken++]);
      slots.push_back(std::int64_t{table.back()} * c.block_size + p % c.block_size);
    }
    const Shape rows{positions, c.kv_heads, c.head_dim};
    const Placed k = put(backend, DType::kF32, rows, data.keys[s]),
                 v = put(backend, DType::kF32, rows, data.values[s]);
    backend.store_kv(placed.pages, k.view, v.view, slots);
    const std::int64_t unseen = c.problem().look_back().first_seen(c.sequences[s].first);
    std::fill_n(table.begin(), unseen / kAttentionTile * kAttentionTile / c.block_size, order.back());
  }
  return placed;
}

// All rows at once; F32 of the output, which may be asked for in FP32 (`exact`) from the reference.
inline std::vector<float> run_attention(Backend& backend, const AttentionCase& c, const AttentionData& data,
                                        bool exact = false) {
  const PlacedPages placed = place_pages(backend, c, data);
  std::vector<SequenceRows> sequences;
  std::int64_t first = 0;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    sequences.push_back({first, c.sequences[s].second, c.sequences[s].first, placed.tables[s]});
    first += c.sequences[s].second;
  }
  const Placed q = put(backend, DType::kF32, {c.rows(), c.heads, c.head_dim}, data.q);
  const Placed out = poisoned(backend, exact ? DType::kF32 : activation_dtype(c.compute),
                              {c.rows(), std::int64_t{c.heads} * c.head_dim});
  AttentionProblem problem = c.problem();
  const Placed sinks =
      put(backend, DType::kF32, {c.heads}, std::vector<float>(static_cast<std::size_t>(c.heads)));
  if (c.sinks) {
    backend.upload(sinks.view, c.sink_scores().data());
    problem.sinks = sinks.view;
  }
  backend.attention(out.view, q.view, placed.pages, sequences, problem);
  return get(backend, out.view);
}

// The greatest error of a score of this row and head, in the exponent: a dot product of head_dim terms
// (bfloat16 compute may round q), the product with the scale, and the subtraction of the maximum. A softcap
// makes no difference greater, and its tanh is within 3e-7 of itself.
inline double score_error(const AttentionCase& c, const std::vector<float>& keys, const float* q,
                          std::int64_t kv_head, std::int64_t first, std::int64_t last) {
  double worst = 0;
  for (std::int64_t p = first; p <= last; ++p) {
    const float* key = keys.data() + (p * c.kv_heads + kv_head) * c.head_dim;
    double sum = 0;
    for (int d = 0; d < c.head_dim; ++d)
      sum += std::fabs(static_cast<double>(q[d]) * static_cast<double>(key[d]));
    worst = std::max(worst, sum);
  }
  const double rounding = c.compute == Compute::kBFloat16 ? kBf16Roundoff : 0;
  const double scaled = worst / std::sqrt(static_cast<double>(c.head_dim));
  return rounding * scaled + fp32_dot_bound(c.head_dim, (1 + rounding) * scaled) +
         4 * kFp32Roundoff * scaled +
         (c.softcap > 0 ? (3e-7 + gamma(4)) * std::min<double>(scaled, c.softcap) : 0);
}

inline std::vector<double> attention_bound(const AttentionCase& c, const AttentionData& data,
                                           const std::vector<float>& want, const std::vector<float>& means) {
  std::vector<double> bound;
  std::int64_t row = 0;
  for (std::size_t s = 0; s < c.sequences.size(); ++s)
    for (std::int64_t i = 0; i < c.sequences[s].second; ++i, ++row)
      for (int head = 0; head < c.heads; ++head) {
        const std::int64_t last = c.sequences[s].first + i;
        const std::int64_t first = c.problem().look_back().first_seen(last);
        const double error = score_error(c, data.keys[s], data.q.data() + (row * c.heads + head) * c.head_dim,
                                         head / (c.heads / c.kv_heads), first, last);
        // The online softmax multiplies what it has by an exp and rounds, once per tile of 64; bfloat16
        // compute may round the weights.
        const double tiles = static_cast<double>(last / 64 + 2);
        const double weight_error =
            tiles * (kExpError + 2 * kFp32Roundoff) + (c.compute == Compute::kBFloat16 ? kBf16Roundoff : 0);
        for (int d = 0; d < c.head_dim; ++d) {
          const std::size_t at = static_cast<std::size_t>((row * c.heads + head) * c.head_dim + d);
          double allowed =
              softmax_mean_bound(last - first + 1 + (c.sinks ? 1 : 0), error, weight_error, means[at]) +
              fp32_rounding_bound(want[at]);
          if (c.compute == Compute::kBFloat16) allowed += bf16_rounding_bound(std::fabs(want[at]) + allowed);
          bound.push_back(allowed);
        }
      }
  return bound;
}

}  // namespace llmq::testing
