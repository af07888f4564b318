// A few whole rows of one linear input, spread evenly over the tokens that calibration sees: what a choice
// needs that depends on single tokens, as the step of 8-bit activations does.
//
// Row i of `wanted` is token floor((i + f(i)) * tokens / wanted), f(i) = frac(i * 0.618...): evenly spaced,
// but never in step with the samples' length, whose first tokens are like no others. Memory: 4 bytes a value.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "ranks/ranks.h"

namespace llmq {

class RowSample {
 public:
  static constexpr std::int64_t kWanted = 512;

  RowSample() = default;
  // Of `tokens` rows that add() will see in all, in views of any order; it is complete only then.
  RowSample(std::int64_t tokens, std::int64_t channels, std::int64_t wanted = kWanted);
  // x [T, channels] on the backend's device, F32 or BF16: rows `first`, first + 1, ... of all.
  void add(Backend& backend, const TensorView& x, std::int64_t first);
  // Of ranks each of which saw other rows of the same: all of them, on every rank.
  void join(Ranks& ranks);
  void divide_channels(std::span<const float> s);

  std::int64_t rows() const {
    return channels_ == 0 ? 0 : static_cast<std::int64_t>(values_.size()) / channels_;
  }
  std::int64_t channels() const { return channels_; }
  const float* row(std::int64_t i) const { return values_.data() + i * channels_; }
  // The magnitude that `percent` of all values do not exceed; 100: the largest. 0 for no rows.
  float magnitude_at(double percent) const;

 private:
  std::int64_t channels_ = 0;
  std::vector<std::int64_t> tokens_;  // rising
  std::vector<float> values_;
};

}  // namespace llmq
