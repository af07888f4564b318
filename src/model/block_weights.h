// The weights of one decoder block as backends hold them.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/kv_basis.h"
#include "model/linear_source.h"
#include "model/model_spec.h"

namespace llmq {

struct LinearPart {
  std::unique_ptr<PreparedWeight> weight;
  Buffer bias;  // F32 [rows of the part], empty without
};

// One linear: its parts, one behind another as LinearSpec::parts says, each ready to be multiplied by itself.
// Empty: not loaded.
struct BlockLinear {
  std::vector<LinearPart> parts;
  std::size_t bytes() const;
};

struct NormWeights {
  Buffer gain, bias;  // F32 [width]; the gain is what x is multiplied by, the bias is empty without
};

struct BlockWeights {
  BlockWeights() = default;
  explicit BlockWeights(const BlockSpec& block)
      : linears(block.linears.size()),
        norms(block.norms.size()),
        tensors(block.tensors.size()),
        host_tensors(block.tensors.size()) {}
  std::vector<BlockLinear> linears;              // by LinearId
  std::vector<NormWeights> norms;                // by NormId
  std::vector<Buffer> tensors;                   // by TensorId, F32
  std::vector<std::vector<float>> host_tensors;  // by TensorId: those that are on the host
  KvBasis kv_basis;                              // of the pages that the block is run with

  BlockLinear& at(LinearId id) { return linears.at(static_cast<std::size_t>(id)); }
  const BlockLinear& at(LinearId id) const { return linears.at(static_cast<std::size_t>(id)); }
  const LinearPart& at(Part part) const { return at(part.linear).parts.at(part.part); }
  const Buffer& at(TensorId id) const { return tensors.at(static_cast<std::size_t>(id)); }
  std::span<const float> on_host(TensorId id) const { return host_tensors.at(static_cast<std::size_t>(id)); }
  NormWeights& at(NormId id) { return norms.at(static_cast<std::size_t>(id)); }
  const NormWeights& at(NormId id) const { return norms.at(static_cast<std::size_t>(id)); }
};

// One row of values; empty where the buffer is.
TensorView vector_view(const Buffer& buffer);

// A packed weight of 16-bit activations: dequantized, as calibration runs it beside weights that are still
// dense; or as its codes where the backend keeps them, as evaluation and generation do.
enum class PackedWeights : std::uint8_t { kDequantized, kCodes };
std::unique_ptr<PreparedWeight> prepare_codes(Backend& backend, Compute compute,
                                              const QuantizedMatrix& matrix);

// Of a linear whose weight is in host memory: `weight` [out, in] of a plain type, or codes. Biases stay as
// they are.
void set_weight(Backend& backend, Compute compute, const LinearSpec& linear, const TensorView& weight,
                BlockLinear& into);
void set_weight(Backend& backend, Compute compute, const LinearSpec& linear, const QuantizedMatrix& matrix,
                BlockLinear& into);
void set_bias(Backend& backend, const LinearSpec& linear, std::span<const float> bias, BlockLinear& into);

// NaN and infinity in anything that is loaded are refused by name unless allow_nonfinite.
BlockLinear prepare_linear(Backend& backend, Compute compute, const LinearSource& source,
                           const LinearSpec& linear, bool allow_nonfinite = false,
                           PackedWeights packed = PackedWeights::kDequantized);
void load_bias(Backend& backend, const LinearSource& source, const LinearSpec& linear, bool allow_nonfinite,
               BlockLinear& into);
// The weights of a linear divided by output rows, equal shares of each part in this order; read once.
std::vector<BlockLinear> prepare_linear_shares(std::span<Backend* const> members, Compute compute,
                                               const LinearSource& source, const LinearSpec& linear,
                                               bool allow_nonfinite, PackedWeights packed);

NormWeights load_norm(Backend& backend, const NormSpec& norm, std::span<const float> gain,
                      std::span<const float> bias);
NormWeights load_norm(Backend& backend, const LinearSource& source, const NormSpec& norm,
                      bool allow_nonfinite = false);

// Those of a block's mixers, each on the device or on the host: read once for all members, which have their
// heads' own or the whole.
void load_mixer_tensors(std::span<Backend* const> members, const LinearSource& source, const BlockSpec& block,
                        bool allow_nonfinite, std::span<BlockWeights> shares);

// The norms of a block, the tensors of its mixers and the linears named.
BlockWeights load_block(Backend& backend, Compute compute, const LinearSource& source, const BlockSpec& block,
                        std::span<const LinearId> linears, bool allow_nonfinite = false,
                        PackedWeights packed = PackedWeights::kDequantized);
// Those of all linears.
BlockWeights load_block(Backend& backend, Compute compute, const LinearSource& source, const BlockSpec& block,
                        bool allow_nonfinite = false, PackedWeights packed = PackedWeights::kDequantized);
// Every member's share of all linears, and the norms, which each has whole.
std::vector<BlockWeights> load_block_shares(std::span<Backend* const> members, Compute compute,
                                            const LinearSource& source, const BlockSpec& block,
                                            bool allow_nonfinite, PackedWeights packed);

}  // namespace llmq
