// One device's share of the calibration samples: the residual stream of its chunks, and the stage buffers of
// one chunk.
//
// The chunks of a device are worked on one after another, by one thread at a time. Memory on the device: FP32
// [rows of its chunks, hidden_size], or of one chunk where a file has the rest; of one chunk the input of a
// sublayer's first site and KV pages; of one chunk or of all the input of its last site. Of all chunks the
// pages of blocks that later ones read.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "model/embedding.h"
#include "model/run_sublayer.h"
#include "quant/pipeline/residual_store.h"

namespace llmq {

// The largest magnitudes that one layer's cache held: keys after rotation, values.
struct KvExtremes {
  float keys = 0, values = 0;
};

// Whole samples of one length.
struct SampleChunk {
  static constexpr std::size_t kElsewhere = SIZE_MAX;
  std::size_t lane = kElsewhere;  // which has it; kElsewhere: another rank's
  std::int64_t first = 0;         // its first row among the lane's
  BatchRows rows;
  std::vector<std::vector<std::int32_t>> samples;  // the ids, where blocks have an embedding of them
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

  // Of how many tokens what is held: the residual stream, inputs of a sublayer's first and last site (and of
  // that between them, where there is one), pages.
  struct Tokens {
    std::uint64_t residual = 0, first_site = 0, pages = 0, last_site = 0;
    std::uint64_t shared_pages = 0;  // of those that later blocks read
  };
  static std::uint64_t bytes(const ModelSpec& spec, Compute compute, const Tokens& tokens);

  const ForwardContext& context() const { return *context_; }
  Backend& backend() const { return context_->backend; }
  ResidualStore& hidden() { return hidden_; }
  TensorView residual(const SampleChunk& chunk) { return hidden_.load(chunk.first, chunk.tokens()); }
  // Where the tables lie that blocks have an embedding by.
  void embed_by(const Checkpoint& checkpoint) { checkpoint_ = &checkpoint; }
  // x at `site` of a block for one chunk, in the stage buffers; a view of the compute dtype.
  TensorView run_to(SiteId site, int block, const BlockWeights& weights, const SampleChunk& chunk);
  // Where the input of a sublayer's last site lies for a chunk.
  TensorView last_input(const SiteSpec& site, const SampleChunk& chunk) const;
  // residual += what sublayer `part` makes of x, the input of its last site.
  void finish(std::size_t part, int block, const BlockWeights& weights, const SampleChunk& chunk,
              const TensorView& x);
  // The same of the residual stream, all of the sublayer.
  void finish(std::size_t part, int block, const BlockWeights& weights, const SampleChunk& chunk);
  // turned [out, T] times across^T: [out, channels] FP32; `turned` and `across` [channels, T] in host memory.
  std::vector<float> product(const std::vector<float>& turned, const TensorView& across,
                             std::int64_t out) const;

  void measure_kv() { measures_kv_ = true; }
  KvExtremes extremes;  // of the chunks run through attention since it was last set

 private:
  struct HeldPages {
    Buffer keys, values;
  };
  MemberBlock in_block(int block, std::size_t part, const BlockWeights& weights, const SampleChunk& chunk);
  KvPages pages(int block, const SampleChunk& chunk) const;
  TensorView embedded(int block, const SampleChunk& chunk);
  void take_kv_extremes(int block, const SampleChunk& chunk);

  const ForwardContext* context_;
  Sizes sizes_;
  ResidualStore hidden_;
  Buffer first_, between_, last_, keys_, values_;  // of sites; of pages
  std::map<std::size_t, HeldPages> held_;          // by the block that others read
  const Checkpoint* checkpoint_ = nullptr;
  std::optional<SampledBlockEmbedding> embedding_;  // of the block at work
  Buffer embedded_;
  bool measures_kv_ = false;
};

}  // namespace llmq
