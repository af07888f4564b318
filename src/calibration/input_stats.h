// What calibration learned of one distinct linear input: mean and max of |x| per channel, the Gram matrix,
// the token count.
//
//   gram = sum_t x_t^T x_t (upper triangle kept),  mean_abs[k] = 1/T sum_t |x_t[k]|
//
// An input comes chunk by chunk. The backend sums a chunk's products in FP32, kGramChunkRows rows at most,
// and its magnitudes in FP64; the sum over chunks is their real sum, rounded once (tensor/exact_sums.h). So
// the bits depend on how rows are cut into chunks, and not on threads, on devices or on which chunk is
// first, nor on ranks that see some of the chunks each. save() and load() round-trip exactly.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/zeroed_numbers.h"
#include "device/backend.h"
#include "device/gram_total.h"
#include "ranks/ranks.h"
#include "tensor/exact_sums.h"

namespace llmq {

inline constexpr std::int64_t kGramChunkRows = 4096, kAllTokens = INT64_MAX;

class InputStats {
 public:
  explicit InputStats(std::int64_t channels);
  void add(Backend& backend, const TensorView& x);  // all rows of an input at once
  void merge(const InputStats& other);              // in the caller's fixed order
  // As if `tokens` more rows had been seen, each of them the mean of those that `other` saw: of n rows with
  // the mean Gram matrix H, the mean is (n H + tokens H_other) / (n + tokens) then. `other` saw a row. Rows
  // count by `square`, that of what multiplies each of them; the largest are taken as they were.
  void add_prior(const InputStats& other, std::int64_t tokens, double square = 1);
  std::int64_t channels() const { return channels_; }
  std::int64_t tokens() const { return tokens_; }
  std::vector<double> mean_absolute() const;
  std::span<const float> absolute_max() const { return absolute_max_; }
  ZeroedNumbers<float> gram_square(ThreadPool& pool) const;  // full symmetric [K, K] FP32
  std::span<const double> triangle() const { return {triangle_.data(), triangle_.size()}; }
  double gram_at(std::int64_t i, std::int64_t j) const {
    if (i > j) std::swap(i, j);
    return triangle_[triangle_place(i, channels_) + static_cast<std::size_t>(j - i)];
  }
  std::vector<double> gram_diagonal() const;  // [K]
  // x -> x / s: what the statistics of the scaled input are, without seeing the tokens again.
  void divide_channels(std::span<const float> s);
  std::vector<std::byte> save() const;
  static InputStats load(std::span<const std::byte> bytes, const std::string& file);

 private:
  friend class StatsCollector;
  std::int64_t channels_, tokens_ = 0;
  std::vector<double> absolute_sum_;
  std::vector<float> absolute_max_;
  ZeroedNumbers<double> triangle_;  // row i: columns i..K-1
};

// Where a device makes the products of a chunk: F32 [channels, channels], made when it is asked for first.
// Inputs of one width may share it one after another.
class GramSquare {
 public:
  GramSquare(Backend& backend, std::int64_t channels) : backend_(backend), channels_(channels) {}
  Backend& backend() const { return backend_; }
  const TensorView& view();  // zeros on and above the diagonal, and so it is to be left

 private:
  Backend& backend_;
  std::int64_t channels_;
  Buffer storage_;
  TensorView view_;
};

// Collects an input that comes chunk by chunk, in any order, from one device or from several at once.
class StatsCollector {
 public:
  // Only the first `gram_tokens` rows enter the Gram matrix, which then stands for all of them: it is scaled
  // by their number; with 0 it stays 0.
  explicit StatsCollector(std::int64_t channels, std::int64_t gram_tokens = kAllTokens);
  // x [T, channels] on the square's device, F32 or BF16, rows before, before + 1, ... of the input. Whoever
  // adds at once has a square and a backend of its own.
  void add(GramSquare& square, const TensorView& x, std::int64_t before);
  // What all ranks collected of the input, on each of them (calibration/joined_sums.h).
  InputStats finish(Ranks& ranks = alone());

 private:
  GramTotal* total_on(Backend& backend);

  const std::int64_t channels_, gram_tokens_;
  std::mutex mutex_;                                       // of all that follows
  std::map<Backend*, std::unique_ptr<GramTotal>> totals_;  // null: that device's squares are drained here
  ExactSums gram_, magnitudes_;
  std::vector<float> absolute_max_;
  std::int64_t seen_ = 0, summed_ = 0;
};

}  // namespace llmq
