// One device's share of the calibration samples: the residual stream of its chunks, and the stage buffers of
// one chunk.
//
// A lane's chunks are worked on one after another, by one thread at a time. Memory on the device: FP32 [rows
// of its chunks, hidden_size], or of one chunk where a file has the rest; the inputs of one stage; KV pages
// of one chunk; the inputs of o and down, of one chunk or of all.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "model/decoder_block.h"
#include "quant/pipeline/residual_store.h"

namespace llmq {

// The largest magnitudes that one layer's cache held: keys after rotation, values.
struct KvExtremes {
  float keys = 0, values = 0;
};

// Whole samples of one length.
struct SampleChunk {
  std::size_t lane = 0;    // which has it
  std::int64_t first = 0;  // its first row among the lane's
  BatchRows rows;
  std::int64_t tokens() const { return static_cast<std::int64_t>(rows.positions.size()); }
};

class DeviceSamples {
 public:
  struct Sizes {
    std::int64_t tokens = 0, longest_chunk = 0;  // of the lane; 0 tokens: nothing is allocated
    std::int64_t pages = 0, page_tokens = 0;     // of the longest chunk
    bool keep_inputs = false;
  };
  DeviceSamples(const ForwardContext& context, const Sizes& sizes, std::unique_ptr<File> file);

  const ForwardContext& context() const { return *context_; }
  Backend& backend() const { return context_->backend; }
  ResidualStore& hidden() { return hidden_; }
  TensorView residual(const SampleChunk& chunk) { return hidden_.load(chunk.first, chunk.tokens()); }
  std::int64_t width(InputSite site) const;
  // x at `site` for one chunk, in the stage buffers; a view of the compute dtype.
  TensorView run_to(InputSite site, int block, const BlockWeights& weights, const SampleChunk& chunk);
  // where x_o or x_down of a chunk lies
  TensorView far_input(InputSite site, const SampleChunk& chunk) const;
  // residual += role(x)
  void finish(LinearRole role, const BlockWeights& weights, const SampleChunk& chunk, const TensorView& x);
  // turned [out, T] times across^T: [out, channels] FP32; `turned` and `across` [channels, T] in host memory.
  std::vector<float> product(const std::vector<float>& turned, const TensorView& across,
                             std::int64_t out) const;

  void measure_kv() { measures_kv_ = true; }
  KvExtremes extremes;  // of the chunks run through attention since it was last set

 private:
  void take_kv_extremes(const SampleChunk& chunk);

  const ForwardContext* context_;
  Sizes sizes_;
  ResidualStore hidden_;
  Buffer near_, far_, keys_, values_;
  KvPages pages_;
  bool measures_kv_ = false;
};

}  // namespace llmq
