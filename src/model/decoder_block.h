// The forward pass of one decoder block, cut into the stages at whose borders the linears' inputs arise.
//
//   attention_input: x_attn = rms_norm(h)                         -> readers q, k, v
//   attend:          x_o    = attention(rope(norm(q)), rope(norm(k)), v)   -> reader o
//   mlp_input:       x_mlp  = rms_norm(h)                         -> readers gate, up
//   gate:            x_down = act(gate) * up                      -> reader down
//
// Evaluation, generation and calibration run exactly these functions; calibration stops between them to take
// statistics and to swap a linear's weight for its quantized one. All tensors on the backend's device; T =
// rows of the batch.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/fitting_rows.h"
#include "model/kv_basis.h"
#include "model/linear_source.h"
#include "model/model_spec.h"
#include "model/prepared_adapter.h"
#include "model/row_chunks.h"

namespace llmq {

// One linear as a backend holds it.
struct BlockLinear {
  std::unique_ptr<PreparedWeight> weight;
  Buffer bias;  // F32 [out], empty without
};

struct BlockWeights {
  std::array<BlockLinear, kLinearRoles> linears;  // indexed by LinearRole
  Buffer input_norm, post_attention_norm;         // F32 [hidden]
  Buffer query_norm, key_norm;                    // F32 [head_dim] or empty
  KvBasis kv_basis;                               // of the pages that the block is run with
  BlockLinear& linear(LinearRole role) { return linears[static_cast<std::size_t>(role)]; }
  const BlockLinear& linear(LinearRole role) const { return linears[static_cast<std::size_t>(role)]; }
};

// Constant over a run: the model, the device, the arithmetic, the rope table on the device.
struct ForwardContext {
  const ModelSpec& spec;
  Backend& backend;
  Compute compute;
  Buffer cosines, sines;  // F32 [positions, head_dim/2]
  std::int64_t positions = 0;
  RowChunks chunks = {};
  std::size_t member = 0;  // of those that a model is divided over (model/divided_block.h)
  // of whoever goes on where memory runs out; null: that ends the work
  std::unique_ptr<FittingRows> fitting = {};
};
ForwardContext make_forward_context(const ModelSpec& spec, Backend& backend, Compute compute,
                                    std::int64_t positions);

// The rows of a batch: which sequence, which positions, which KV slots.
struct BatchRows {
  std::vector<std::int32_t> positions;  // [T]
  std::vector<std::int64_t> slots;      // [T]
  std::vector<SequenceRows> sequences;
  std::vector<AdapterRun> adapters;  // rising; of the rows that have one
};

// A packed weight of 16-bit activations: dequantized, as calibration runs it beside weights that are still
// dense; or as its codes where the backend keeps them, as evaluation and generation do.
enum class PackedWeights : std::uint8_t { kDequantized, kCodes };
std::unique_ptr<PreparedWeight> prepare_codes(Backend& backend, Compute compute,
                                              const QuantizedMatrix& matrix);
BlockLinear prepare_linear(Backend& backend, Compute compute, const LinearSource& source,
                           const LinearSpec& linear, bool allow_nonfinite = false,
                           PackedWeights packed = PackedWeights::kDequantized);
Buffer load_bias(Backend& backend, const LinearSource& source, const LinearSpec& linear,
                 bool allow_nonfinite = false);  // empty without
inline constexpr std::array<LinearRole, kLinearRoles> kAllRoles = {
    LinearRole::kQuery, LinearRole::kKey, LinearRole::kValue, LinearRole::kOutput,
    LinearRole::kGate,  LinearRole::kUp,  LinearRole::kDown};
// The weights of a linear divided by output rows, equal shares in this order; read once.
std::vector<BlockLinear> prepare_linear_shares(std::span<Backend* const> members, Compute compute,
                                               const LinearSource& source, const LinearSpec& linear,
                                               bool allow_nonfinite, PackedWeights packed);
// The norms of a block and the linears named. NaN and infinity in any of them are refused by name unless
// allow_nonfinite.
BlockWeights load_block(Backend& backend, Compute compute, const LinearSource& source, const ModelSpec& spec,
                        int block, bool allow_nonfinite = false,
                        std::span<const LinearRole> roles = kAllRoles,
                        PackedWeights packed = PackedWeights::kDequantized);
// Every member's share of the linears named, and the norms, which each has whole.
std::vector<BlockWeights> load_block_shares(std::span<Backend* const> members, Compute compute,
                                            const LinearSource& source, const ModelSpec& spec, int block,
                                            bool allow_nonfinite, std::span<const LinearRole> roles,
                                            PackedWeights packed);

// Stages. `hidden` F32 [T, hidden_size]; outputs x_* of the compute dtype.
void attention_input(const ForwardContext& context, const BlockWeights& weights, const TensorView& hidden,
                     const TensorView& x_attn);
// Queries, keys and values F32 [T, heads, head_dim] of rows x at these positions, normalized and rotated.
void project(const ForwardContext& context, const BlockWeights& weights, const TensorView& x,
             std::span<const std::int32_t> positions, const TensorView& q, const TensorView& k,
             const TensorView& v, const RowAdapters& adapters = {});
void attend(const ForwardContext& context, int block, const BlockWeights& weights, const TensorView& x_attn,
            const BatchRows& rows, const KvPages& pages, const TensorView& x_o);
void apply_linear(const ForwardContext& context, const BlockWeights& weights, LinearRole role,
                  const TensorView& x, const TensorView& y,
                  const RowAdapters& adapters = {});  // y F32 = linear(x)
void add_linear(const ForwardContext& context, const BlockWeights& weights, LinearRole role,
                const TensorView& x, const TensorView& hidden,
                const RowAdapters& adapters = {});  // hidden += linear(x)
void mlp_input(const ForwardContext& context, const BlockWeights& weights, const TensorView& hidden,
               const TensorView& x_mlp);
void gate(const ForwardContext& context, const BlockWeights& weights, const TensorView& x_mlp,
          const TensorView& x_down, const RowAdapters& adapters = {});

// All stages in order: hidden F32 [T, hidden_size] in place.
void forward_block(const ForwardContext& context, int block, const BlockWeights& weights,
                   const BatchRows& rows, const KvPages& pages, const TensorView& hidden);

}  // namespace llmq
