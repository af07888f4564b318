// The calibration samples on their way through the blocks: the residual stream of all of them (FP32; in
// memory or in a file), everything else a chunk at a time; on one device or spread over several
// (quant/pipeline/device_samples.h).
//
// Of several ranks each has a run of the chunks and works on it alone: it is shown inputs of its own, and
// what is summed over samples is joined (calibration/joined_sums.h), so that every rank learns what one
// process would. Whatever joins is of all ranks.
//
// A chunk is a whole number of samples and depends on the recipe alone, so the order of every sum does too.
// It runs the walk of model/run_sublayer.h; inputs of linears are made again from the residual stream, but
// for those of a sublayer's last site where the plan has memory for them (by row invariance the bytes are the
// same).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "calibration/calibration_text.h"
#include "calibration/input_stats.h"
#include "calibration/row_sample.h"
#include "model/embedding.h"
#include "model/run_sublayer.h"
#include "quant/pipeline/device_samples.h"

namespace llmq {

// Of the pages of keys and values that a chunk of samples takes, and how many pages a sample has.
inline constexpr int kPageTokens = 16;
inline std::int64_t sample_pages(std::int64_t length) { return (length + kPageTokens - 1) / kPageTokens; }

// kForSearch: evenly spaced chunks, enough for the one number that a scale search looks for.
enum class Samples : std::uint8_t { kAll, kForSearch };

// One of so many chunks is run for a search, when there are `chunks` of `chunk_tokens` each.
std::size_t search_stride(std::size_t chunks, std::int64_t chunk_tokens);

// Error(kBadInput) where a channel that `site` of `block` saw is infinite or not a number; `model`: the
// checkpoint's path, which the error names.
void check_finite(const InputStats& stats, const BlockSpec& block, SiteId site, const Path& model,
                  Compute compute);

// A block's weights, on every device of a run.
class DeviceWeights {
 public:
  DeviceWeights(const BlockWeights& one) : on_({&one, 1}) {}
  DeviceWeights(const std::vector<BlockWeights>& on) : on_(on) {}
  const BlockWeights& operator[](std::size_t device) const { return on_[device]; }

 private:
  std::span<const BlockWeights> on_;
};

// An expert of a mixture and the rows of which statistics are taken: those that the router sends to it, or
// all.
struct SeenExpert {
  const ExpertSpec* expert = nullptr;
  std::optional<std::size_t> routed;  // its place among the router's; none: all rows
  std::int64_t rows = 0;              // how many those are
  float weight = 1;                   // of all rows, where an expert's weights multiply what it reads
};
enum class ExpertInput : std::uint8_t { kOfGateAndUp, kOfOutput };

// How many chunks there are of so many samples, and which of all: [first, end).
std::int64_t chunk_count(std::int64_t samples, std::int64_t length, std::int64_t chunk_tokens);
struct ChunkRun {
  std::size_t first = 0, end = 0;
  bool has(std::size_t chunk) const { return chunk >= first && chunk < end; }
  // The same samples' among every stride-th of the chunks.
  ChunkRun every(std::size_t stride) const;
};
// Rank r of N has the chunks from r C / N to (r + 1) C / N.
ChunkRun own_chunks(std::int64_t chunks, const Ranks& ranks);

// Where samples lie.
struct SamplePlace {
  // What statistics over all samples saw at a sublayer's last site stays until finish().
  bool keep_inputs = false;
  OpenStore open_store = {};  // where the residual stream is, if not in memory
  // On several devices, chunk c * stride lies where another stream has its chunk c.
  std::int64_t stride = 1;
  Ranks* ranks = nullptr;            // who share the samples; null: nobody
  std::optional<ChunkRun> own = {};  // of this rank, where not own_chunks()
};

class ActivationStream {
 public:
  // One context a device, all of one arithmetic; they outlive the stream. Chunks are given to the devices in
  // turn and each device is driven by a thread, which adds to sums when it is ready: no sum has an order
  // (tensor/exact_sums.h), so the bits do not depend on how many devices there are.
  ActivationStream(std::span<const ForwardContext> devices, const CalibrationSet& calibration,
                   std::int64_t chunk_tokens, const SamplePlace& place);
  ActivationStream(const ForwardContext& context, const CalibrationSet& calibration,
                   std::int64_t chunk_tokens, bool keep_inputs)
      : ActivationStream(std::span(&context, 1), calibration, chunk_tokens, {keep_inputs}) {}

