// Coordinates in which keys and values lose least when their pages have few bits.
//
//   scores of keys:  q k = (A^-T q) (A k)        values:  sum_t p_t v_t = H sum_t p_t (H v_t)
//
// A decorrelates keys and queries at once: in it both second moments are diagonal and alike, so that a step
// of any coordinate costs scores the same. A Hadamard transform then spreads every direction over all
// coordinates, so that no single one decides the scale of a row. H is that transform alone: values are summed
// over tokens of very different sizes, and what suits them on average does harm to the small ones that much
// attention goes to. Nothing is approximated before codes are: A and H are invertible.
//
// A fit costs one symmetric eigenproblem of head_dim per KV head; using it, head_dim^2 products per head and
// row, in FP32.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"

namespace llmq {

// [n, n] each, row-major: coordinates = forward k; and the inverse of `forward`, transposed.
struct HeadBasis {
  std::vector<double> forward, inverse_transposed;
};

// From second moments [n, n] of the keys of one head, and of the queries that meet them. Error(kBadInput)
// where they are not finite.
HeadBasis fit_head_basis(const std::vector<double>& keys, const std::vector<double>& queries);
// [n, n], symmetric and its own inverse: Hadamard transforms of blocks of the largest power of two that
// divides n.
std::vector<double> hadamard_matrix(std::size_t n);

// Of one block; empty: pages hold keys and values as they are.
struct KvBasis {
  std::vector<std::unique_ptr<PreparedWeight>> keys, queries;  // FP32 [head_dim, head_dim] per KV head
  std::shared_ptr<const PreparedWeight> mixing;                // H, of values and of what attention gives
  bool empty() const { return keys.empty(); }
};

KvBasis prepare_kv_basis(Backend& backend, std::span<const HeadBasis> heads,
                         std::shared_ptr<const PreparedWeight> mixing);
std::unique_ptr<PreparedWeight> prepare_mixing(Backend& backend, std::int64_t head_dim);

// y[t, h] = x[t, h] w^T for every head of F32 [T, heads, head_dim], w being that of its KV head; y may not be
// x.
void change_basis(Backend& backend, const TensorView& y, const TensorView& x,
                  std::span<const std::unique_ptr<PreparedWeight>> by_kv_head);
// y[t, h] = x[t, h] w^T, the same w for all.
void mix_heads(Backend& backend, const TensorView& y, const TensorView& x, const PreparedWeight& w);

}  // namespace llmq
