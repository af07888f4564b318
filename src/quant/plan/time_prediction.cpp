#include "quant/plan/time_prediction.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/seconds_since.h"
#include "export/formats/packed_formats.h"
#include "model/linear_source.h"
#include "quant/pipeline/residual_store.h"
#include "quant/pipeline/upstream_error.h"
#include "quant/plan/block_slice.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostWeights = 4 << 20;  // of the block that is run
constexpr double kShort = 0.1;                  // seconds, below which a run is repeated
constexpr int kRepeats = 4;
constexpr double kTelling = 0.5;  // seconds of a share of a block
constexpr const char *kReading = "reading", *kWriting = "writing", *kDense = "dense tensors",
                     *kForward = "forward", *kEmbedding = "embedding";

double to_double(std::int64_t value) { return static_cast<double>(value); }
double to_double(std::uint64_t value) { return static_cast<double>(value); }

std::int64_t weights_of(const BlockSpec& block) {
  std::int64_t weights = 0;
  for (const LinearSpec& linear : block.linears) weights += linear.out_features * linear.in_features;
  return weights;
}

// How many tokens of `samples` a part runs over; none where it does not depend on them.
class TokensOfParts {
 public:
  explicit TokensOfParts(const Plan& plan) : plan_(plan) {}

  double of_part(const std::string& part, std::int64_t samples) const {
    const std::int64_t length = plan_.calibration.sequence_length, all = samples * length,
                       per_chunk = std::max<std::int64_t>(1, plan_.chunk_tokens / length),
                       chunks = (samples + per_chunk - 1) / per_chunk,
                       chunk = std::min(samples, per_chunk) * length;
    const auto every = [&](std::int64_t stride) {
      return to_double(std::min(all, (chunks + stride - 1) / stride * chunk));
    };
    if (part == kForward || part == "forward and statistics" || part == kEmbedding) return to_double(all);
    if (part == "scale search")
      return every(static_cast<std::int64_t>(search_stride(static_cast<std::size_t>(chunks), chunk)));
    if (part == "original forward" || part == "upstream error")
      return every(original_stride(samples, length, plan_.chunk_tokens));
    return 0;
  }

 private:
  const Plan& plan_;
};

// Seconds of each part, by name.
using Seconds = std::map<std::string, double>;

double total(const Seconds& seconds) {
  double sum = 0;
  for (const auto& [part, found] : seconds) sum += found;
  return sum;
}

// Of one block: the plan, and who times it.
struct Probe {
  const Plan& plan;
  const BlockTimer& timer;

  Seconds timed(const Checkpoint& checkpoint, const ModelSpec& one, std::int64_t samples) const {
    const SecondsByPart parts = timer(checkpoint, one, samples);
    return {parts.begin(), parts.end()};
  }

  // What lasts for milliseconds finds its memory not there at first, and is held up now and then: the mean of
  // the rest.
  Seconds steady(const Checkpoint& checkpoint, const ModelSpec& one, std::int64_t samples) const {
    Seconds first = timed(checkpoint, one, samples);
    if (total(first) > kShort) return first;
    Seconds sum = timed(checkpoint, one, samples);
    for (int again = 1; again < kRepeats; ++again)
      for (const auto& [part, seconds] : timed(checkpoint, one, samples)) sum.at(part) += seconds;
    for (auto& [part, seconds] : sum) seconds /= kRepeats;
    return sum;
  }
};

// The block over all samples of the plan.
Seconds whole_samples(const Probe& probe, const Checkpoint& checkpoint, const ModelSpec& one) {
  const Plan& plan = probe.plan;
  probe.timed(checkpoint, one, 1);  // finds cold caches, and pages that are not there yet
  if (!plan.needs_calibration) return probe.steady(checkpoint, one, 1);
  const std::int64_t all = plan.calibration.samples,
                     chunk = std::max<std::int64_t>(1, plan.chunk_tokens / plan.calibration.sequence_length);
  // Where a file takes what does not fit, memory has room for one chunk. Where a chunk takes milliseconds,
  // two stay in the processor's cache, as the run's do not.
  const std::int64_t few = std::min(all, plan.activations_in_file ? (chunk + 1) / 2 : chunk);
  Seconds found = probe.steady(checkpoint, one, few);
  const std::int64_t chunks = plan.activations_in_file ? 1
                              : total(found) < kShort  ? 8
                                                       : 2,
                     more = std::min(all, chunks * chunk);
  if (more == few) return found;
  const Seconds at_more = probe.steady(checkpoint, one, more);
  const TokensOfParts tokens(plan);
  for (auto& [part, seconds] : found) {
    const double x = tokens.of_part(part, few), y = tokens.of_part(part, more), first = seconds,
                 second = at_more.at(part);
    if (x == y) {
      seconds = std::min(first, second);
      continue;
    }
    const double slope = std::clamp((second - first) / (y - x), 0.0, second / y);
    seconds = second + slope * (tokens.of_part(part, all) - y);
  }
  return found;
}