  void embed(const Checkpoint& checkpoint, const CalibrationSet& calibration);
  // What arrives at `site` of a block with these weights: shown one chunk at a time, or summed
  // (StatsCollector says what `gram_tokens` is); with `rows`, some of its rows as they are.
  void each_input(SiteId site, int block, const DeviceWeights& weights, Samples samples,
                  const std::function<void(const TensorView& x)>& see);
  InputStats statistics(SiteId site, int block, const DeviceWeights& weights, Samples samples,
                        RowSample* rows = nullptr, std::int64_t gram_tokens = kAllTokens);
  // How many rows the router of the block's mixture sends to each expert; and by how much they count: each
  // by the square of the weight that multiplies it, or by 1.
  std::vector<std::int64_t> routed_rows(int block, const DeviceWeights& weights,
                                        std::vector<double>* squares = nullptr,
                                        Samples samples = Samples::kAll);
  // What these experts read, times the weights that multiply it, chunk after chunk: `see` is told which of
  // them. An expert without rows in a chunk is not shown. On one device.
  void each_expert_input(int block, const DeviceWeights& weights, std::span<const SeenExpert> experts,
                         ExpertInput input,
                         const std::function<void(std::size_t expert, const TensorView& x)>& see,
                         Samples samples = Samples::kAll);
  // Statistics of what these experts read, of one width, each of its own rows, so that they do not depend on
  // who is asked for beside it; with `rows`, some of them as they are, of experts whose rows routed_rows()
  // has counted. One pass over the samples, and a triangle for each expert; on one device.
  std::vector<InputStats> expert_statistics(int block, const DeviceWeights& weights,
                                            std::span<const SeenExpert> experts, ExpertInput input,
                                            std::vector<RowSample>* rows = nullptr);
  // residual += the output of sublayer `part` of the block. Kept inputs are taken as they are: no weight
  // before them may have changed since their statistics.
  void finish(std::size_t part, int block, const DeviceWeights& weights);
  // Over all samples of the block whose attention was run last; only where measure_kv() was called.
  KvExtremes kv_extremes() const;
  void measure_kv();

  // What the residual stream lacks: sum_t ((r_t - h_t) / s - W x_t)^T x_t [out, channels], the real sum of
  // every chunk's; s is the sublayer's residual scale, x the input of the last site of sublayer `part`. r is
  // the residual stream of `original`, whose chunk c holds the samples of this one's chunk c * stride; W is
  // the sublayer's output linear as it is on the devices, bias included. Nothing before the site may have
  // changed since its statistics.
  ZeroedNumbers<double> output_error_products(std::size_t part, int block, const DeviceWeights& weights,
                                              ActivationStream& original, std::int64_t stride);
  std::int64_t tokens() const { return tokens_; }

 private:
  // `place`: of the chunk among those that are run.
  using EachChunk = std::function<void(DeviceSamples& lane, const SampleChunk& chunk, std::size_t place)>;
  using EachInput = std::function<void(DeviceSamples& lane, const SampleChunk& chunk, const TensorView& x,
                                       std::size_t place)>;
  std::size_t stride_of(Samples samples) const;  // of the chunks that are run
  // Every stride-th chunk, on the thread of its device, in order on each.
  void each_chunk(std::size_t stride, const EachChunk& work);
  void see_inputs(SiteId site, int block, const DeviceWeights& weights, Samples samples,
                  const EachInput& see);
  void forget_kv_extremes();
  void count_of_all(std::vector<std::int64_t>& counts, Samples samples);
  std::int64_t tokens_before() const;  // of the chunks of ranks before this one
  const BlockSpec& spec(int block) const;

  Compute compute_;
  std::int64_t tokens_, longest_chunk_;
  Ranks* ranks_;
  ChunkRun own_;
  std::vector<SampleChunk> chunks_;                // of all ranks
  std::vector<std::vector<std::int32_t>> tables_;  // block tables, one per place in a chunk
  bool keep_inputs_;
  std::vector<std::int64_t> routed_before_;  // rows of ranks before this one that routed_rows() counted
  std::optional<SiteId> kept_;               // the site whose inputs the devices hold, of all chunks
  std::vector<DeviceSamples> lanes_;         // one a device
};

}  // namespace llmq
