#include "quant/pipeline/activation_stream.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "base/error.h"
#include "base/side_by_side.h"
#include "calibration/joined_sums.h"
#include "device/named_range.h"
#include "tensor/tensor_view.h"

namespace llmq {
namespace {

constexpr std::int64_t kSearchTokens = 4096;  // at least, where there are as many

// Tokens of a chunk: a whole number of samples, all of one length.
std::int64_t longest_chunk(const CalibrationSet& calibration, std::int64_t chunk_tokens) {
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const std::int64_t per_chunk = std::max<std::int64_t>(1, chunk_tokens / length);
  return std::min(per_chunk, static_cast<std::int64_t>(calibration.samples.size())) * length;
}

// Neighbours lie on different devices, and so do chunks that are `stride` apart.
std::size_t lane_of(std::size_t chunk, std::size_t stride, std::size_t devices) {
  return (chunk / stride + chunk % stride) % devices;
}

}  // namespace

void check_finite(const InputStats& stats, const BlockSpec& block, SiteId site, const Path& model,
                  Compute compute) {
  const std::vector<double> seen = stats.mean_absolute();
  if (std::all_of(seen.begin(), seen.end(), [](double value) { return std::isfinite(value); })) return;
  fail(ErrorKind::kBadInput,
       {fmt::format("the activations {} are not finite", block.at(site).name), model.string(), block.prefix,
        compute == Compute::kBFloat16 ? "try --compute float32" : "the checkpoint's weights may be damaged"});
}

std::size_t search_stride(std::size_t chunks, std::int64_t chunk_tokens) {
  const auto wanted = static_cast<std::size_t>((kSearchTokens + chunk_tokens - 1) / chunk_tokens);
  return std::max<std::size_t>(1, chunks / wanted);
}

std::int64_t chunk_count(std::int64_t samples, std::int64_t length, std::int64_t chunk_tokens) {
  const std::int64_t per_chunk = std::max<std::int64_t>(1, chunk_tokens / length);
  return (samples + per_chunk - 1) / per_chunk;
}

ChunkRun ChunkRun::every(std::size_t stride) const {
  return {(first + stride - 1) / stride, (end + stride - 1) / stride};
}

ChunkRun own_chunks(std::int64_t chunks, const Ranks& ranks) {
  const Dealt own = own_part(static_cast<std::size_t>(chunks), ranks);
  return {own.first, own.end};
}

ActivationStream::ActivationStream(std::span<const ForwardContext> devices, const CalibrationSet& calibration,
                                   std::int64_t chunk_tokens, const SamplePlace& place)
    : compute_(devices.front().compute),
      tokens_(calibration.tokens()),
      longest_chunk_(longest_chunk(calibration, chunk_tokens)),
      ranks_(&or_alone(place.ranks)),
      keep_inputs_(place.keep_inputs) {
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const auto samples = static_cast<std::int64_t>(calibration.samples.size());
  const std::int64_t per_chunk = longest_chunk_ / length, pages_each = sample_pages(length);
  own_ = place.own ? *place.own : own_chunks(chunk_count(samples, length, chunk_tokens), *ranks_);
  for (std::int64_t at = 0; at < std::min(per_chunk, samples); ++at) {
    std::vector<std::int32_t>& table = tables_.emplace_back();
    for (std::int64_t p = 0; p < pages_each; ++p)
      table.push_back(static_cast<std::int32_t>(at * pages_each + p));
  }
  DeviceSamples::Sizes sizes;
  sizes.longest_chunk = longest_chunk_;
  sizes.pages = static_cast<std::int64_t>(tables_.size()) * pages_each;
  sizes.page_tokens = kPageTokens;
  sizes.keep_inputs = place.keep_inputs;
  std::vector<std::int64_t> lane_tokens(devices.size());
  for (std::int64_t first = 0; first < samples; first += per_chunk) {
    const std::size_t number = chunks_.size(),
                      lane = lane_of(number, static_cast<std::size_t>(place.stride), devices.size());
    SampleChunk& chunk = chunks_.emplace_back();
    for (std::int64_t at = 0; at < std::min(per_chunk, samples - first); ++at) {
      for (std::int64_t p = 0; p < length; ++p) {
        chunk.rows.positions.push_back(static_cast<std::int32_t>(p));
        chunk.rows.slots.push_back(at * pages_each * kPageTokens + p);
      }
      chunk.rows.sequences.push_back({at * length, length, 0, tables_[static_cast<std::size_t>(at)]});
    }
    if (!own_.has(number)) continue;
    chunk.lane = lane;
    chunk.first = lane_tokens[lane];
    lane_tokens[lane] += chunk.tokens();
    if (devices.front().spec.block_embedding)
      chunk.samples.assign(calibration.samples.begin() + first,
                           calibration.samples.begin() + first + std::min(per_chunk, samples - first));
  }
  for (std::size_t lane = 0; lane < devices.size(); ++lane) {
    sizes.tokens = lane_tokens[lane];
    const auto bytes =
        static_cast<std::uint64_t>(sizes.tokens * devices[lane].spec.hidden_size) * sizeof(float);
    lanes_.emplace_back(devices[lane], sizes,
                        place.open_store && bytes > 0 ? place.open_store(bytes) : nullptr);
  }
}

const BlockSpec& ActivationStream::spec(int block) const {
  return lanes_.front().context().spec.blocks[static_cast<std::size_t>(block)];
}

void ActivationStream::measure_kv() {
  for (DeviceSamples& lane : lanes_) lane.measure_kv();
}

KvExtremes ActivationStream::kv_extremes() const {
  KvExtremes most;
  for (const DeviceSamples& lane : lanes_) {
    most.keys = std::max(most.keys, lane.extremes.keys);
    most.values = std::max(most.values, lane.extremes.values);
  }
  std::array<float, 2> both = {most.keys, most.values};
  take_largest(both, *ranks_);
  return {both[0], both[1]};
}

void ActivationStream::forget_kv_extremes() {
  for (DeviceSamples& lane : lanes_) lane.extremes = {};
}

void ActivationStream::embed(const Checkpoint& checkpoint, const CalibrationSet& calibration) {
  for (DeviceSamples& lane : lanes_) lane.embed_by(checkpoint);
  const std::span<const std::vector<std::int32_t>> samples = calibration.samples;
  std::size_t first = 0;
  for (const SampleChunk& chunk : chunks_) {
    const std::span<const std::vector<std::int32_t>> own =
        samples.subspan(first, chunk.rows.sequences.size());
    first += own.size();
    if (chunk.lane == SampleChunk::kElsewhere) continue;
    DeviceSamples& lane = lanes_[chunk.lane];
    embed_samples(lane.backend(), lane.context().spec, checkpoint, own,
                  lane.hidden().begin(chunk.first, chunk.tokens()));
    lane.hidden().save();
  }
}

// They are of the longest.
std::int64_t ActivationStream::tokens_before() const {
  return static_cast<std::int64_t>(own_.first) * longest_chunk_;
}

void ActivationStream::each_chunk(std::size_t stride, const EachChunk& work) {
  side_by_side(lanes_.size(), [&](std::size_t lane, const std::atomic<bool>& failed) {
    for (std::size_t place = 0; place * stride < chunks_.size() && !failed; ++place)
      if (const SampleChunk& chunk = chunks_[place * stride]; chunk.lane == lane)
        work(lanes_[lane], chunk, place);
  });
}

std::size_t ActivationStream::stride_of(Samples samples) const {
  return samples == Samples::kAll ? 1 : search_stride(chunks_.size(), longest_chunk_);
}

void ActivationStream::see_inputs(SiteId site, int block, const DeviceWeights& weights, Samples samples,
                                  const EachInput& see) {
  kept_.reset();
  const SublayerSpec& sublayer = spec(block).sublayer_of(site);
  const bool last = site == sublayer.sites.back();
  if (last && sublayer.has_pages()) forget_kv_extremes();
  each_chunk(stride_of(samples), [&](DeviceSamples& lane, const SampleChunk& chunk, std::size_t place) {
    see(lane, chunk, lane.run_to(site, block, weights[chunk.lane], chunk), place);
  });
  if (keep_inputs_ && samples == Samples::kAll && last && !sublayer.beside) kept_ = site;
}

void ActivationStream::each_input(SiteId site, int block, const DeviceWeights& weights, Samples samples,
                                  const std::function<void(const TensorView&)>& see) {
  std::mutex mutex;
  see_inputs(site, block, weights, samples,
             [&](DeviceSamples&, const SampleChunk&, const TensorView& x, std::size_t) {
               const std::lock_guard lock(mutex);
               see(x);
             });
}

InputStats ActivationStream::statistics(SiteId site, int block, const DeviceWeights& weights, Samples samples,
                                        RowSample* rows, std::int64_t gram_tokens) {
  const std::int64_t channels = spec(block).at(site).channels;
  std::vector<std::int64_t> before = {0};  // tokens of the chunks before each that is run
  for (std::size_t i = 0; i < chunks_.size(); i += stride_of(samples))
    before.push_back(before.back() + chunks_[i].tokens());
  if (rows != nullptr) *rows = RowSample(before.back(), channels);
  StatsCollector collector(channels, gram_tokens);
  std::vector<GramSquare> squares;
  for (const DeviceSamples& lane : lanes_) squares.emplace_back(lane.backend(), channels);
  std::mutex mutex;  // of the sampled rows
  see_inputs(site, block, weights, samples,
             [&](DeviceSamples& lane, const SampleChunk& chunk, const TensorView& x, std::size_t place) {
               collector.add(squares[chunk.lane], x, before[place]);
               if (rows == nullptr) return;
               const std::lock_guard lock(mutex);
               rows->add(lane.backend(), x, before[place]);
             });
  squares.clear();
  if (rows != nullptr) rows->join(*ranks_);
  return collector.finish(*ranks_);
}

void ActivationStream::finish(std::size_t part, int block, const DeviceWeights& weights) {
  const SublayerSpec& sublayer = spec(block).sublayers.at(part);
  if (sublayer.joins_next) return kept_.reset();  // the next one runs it
  const SiteId site = sublayer.sites.back();
  const SiteSpec& last = spec(block).at(site);
  if (sublayer.joined || (sublayer.has_pages() && kept_ != site)) forget_kv_extremes();
  each_chunk(1, [&](DeviceSamples& lane, const SampleChunk& chunk, std::size_t) {
    const NamedRange range(lane.backend(), fmt::format("{} forward", last.name));
    const BlockWeights& own = weights[chunk.lane];
    if (sublayer.beside || sublayer.outputs().empty()) return lane.finish(part, block, own, chunk);
    lane.finish(part, block, own, chunk,
                kept_ == site ? lane.last_input(last, chunk) : lane.run_to(site, block, own, chunk));
  });
  kept_.reset();
}

}  // namespace llmq
