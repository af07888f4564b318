// Moving a channel scale s out of an input's producer into all its readers, without a change of function:
//
//   y = f(x) W^T,  x = g * norm(h) + b  ->  g' = stored(g / s),  b' = stored(b g' / g),  W' = W diag(g / g')
//   x = h V^T (rows of v or up)     ->  V' = diag(1/s) V, bias' = stored(bias / s),  W' = W diag(s)
//
// The gain is stored rounded, so its readers are scaled by the ratio of the old gain to the stored new one. A
// reader that is never quantized (a router) is scaled like the others, and stored rounded, too.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/zeroed_numbers.h"
#include "quant/pipeline/quantize_run.h"

namespace llmq {

// A planned linear on its way: W, then W diag(in_scale) / diag(out_scale).
struct LinearWork {
  const LinearSpec* spec = nullptr;
  const PlannedModule* module = nullptr;
  ZeroedNumbers<float> weight;
  ZeroedNumbers<float> unscaled;           // W, where `weight` is not W any more
  std::vector<float> in_scale, out_scale;  // empty: all 1
  ModuleReport report;

  std::span<const float> original() const { return unscaled.size() == 0 ? weight : unscaled; }
  // Makes every row anew of what it is, `from`, which may be the memory that it is made in; W is kept.
  void change_rows(
      ThreadPool& pool,
      const std::function<void(std::size_t row, std::span<const float> from, std::span<float> into)>& change);
};
using LinearWorks = std::map<LinearId, LinearWork>;

// Of each channel: which of those that come from one row of the producer it is among, by the first of them.
// Empty: each is alone.
std::vector<std::int32_t> tied_channels(const SiteSpec& site);

class Fold {
 public:
  Fold(QuantizeRun& run, const BlockSpec& block, const SiteSpec& site)
      : run_(run), block_(block), site_(site) {}

  // s as the producer can store it.
  std::vector<float> storable(std::vector<float> s) const;
  // Scales the readers and the producer among `works`, and a norm, a bias and what is never quantized where
  // they lie, on every device. A planned linear that is not among the works takes its part when it is opened.
  void move(const std::vector<float>& s, LinearWorks& works, std::span<BlockWeights> weights) const;
  // The part of one linear, as a reader and as the producer.
  void take_part(const std::vector<float>& s, LinearWork& work) const;

 private:
  void multiply_columns(const std::vector<float>& s, LinearWork& work) const;
  void divide_norm(const NormGain& norm, const std::vector<float>& s, std::span<BlockWeights> weights) const;
  // Of each row of the producer, s or 1.
  std::vector<float> scales_of_rows(const LinearRows& made, const std::vector<float>& s) const;
  void divide_rows(const LinearRows& made, const std::vector<float>& s, LinearWork& work) const;
  // A reader that stays dense.
  void scale_dense(const LinearSpec& linear, const std::vector<float>& s,
                   std::span<BlockWeights> weights) const;
  void divide_bias(const LinearRows& made, const std::vector<float>& s,
                   std::span<BlockWeights> weights) const;

  QuantizeRun& run_;
  const BlockSpec& block_;
  const SiteSpec& site_;
};

}  // namespace llmq
