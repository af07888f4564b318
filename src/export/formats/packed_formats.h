// The on-disk formats of quantized models, one row each: what a linear's tensors are called, how they are
// packed, what config.json says of them.
//
// A format is its file (compressed_tensors.cpp, awq_gemm.cpp, gptq.cpp, dense_format.cpp), its row in
// packed_formats.cpp and its golden bytes; nobody else asks for a format by its name (docs/adding.md). The
// packing of words itself is tensor/packed_layout.h. Layouts in plain words: docs/reference/formats.md.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "export/formats/listed_names.h"
#include "export/formats/rotated_heads.h"
#include "io/safetensors.h"
#include "tensor/kv_cache_type.h"
#include "tensor/planned_module.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

struct PackedTensor {
  TensorDeclaration declaration;
  std::vector<std::byte> bytes;
};

struct ModelSpec;

// What the loaders of one program want of an output, beside its tensors.
struct LoaderWishes {
  std::string_view header = "pt";     // safetensors' metadata, `format`
  std::string_view config_twin = {};  // config.json says quantization_config by this name, too
  // An embedding that is the head, too, must be called so. Given: an index beside a single shard, too, which
  // counts parameters.
  std::string_view tied_table = {};
};

struct PackedFormatRow {
  std::string_view name;  // as recipes say it
  // The tensors of one linear, in declaration order; pack() gives the same ones with their bytes.
  std::vector<TensorDeclaration> (*declare)(const PlannedModule& module);
  std::vector<PackedTensor> (*pack)(const PlannedModule& module, const QuantizedMatrix& matrix);
  Json (*config)(const ListedModules& listed);  // config.json's quantization_config
  // Why the format cannot say this module beside `first`, the first module of the model; nothing when it can.
  std::optional<std::string> (*refusal)(const PlannedModule& module, const PlannedModule& first);
  // A file of its own that repeats quantization_config, where loaders want one; in other words, as
  // config_file has them of it.
  std::string_view config_copy = {};
  Json (*config_file)(const Json& quantization_config) = nullptr;
  bool float4 = false;   // stores codes of E2M1 (WeightType::kFloat4)
  bool float8 = false;   // and of E4M3 (WeightType::kFloat8)
  bool stacked = false;  // tensors of linears are parts of stacks (export/output/stack_assembly.h)
  bool dense = false;    // not packed at all: no quantization_config, and kept columns have a place
  std::uint64_t packing_bytes = 2;  // of a weight, at most, while pack() works: what it makes, and its copies
  // What scales are stored as. None: BF16 or F16, as the weights they come from (scale_dtype()).
  std::optional<DType> scale_dtype = std::nullopt;
  ZeroForm zero_form = ZeroForm::kInteger;
  // Why codes that are yet to be chosen may not be asymmetric, and what would do; empty: they may.
  std::string_view asymmetric_refusal = {}, asymmetric_hint = {};
  // What is said where columns carry the index of their group; empty: nothing.
  std::string_view column_groups_warning = {};
  // Why linears of a vision tower cannot be packed beside a decoder's; empty: they can.
  std::string_view tower_refusal = {};
  // Why the format has no such model; empty: it has.
  std::string (*model_refusal)(const ModelSpec& spec) = nullptr;
  LoaderWishes made_for = {};
  // config.json's kv_cache_scheme; null: the format has no place for the scales of a KV cache.
  Json (*kv_cache_scheme)(KvCacheType type) = nullptr;
  // config.json's transform_config; null: the format has no words for what lies in the weights already.
  Json (*transform_config)(std::span<const RotatedHeads> rotated, const WrapperSpec* wrapper) = nullptr;
  // Scales of a KV cache lie in "k_proj.k_scale" and "v_proj.v_scale", not beside the projections.
  bool kv_scales_in_projections = false;
  // How the one number beside E4M3 scales is stored. Where it is multiplied by, it is chosen as a power of
  // two: then its reciprocal, by which matrices have it, says the same.
  GlobalForm global_form = GlobalForm::kDivisor;
  // The model's own type stays in config.json, since scales are F32 whatever it is.
  bool keeps_dtype = false;
};

extern const PackedFormatRow kCompressedTensorsFormat;
extern const PackedFormatRow kAwqGemmFormat;
extern const PackedFormatRow kGptqFormat;
extern const PackedFormatRow kGptqV2Format;
extern const PackedFormatRow kMxfp4Format;
extern const PackedFormatRow kMlxFormatRow;
extern const PackedFormatRow kModeloptFormat;
extern const PackedFormatRow kDenseFormat;

// As configs of other programs say it: -1 where a scheme has no groups.
int group_size_of(const QuantScheme& scheme);

std::span<const PackedFormatRow* const> packed_formats();  // all but the dense one
// By name, the dense one too. Error(kUnsupported) listing those there are.
const PackedFormatRow& packed_format(std::string_view name);
std::vector<std::string> packed_format_names();  // the dense one's last

// The type of the format's scales for weights that are stored as `weight`.
DType scale_dtype(const PackedFormatRow& format, DType weight);
// Error(kUnsupported) where the format has no such model; `file` asked for it.
void check_model_written(const PackedFormatRow& format, const ModelSpec& spec, const std::string& file);
// Error(kUnsupported) where the format cannot hold the scales of a KV cache; `source`: the recipe's file.
void check_kv_cache_place(const PackedFormatRow& format, const std::string& source);
// Whether `format` can express every module's scheme; Error(kUnsupported) naming the first that it cannot and
// the formats that can.
void check_expressible(const std::string& format, std::span<const PlannedModule> modules);

// Stored bits of codes, scales and zeros of one linear, as `format` stores them; Error(kUnsupported) for an
// unknown format. Then the same per weight over `modules`.
std::uint64_t stored_bits(const std::string& format, const PlannedModule& module);
double stored_bits_per_weight(const std::string& format, std::span<const PlannedModule> modules);

// Helpers of the format files: raw bytes of words, and scales in their stored type (they are representable:
// tensor/quantized_matrix.h).
std::vector<std::byte> word_bytes(std::span<const std::uint32_t> words);
std::vector<std::byte> group_index_bytes(
    const QuantizedMatrix& matrix);  // I32 [in]: the group of each column
std::vector<std::byte> scale_bytes(std::span<const float> scales, DType dtype);

// The names under which any format llmq knows may store the weight of `module`, dense or packed.
std::vector<std::string> weight_tensor_names(const std::string& module);

}  // namespace llmq
