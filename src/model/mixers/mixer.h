// What a mixer computes between the input of its sublayer and the input of its output linear, on one member.
// One file a kind: attention.cpp, latent_attention.cpp, delta.cpp, embedded.cpp, mlp.cpp, mixture.cpp.
// model/run_sublayer.h does the rest for all of them: norms, the output linear, the residual stream, rows in
// parts, the exchange
// between members.
#pragma once
#include <cstdint>
#include <vector>

#include "model/forward_context.h"
#include "model/mixers/tap.h"

namespace llmq {

// One member's part of a run over rows [first, first + x.rows()) of a batch.
struct MixerRun {
  const ForwardContext& context;
  const BlockWeights& weights;
  const BatchRows& rows;
  const KvPages& pages;
  TensorView hidden = {}, embedded = {};  // of all rows of the batch, as MemberBlock has them
  int block = 0;
  std::int64_t first = 0;
  const BlockSpec& spec() const { return context.spec.blocks.at(static_cast<std::size_t>(block)); }
  RowAdapters adapters() const {
    return {rows.adapters, static_cast<std::size_t>(block), first, context.member};
  }
};

// inner [T, the mixer's inner_width()] of the compute dtype, from x [T, hidden_size] of the compute dtype.
// Wide intermediates live for a chunk of rows only (RowChunks; FittingRows where a device has too little); by
// row invariance the size of a chunk changes no result.
void run_mixer(const MixerRun& run, const AttentionSpec& spec, const TensorView& x, const TensorView& inner);
void run_mixer(const MixerRun& run, const DeltaSpec& spec, const TensorView& x, const TensorView& inner);
void run_mixer(const MixerRun& run, const EmbeddedSpec& spec, const TensorView& x, const TensorView& inner);
void run_mixer(const MixerRun& run, const LatentAttentionSpec& spec, const TensorView& x,
               const TensorView& inner);
void run_mixer(const MixerRun& run, const MlpSpec& spec, const TensorView& x, const TensorView& inner);
// Without an output linear behind it, a mixer gives y F32 [T, hidden_size], which is added as it is.
void run_mixer(const MixerRun& run, const MixtureSpec& spec, const TensorView& x, const TensorView& y);

// The same past a tap that sees all rows of each of `sites`, which lie behind x; false where it stopped.
// `inner` is where it put the last of them.
template <class Spec>
bool run_tapped(const MixerRun& run, const Spec& spec, const TensorView& x, std::span<const SiteId> sites,
                Tap& tap, TensorView& inner) {
  const SiteId last = sites.back();
  inner = tap.place(run.spec().at(last), last, x.rows());
  run_mixer(run, spec, x, inner);
  return tap.at(last, inner) == Tap::Flow::kGoOn;
}
bool run_tapped(const MixerRun& run, const LatentAttentionSpec& spec, const TensorView& x,
                std::span<const SiteId> sites, Tap& tap, TensorView& inner);

// Queries, keys and values F32 [T, heads, head_dim] of rows x at these positions, normalized and rotated; of
// gated attention q is [T, heads, 2 * head_dim], each query and its gate, which stays as it is. A block that
// shares pages has queries alone.
void project(const ForwardContext& context, const BlockSpec& block, const BlockWeights& weights,
             const AttentionSpec& spec, const TensorView& x, std::span<const std::int32_t> positions,
             const TensorView& q, const TensorView& k, const TensorView& v, const RowAdapters& adapters = {});

// What rows that a gated delta net has read change in a state, and nothing else of them.
void replay_rows(Backend& backend, const DeltaSpec& spec, const BlockWeights& weights, const DeltaRows& rows,
                 const RecurrentState& state);

// The part of each sequence inside rows [first, first + count), renumbered from 0.
std::vector<SequenceRows> clip_sequences(const std::vector<SequenceRows>& sequences, std::int64_t first,
                                         std::int64_t count);

// The most parts of linears that a mixer asks for at once: those of a gated delta net.
inline constexpr std::size_t kMostParts = 4;
// Parts of linears of one x, at most kMostParts, and what adapters add to their results.
void run_linears(Backend& backend, const BlockWeights& weights, const TensorView& x,
                 std::span<const PartOutput> outputs, const RowAdapters& adapters);

// Norms of this block or of the model: y of any type that Backend::rms_norm() writes.
void run_norm(Backend& backend, const NormSpec& spec, const NormWeights& weights, const TensorView& x,
              const TensorView& y);

// What the mixer of `part` reads: x = before(h), or h itself, rounded to x's type. h F32 [T, hidden_size].
void run_before(Backend& backend, const BlockSpec& block, const BlockWeights& weights,
                const SublayerSpec& part, const TensorView& h, const TensorView& x);

}  // namespace llmq