// c x^p + d x^(p+1) at x = 1, through what was found at `small` and at `large`; neither c nor d is negative.
double grown(double at_small, double small, double at_large, double large, int power) {
  const double a = at_small / std::pow(small, power), b = at_large / std::pow(large, power);
  if (!(large > small)) return b;
  const double slope = std::clamp((b - a) / (large - small), 0.0, b / large);
  return b + slope * (1 - large);
}

bool grows_with_products(const Plan& plan, const std::string& part) {
  if (part == "rounding") return plan.needs_calibration;
  if (part == "scale search") return plan.traits->searches_by_gram;
  return part == "losses" || part == "upstream error";
}

// A share of the block's width, and what it takes over all samples.
struct Share {
  double width = 0;
  Seconds seconds;
};

// The block over all samples, from itself or from the two largest shares of its width that are tried: narrow
// products run slower for their operations, so the share doubles until what it takes is long enough to tell.
Seconds whole_block(const Probe& probe, const Checkpoint& checkpoint, const ModelSpec& spec,
                    std::size_t block) {
  const std::int64_t weights = weights_of(spec.blocks[block]);
  std::int64_t divisor = 1;
  while (weights > kMostWeights * divisor * divisor) ++divisor;
  if (divisor == 1) return whole_samples(probe, checkpoint, single_block(spec, block));
  const LinearSource source = LinearSource::open(checkpoint);
  const auto share = [&](std::int64_t by) {
    const BlockSlice slice = slice_block(source, spec, block, by);
    return Share{std::sqrt(to_double(weights_of(slice.spec.blocks.front())) / to_double(weights)),
                 whole_samples(probe, slice.checkpoint, slice.spec)};
  };
  Share small = share(2 * divisor), large = share(divisor);
  while (divisor > 2 && total(large.seconds) < kTelling) {
    divisor = (divisor + 1) / 2;
    small = std::exchange(large, share(divisor));
  }
  for (auto& [part, found] : large.seconds)
    found = grown(small.seconds[part], small.width, found, large.width,
                  grows_with_products(probe.plan, part) ? 2 : 1);
  return std::move(large.seconds);
}

// The block with most quantized weights, and how many there are in all.
struct WidestBlock {
  std::size_t block = 0;
  double weights = 0, all = 0;
};

WidestBlock choose_block(const Plan& plan, const ModelSpec& spec) {
  std::map<std::string, double> planned;
  for (const PlannedModule& module : plan.modules)
    planned[module.module] = to_double(module.out_features) * to_double(module.in_features);
  WidestBlock chosen;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    double weights = 0;
    for (const LinearSpec& linear : spec.blocks[i].linears)
      if (const auto found = planned.find(linear.module); found != planned.end()) weights += found->second;
    chosen.all += weights;
    if (weights > chosen.weights) chosen.block = i, chosen.weights = weights;
  }
  return chosen;
}

// Seconds for each byte of the checkpoint that is looked at, from the disk or from its cache.
double touching_seconds(const Checkpoint& checkpoint, const ModelSpec& spec) {
  constexpr std::int64_t kMost = 1 << 22;
  const StoredTensor& tensor = checkpoint.at(spec.embedding.tensor);
  const std::int64_t width = tensor.view.cols(),
                     rows = std::clamp<std::int64_t>(kMost / width, 1, tensor.view.rows());
  const std::uint64_t row_bytes = tensor.view.bytes() / static_cast<std::uint64_t>(tensor.view.rows());
  std::vector<float> row(static_cast<std::size_t>(width));
  const Clock::time_point start = Clock::now();
  const Lease lease = checkpoint.hold_rows(tensor, 0, rows);
  for (std::int64_t r = 0; r < rows; ++r)
    to_float32(TensorView(static_cast<const void*>(tensor.view.as<const std::byte>() +
                                                   static_cast<std::uint64_t>(r) * row_bytes),
                          tensor.view.dtype, {1, width}),
               row);
  return seconds_since(start) / (to_double(rows) * to_double(row_bytes));
}

}  // namespace

