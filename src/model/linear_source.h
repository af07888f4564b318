// Where a linear's weight comes from: dense tensors, or packed ones that are unpacked through
// tensor/packed_layout.h.
//
// A checkpoint with a quantization_config (compressed-tensors, AutoAWQ gemm, GPTQ v1 and v2, modelopt)
// answers for its packed modules with the exact dequantized FP32 values; every other module is read as it is
// stored. Used by the forward pass, convert, diff and inspect alike.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/zeroed_numbers.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "tensor/kv_cache_type.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

// How a checkpoint stores its quantized modules.
enum class PackedFormat : std::uint8_t { kNone, kCompressedTensors, kAwqGemm, kGptq, kGptqV2, kModelopt };
// "dense", "compressed-tensors", "awq", "gptq", "gptq_v2", "modelopt"
const char* format_name(PackedFormat format);

// A packed module as its tensors say it, without a weight read.
struct PackedShape {
  QuantScheme scheme;
  std::int64_t out_features = 0, in_features = 0;
  bool column_groups = false;  // the columns of a group do not lie side by side
};

// A tensor in the file, to be looked at while it is held.
struct HeldTensor {
  TensorView view;
  Lease lease;
};

class LinearSource {
 public:
  // Reads quantization_config; Error(kUnsupported) naming a format, scheme or key that is not known here.
  static LinearSource open(const Checkpoint& checkpoint);
  PackedFormat format() const;
  std::optional<KvCacheType> kv_cache() const;  // QuantizationConfig::kv_cache()
  bool is_packed(const std::string& module) const;
  std::vector<std::string> packed_modules() const;  // in the checkpoint's order
  PackedShape packed_shape(const std::string& module) const;
  QuantizedMatrix quantized(
      const std::string& module) const;  // packed modules only; refuses NaN/Inf scales by name
  // FP32 [out, in]; packed modules dequantized exactly. Refuses NaN/Inf by tensor name unless
  // allow_nonfinite.
  ZeroedNumbers<float> weight(const LinearSpec& linear, ThreadPool& pool, bool allow_nonfinite = false) const;
  std::optional<std::vector<float>> bias(const LinearSpec& linear, bool allow_nonfinite = false) const;
  // Any dense tensor (norm, embedding, bias) as FP32, with the same refusal.
  std::vector<float> tensor(const std::string& name, bool allow_nonfinite = false) const;
  // The same as it is stored, after one pass over its values; any dtype that read_float32() knows. `see` gets
  // each band that was found finite (not of a tensor that is not in_order()).
  const StoredTensor& finite(const std::string& name, const Checkpoint::EachBand& see = {}) const;
  // Without a copy where the stored dtype can be prepared as it is (dense F32/BF16/F16, aligned, in order,
  // safetensors); else nullopt.
  std::optional<HeldTensor> stored(const LinearSpec& linear, bool allow_nonfinite = false) const;
  // A GGUF's tensor of blocks (tensor/ggml_codes.h), or what Checkpoint::read_codes() reads, as codes, rows
  // in the model's order; nullopt for every other. Refuses NaN/Inf by name.
  std::optional<QuantizedMatrix> block_codes(const std::string& tensor) const;
  const Checkpoint& checkpoint() const;
  // The tensors that hold a linear's weight, as far as there are any; what one reading of it counts at most,
  // and how much of that is of tensors that are kept from their first reading on.
  std::vector<std::string> tensors_of(const LinearSpec& linear) const;
  struct ReadBytes {
    std::uint64_t all = 0, kept = 0;
  };
  ReadBytes bytes_to_read(const LinearSpec& linear) const;
  void read_ahead(const LinearSpec& linear) const;  // Checkpoint::read_ahead() of those that are not kept

  // Shape checks against config.json without reading weights. check_packed returns the names of the module's
  // tensors.
  std::vector<std::string> check_packed(const LinearSpec& linear) const;
  void check_dense(
      const LinearSpec& linear) const;  // refuses a module that quantization_config says is packed

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// "model.layers.3.self_attn.k_scale"; `which` is k_scale or v_scale.
std::string kv_scale_name(const BlockSpec& block, std::string_view which);

}  // namespace llmq
