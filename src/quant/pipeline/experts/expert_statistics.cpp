// What the experts of a mixture see of the calibration samples.
//
// Every pass makes the mixture's input again from the residual stream and asks the router again: neither is
// changed while the experts are quantized, so every pass sends the same rows to the same experts. A chunk's
// rows of one expert are gathered in their order and summed by themselves.
#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "calibration/joined_sums.h"
#include "model/mixers/mixture.h"
#include "quant/pipeline/activation_stream.h"

namespace llmq {
namespace {

const MixtureSpec& mixture_of_block(const BlockSpec& block) {
  const MixtureSpec* const mixture = block.mixture();
  if (mixture == nullptr) fail(ErrorKind::kInternal, "{} has no mixture of experts", block.prefix);
  return *mixture;
}

// The residual stream, where the router reads it; it may lie in a file.
TensorView stream_of(const MixtureSpec& mixture, DeviceSamples& lane, const SampleChunk& chunk) {
  return mixture.router_norm ? lane.residual(chunk) : TensorView();
}

// By how much the rows of each expert count.
std::vector<double> squares_of(const MixtureSpec& mixture, const RoutedRows& routed) {
  std::vector<double> sums(mixture.experts.size());
  for (std::size_t expert = 0; expert < sums.size(); ++expert)
    for (std::size_t i = routed.first[expert]; i < routed.first[expert + 1]; ++i) {
      const double weight = mixture.weighs_input ? static_cast<double>(routed.weights[i]) : 1;
      sums[expert] += weight * weight;
    }
  return sums;
}

}  // namespace

std::vector<std::int64_t> ActivationStream::routed_rows(int block, const DeviceWeights& weights,
                                                        std::vector<double>* squares, Samples samples) {
  const MixtureSpec& mixture = mixture_of_block(spec(block));
  std::vector<std::int64_t> counts(mixture.experts.size());
  ExactSums sums(counts.size());
  std::mutex mutex;
  see_inputs(mixture.input, block, weights, samples,
             [&](DeviceSamples& lane, const SampleChunk& chunk, const TensorView& x, std::size_t) {
               const RoutedRows routed = route_rows(lane.backend(), spec(block), weights[chunk.lane], mixture,
                                                    x, stream_of(mixture, lane, chunk));
               const std::lock_guard lock(mutex);
               for (std::size_t e = 0; e < counts.size(); ++e)
                 counts[e] += static_cast<std::int64_t>(routed.first[e + 1] - routed.first[e]);
               if (squares == nullptr) return;
               const std::vector<double> chunk_sums = squares_of(mixture, routed);
               sums.add(0, std::span<const double>(chunk_sums));
               sums.trim();
             });
  count_of_all(counts, samples);
  if (squares == nullptr) return counts;
  const ZeroedNumbers<double> rounded = round_together(std::move(sums), *ranks_);
  squares->assign(rounded.begin(), rounded.end());
  return counts;
}

// What this rank counted becomes what all did.
void ActivationStream::count_of_all(std::vector<std::int64_t>& counts, Samples samples) {
  const std::size_t experts = counts.size(), rank = static_cast<std::size_t>(ranks_->rank());
  std::vector<std::int64_t> each(experts * static_cast<std::size_t>(ranks_->size()));
  std::copy(counts.begin(), counts.end(), each.begin() + static_cast<std::ptrdiff_t>(rank * experts));
  add_up(each, *ranks_);
  std::fill(counts.begin(), counts.end(), 0);
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (i == rank * experts && samples == Samples::kAll) routed_before_ = counts;
    counts[i % experts] += each[i];
  }
}

void ActivationStream::each_expert_input(
    int block, const DeviceWeights& weights, std::span<const SeenExpert> experts, ExpertInput input,
    const std::function<void(std::size_t expert, const TensorView& x)>& see, Samples samples) {
  if (lanes_.size() != 1)
    fail(ErrorKind::kInternal, "inputs of experts are seen on one device, and there are {}", lanes_.size());
  const MixtureSpec& mixture = mixture_of_block(spec(block));
  Backend& backend = lanes_.front().backend();
  const auto add = [&](std::size_t i, const TensorView& x) {
    if (input == ExpertInput::kOfGateAndUp) return see(i, x);
    const std::array<std::size_t, 2> first = {0, static_cast<std::size_t>(x.rows())};
    see(i, inner_rows(backend, weights[0], {experts[i].expert, 1}, first, mixture.activation, x).view);
  };
  const auto add_all = [&](std::size_t i, const TensorView& x) {
    if (experts[i].weight == 1) return add(i, x);
    std::vector<std::int32_t> every(static_cast<std::size_t>(x.rows()));
    std::iota(every.begin(), every.end(), 0);
    const std::vector<float> weight(every.size(), experts[i].weight);
    add(i, scaled_rows_of(backend, x, every, weight).view);
  };
  see_inputs(mixture.input, block, weights, samples,
             [&](DeviceSamples& lane, const SampleChunk& chunk, const TensorView& x, std::size_t) {
               const RoutedRows routed =
                   route_rows(backend, spec(block), weights[0], mixture, x, stream_of(mixture, lane, chunk));
               for (std::size_t i = 0; i < experts.size(); ++i) {
                 if (!experts[i].routed) {
                   add_all(i, x);
                   continue;
                 }
                 const std::size_t first = routed.first[*experts[i].routed],
                                   end = routed.first[*experts[i].routed + 1];
                 if (first == end) continue;
                 add(i,
                     routed_rows_of(backend, mixture, x, std::span(routed.rows).subspan(first, end - first),
                                    std::span(routed.weights).subspan(first, end - first))
                         .view);
               }
             });
}

std::vector<InputStats> ActivationStream::expert_statistics(int block, const DeviceWeights& weights,
                                                            std::span<const SeenExpert> experts,
                                                            ExpertInput input, std::vector<RowSample>* rows) {
  const MixtureSpec& mixture = mixture_of_block(spec(block));
  Backend& backend = lanes_.front().backend();
  if (experts.empty()) return {};
  const std::int64_t channels = input == ExpertInput::kOfGateAndUp
                                    ? mixture.hidden
                                    : spec(block).at(experts.front().expert->inner).channels;
  GramSquare square(backend, channels);
  std::vector<std::unique_ptr<StatsCollector>> collectors;
  std::vector<std::int64_t> before;  // rows of each that were seen, or are another rank's and come first
  for (const SeenExpert& seen : experts) {
    collectors.push_back(std::make_unique<StatsCollector>(channels));
    before.push_back(ranks_->size() == 1 || rows == nullptr ? 0
                     : seen.routed                          ? routed_before_.at(*seen.routed)
                                                            : tokens_before());
    if (rows != nullptr) rows->emplace_back(seen.rows, channels);
  }
  each_expert_input(block, weights, experts, input, [&](std::size_t i, const TensorView& x) {
    collectors[i]->add(square, x, before[i]);
    if (rows != nullptr) (*rows)[i].add(backend, x, before[i]);
    before[i] += x.rows();
  });
  std::vector<InputStats> stats;
  for (const auto& collector : collectors) stats.push_back(collector->finish(*ranks_));
  for (std::size_t i = 0; rows != nullptr && i < experts.size(); ++i) (*rows)[i].join(*ranks_);
  return stats;
}

}  // namespace llmq
