// What calibration learned of one distinct linear input: mean and max of |x| per channel, the Gram matrix,
// the token count.
//
//   gram = sum_t x_t^T x_t (upper triangle kept),  mean_abs[k] = 1/T sum_t |x_t[k]|
//
// Every kGramChunkRows rows are summed by the backend in FP32 and added here in FP64, in sample order:
// bit-identical at any thread count, and for any cut of the rows into views. Merging is in the caller's fixed
// order; save() and load() round-trip exactly.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/zeroed_numbers.h"
#include "device/backend.h"
#include "device/gram_total.h"

namespace llmq {

inline constexpr std::int64_t kGramChunkRows = 4096, kAllTokens = INT64_MAX;

class InputStats {
 public:
  explicit InputStats(std::int64_t channels);
  void add(Backend& backend, const TensorView& x);  // all rows of an input at once
  void merge(const InputStats& other);
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
    return triangle_[static_cast<std::size_t>(i * channels_ - i * (i - 1) / 2 + (j - i))];
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

// Collects an input that comes view by view. Several devices may share one sequence of views: a collector
// each, all into the same statistics. Each view goes to one of them; add() is called in the order of the
// views, and between two of different collectors next.take_over(last.hand_over()). The bits are those of one
// collector that sees all views.
class StatsCollector {
 public:
  // Rows that are summed and not yet drained, or wait to be summed, in host memory.
  struct Undrained {
    std::int64_t pending = 0, summed = 0, seen = 0, waiting = 0;
    std::vector<float> triangle;  // of the pending rows; empty without
    std::vector<std::byte> rows;  // that wait
    DType dtype = DType::kF32;    // of those
  };

  // Only the first `gram_tokens` rows enter the Gram matrix, which then stands for all of them: it is scaled
  // by their number (`into` is empty then); with 0 it stays what it is. `alone`: no other collector adds to
  // `into` before finish().
  StatsCollector(Backend& backend, InputStats& into, std::int64_t gram_tokens = kAllTokens,
                 bool alone = false);
  void add(const TensorView& x);  // x [T, channels] on the backend's device, F32 or BF16
  // What add(x) will do and no earlier row decides, when so many rows come before x: nothing, or the products
  // of its first kGramChunkRows rows.
  void begin(const TensorView& x, std::int64_t before);
  Undrained hand_over();
  void take_over(const Undrained& left);
  void finish();  // of the collector that added last; `into` is complete only then

 private:
  Backend& backend_;
  InputStats& into_;
  Buffer square_;  // F32 [K, K] on the device: the sum of the last pending_ rows
  TensorView gram_;
  std::unique_ptr<GramTotal> total_;  // where squares are added up, if not in `into`
  Buffer odd_;  // step() rows of x's dtype: those that end a view and are not yet summed
  TensorView odd_rows_;
  const std::int64_t gram_tokens_;
  const bool alone_;
  std::int64_t pending_ = 0, summed_ = 0, seen_ = 0, waiting_ = 0;
  std::int64_t begun_ = 0;  // rows of the next view that the square holds already

  void count(std::int64_t rows);
  void each_band(const std::function<void(const TensorView& rows, std::vector<float>& band,
                                          std::int64_t first)>& visit) const;
  void clear();
  // Rows that are summed at once, or its multiples. One that others add beside keeps few, which pass through
  // the host.
  std::int64_t step(DType dtype) const {
    return alone_ ? backend_.gram_rows(dtype, into_.channels_) : kGramTokens;
  }
  void make_odd(DType dtype);
  void sum(const TensorView& x);
  void sum_whole(const TensorView& x);
  void keep(const TensorView& x);
  void drain();
};

}  // namespace llmq
