// The calibration samples on their way through the blocks: the residual stream of all of them (FP32; in memory or in a
// file), everything else a chunk at a time.
//
// A chunk is a whole number of samples and depends on the recipe alone, so the order of every sum does too.
// Stages are those of model/decoder_block.h; inputs of linears are made again from the residual stream, but
// for those of o and down where the plan has memory for them (by row invariance the bytes are the same).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/threads.h"
#include "calibration/calibration_text.h"
#include "calibration/input_stats.h"
#include "calibration/row_sample.h"
#include "model/decoder_block.h"
#include "quant/residual_store.h"

namespace llmq {

// hidden F32 [tokens, hidden_size] = embedding of every token, sample after sample; the table's pages are
// released.
void embed_samples(const ForwardContext& context, const Checkpoint& checkpoint,
                   std::span<const std::vector<std::int32_t>> samples, const TensorView& hidden);

// kForSearch: evenly spaced chunks, enough for the one number that a scale search looks for.
enum class Samples : std::uint8_t { kAll, kForSearch };

// Of how many chunks one is run for a search, when there are `chunks` of `chunk_tokens` each.
std::size_t search_stride(std::size_t chunks, std::int64_t chunk_tokens);

// The largest magnitudes that one layer's cache held: keys after rotation, values.
struct KvExtremes {
  float keys = 0, values = 0;
};

class ActivationStream {
 public:
  // keep_inputs: what statistics over all samples saw at the inputs of o and down stays until finish_*. file: where the
  // residual stream is, if not in memory.
  ActivationStream(const ForwardContext& context, const CalibrationSet& calibration,
                   std::int64_t chunk_tokens, bool keep_inputs, std::unique_ptr<File> file = nullptr);

  void embed(const Checkpoint& checkpoint, const CalibrationSet& calibration);
  // What arrives at `site` of a block with these weights: shown chunk after chunk, or summed (StatsCollector says
  // what `gram_tokens` is); with `rows`, some of its rows as they are.
  void each_input(InputSite site, int block, const BlockWeights& weights, Samples samples,
                  const std::function<void(const TensorView& x)>& see);
  InputStats statistics(InputSite site, int block, const BlockWeights& weights, Samples samples,
                        RowSample* rows = nullptr, std::int64_t gram_tokens = kAllTokens);
  // residual += o_proj(attention) or down_proj(gated): the half of the block is done. Kept inputs are taken
  // as they are: no weight before them may have changed since their statistics.
  void finish_attention(int block, const BlockWeights& weights);
  void finish_mlp(const BlockWeights& weights);
  // Over all samples of the block whose attention was finished last; only where measure_kv() was called.
  KvExtremes kv_extremes() const { return kv_extremes_; }
  void measure_kv() { measures_kv_ = true; }

  // What the residual stream lacks: sum_t (r_t - h_t - W x_t)^T x_t [out, channels], FP64 sums of one chunk's each.
  // r is the residual stream of `original`, whose chunk c holds the samples of this one's chunk c * stride; W is the
  // linear as it is on the device, bias included. Nothing before `site` may have changed since its statistics.
  std::vector<double> missing_output(InputSite site, int block, const BlockWeights& weights, LinearRole role,
                                     ActivationStream& original, std::int64_t stride, ThreadPool& pool);
  std::int64_t tokens() const { return tokens_; }

 private:
  struct Chunk {
    std::int64_t first = 0;
    BatchRows rows;
  };
  std::int64_t width(InputSite site) const;
  std::size_t stride_of(Samples samples) const;  // of the chunks that are run
  // x at `site` for one chunk, in the stage buffers; a view of the compute dtype.
  TensorView run_to(InputSite site, int block, const BlockWeights& weights, const Chunk& chunk);
  TensorView residual(const Chunk& chunk);
  TensorView far_input(InputSite site, const Chunk& chunk) const;  // where x_o or x_down of a chunk lies
  // sum += turned [out, T] times across^T, `across` [channels, T] in host memory
  void add_products(std::vector<double>& sum, const std::vector<float>& turned, const TensorView& across,
                    std::int64_t out) const;
  void take_kv_extremes(const Chunk& chunk);
  void finish(InputSite site, LinearRole role, int block, const BlockWeights& weights);

  const ForwardContext& context_;
  std::int64_t tokens_, longest_chunk_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<std::int32_t>> tables_;  // block tables, one per place in a chunk
  bool keep_inputs_;
  std::optional<InputSite> kept_;  // the site whose inputs far_ holds, of all chunks
  ResidualStore hidden_;
  Buffer near_, far_, keys_, values_;
  KvPages pages_;
  bool measures_kv_ = false;
  KvExtremes kv_extremes_;
};

}  // namespace llmq