WritingRates writing_rates(Io& io, const Path& directory) {
  constexpr std::size_t kPiece = std::size_t{1} << 20, kPieces = 16;
  const std::vector<std::byte> piece(kPiece, std::byte{1});
  const auto file = open_nameless(io, directory, kPiece * kPieces);
  WritingRates rates;
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < kPieces; ++i) file->write_at(i * kPiece, piece);
  rates.given = seconds_since(start) / static_cast<double>(kPiece * kPieces);
  file->sync();
  rates.synced = seconds_since(start) / static_cast<double>(kPiece * kPieces);
  constexpr int kSyncs = 4;
  const Clock::time_point small = Clock::now();
  for (std::size_t i = 0; i < kSyncs; ++i) {
    file->write_at(i * kPiece, std::span(piece).first(4096));
    file->sync();
  }
  rates.sync = seconds_since(small) / kSyncs;
  return rates;
}

// What does not depend on which linears are quantized goes by the blocks' number, the rest by their quantized
// weights.
SecondsByPart predict_blocks(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                             const BlockTimer& timer) {
  const WidestBlock chosen = choose_block(plan, spec);
  Seconds seconds = whole_block({plan, timer}, checkpoint, spec, chosen.block);
  const double blocks = static_cast<double>(spec.blocks.size()),
               weights = chosen.weights > 0 ? chosen.all / chosen.weights : 0;
  for (auto& [part, found] : seconds) {
    if (part == kEmbedding) continue;
    const bool passes = part == kForward || part == "original forward" || part == kReading;
    found *= passes ? blocks : weights;
  }
  if (const auto embedding = seconds.extract(kEmbedding)) seconds[kForward] += embedding.mapped();
  return {seconds.begin(), seconds.end()};
}

TimePrediction predict_time(const Plan& plan, const PlanCosts& costs, const Checkpoint& checkpoint,
                            const ModelSpec& spec, Backend& backend, Io& io, const Path& directory) {
  const Clock::time_point start = Clock::now();
  TimePrediction prediction;
  Seconds seconds;
  try {
    const BlockTimer timer = [&](const Checkpoint& from, const ModelSpec& one, std::int64_t samples) {
      return time_block(plan, from, one, backend, samples);
    };
    const SecondsByPart parts = predict_blocks(plan, checkpoint, spec, timer);
    seconds = {parts.begin(), parts.end()};
  } catch (const Error&
               error) {  // the run looks at more than one block, and says what is wrong with its own tokens
    if (error.kind() == ErrorKind::kInternal) throw;
    prediction.unknown = error.detail().message;
    return prediction;
  }
  double computing = 0, weights = 0;
  for (const auto& [part, found] : seconds) computing += found;
  for (const PlannedModule& module : plan.modules)
    weights += to_double(module.out_features) * to_double(module.in_features);
  const double packed = stored_bits_per_weight(plan.format, plan.modules) * weights / 8,
               dense = std::max(to_double(costs.bytes_out) - packed, 0.0),
               touching = touching_seconds(checkpoint, spec);
  const double ahead = (to_double(costs.bytes_in) - dense) * touching;  // while blocks are worked on
  seconds[kReading] += std::max(ahead - computing, 0.0);
  seconds[kDense] = dense * touching;
  try {
    const WritingRates rates = writing_rates(io, directory);
    // At the end of a block its shard is synced, then the journal.
    seconds[kDense] += dense * rates.given;
    seconds[kWriting] += packed * rates.synced + 2 * static_cast<double>(spec.blocks.size()) * rates.sync;
  } catch (
      const Error& error) {  // a dry run needs no place to write to; the run itself will say what is wrong
    if (error.kind() == ErrorKind::kInternal) throw;
  }
  for (const auto& [part, found] : seconds) prediction.add(part, found);
  return_freed_memory();
  prediction.probe_seconds = seconds_since(start);
  return prediction;
}

Json TimePrediction::to_json() const {
  if (!unknown.empty()) return Json::object({{"unknown", Json(unknown)}});
  Json list = Json::object();
  for (const auto& [part, time] : parts) list[part] = Json(time);
  return Json::object(
      {{"seconds", Json(seconds)}, {"probe_seconds", Json(probe_seconds)}, {"seconds_by_part", list}});
}

}  // namespace llmq
