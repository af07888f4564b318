// The tensors of one packed module as the formats of compressed-tensors, AutoAWQ, GPTQ and modelopt store
// them. Every shape and dtype is checked against the scheme before a word is read. Cost: one pass over the
// packed words, one over the codes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "model/packed/quantization_config.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

inline constexpr const char* kPackedSuffix = ".weight_packed";
inline constexpr const char* kDenseSuffix = ".weight";
// Of what stands beside the dense name, or in its place, in any of the formats.
inline constexpr const char* kPackedSuffixes[] = {kPackedSuffix,
                                                  ".weight_scale",
                                                  ".weight_zero_point",
                                                  ".weight_shape",
                                                  ".weight_g_idx",
                                                  ".qweight",
                                                  ".scales",
                                                  ".qzeros",
                                                  ".g_idx",
                                                  ".input_scale",
                                                  ".input_global_scale",
                                                  ".weight_global_scale",
                                                  ".weight_scale_2"};
inline constexpr const char* kTransposedSuffix = ".qweight";  // of AWQ and GPTQ

// Shapes checked.
struct PackedTensors {
  QuantScheme scheme;
  std::int64_t out_features = 0, in_features = 0, groups = 0;
  const StoredTensor *codes = nullptr, *scales = nullptr, *zeros = nullptr, *shape = nullptr,
                     *index = nullptr, *input_scale = nullptr, *global_scale = nullptr;
  bool bytes = false;                      // a code is a byte: signed, or E4M3
  std::vector<std::int32_t> column_group;  // as `index` says it; empty without one
  bool reordered = false;                  // columns of different groups lie mixed
  PackedFormat format = PackedFormat::kNone;
  bool by_gptqmodel = false;
};

// Error(kBadInput) or Error(kUnsupported) naming the tensor that is missing or is not what the scheme says.
PackedTensors open_packed(const Checkpoint& checkpoint, const QuantizationConfig& quantization,
                          const std::string& module);
QuantizedMatrix read_packed(const Checkpoint& checkpoint, const PackedTensors& packed, bool allow_nonfinite);

// Where the codes of a module are; of the tensor of codes, its module.
const char* packed_suffix(PackedFormat format);
std::optional<std::string> module_of_codes(const StoredTensor& tensor, PackedFormat format);
// Whether the name of a dense weight may be that of codes (holds_codes() of packed_bytes.h tells).
bool codes_have_dense_names(PackedFormat format);

}  // namespace llmq
