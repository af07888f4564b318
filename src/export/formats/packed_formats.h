// The on-disk formats of quantized models, one row each: what a linear's tensors are called, how they are
// packed, what config.json says of them.
//
// A format is its file (compressed_tensors.cpp, awq_gemm.cpp, gptq.cpp, dense_weights.cpp), its row in
// packed_formats.cpp and its golden bytes. The packing of words itself is tensor/packed_layout.h. Layouts in
// plain words: docs/formats.md.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "export/output/model_writer.h"
#include "io/safetensors.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

struct PackedTensor {
  TensorDeclaration declaration;
  std::vector<std::byte> bytes;
};

struct PackedFormatRow {
  std::string_view name;  // as recipes say it
  // The tensors of one linear, in declaration order; pack() gives the same ones with their bytes.
  std::vector<TensorDeclaration> (*declare)(const PlannedModule& module);
  std::vector<PackedTensor> (*pack)(const PlannedModule& module, const QuantizedMatrix& matrix);
  // config.json's quantization_config. `ignored`: linears left dense.
  Json (*config)(std::span<const PlannedModule> modules, std::span<const std::string> ignored);
  // Why the format cannot say this module beside `first`, the first module of the model; nothing when it can.
  std::optional<std::string> (*refusal)(const PlannedModule& module, const PlannedModule& first);
  std::string_view config_copy =
      {};              // a file of its own that repeats quantization_config, where loaders want one
  bool dense = false;  // not packed at all: no quantization_config, and kept columns have a place
  std::uint64_t packing_bytes = 2;  // of a weight, at most, while pack() works: what it makes, and its copies
};

extern const PackedFormatRow kCompressedTensorsFormat;
extern const PackedFormatRow kAwqGemmFormat;
extern const PackedFormatRow kGptqFormat;
extern const PackedFormatRow kGptqV2Format;
extern const PackedFormatRow kDenseFormat;

std::span<const PackedFormatRow* const> packed_formats();  // all but the dense one
// By name, the dense one too. Error(kUnsupported) listing those there are.
const PackedFormatRow& packed_format(std::string_view name);

// Helpers of the format files: raw bytes of words, and scales in their stored type (they are representable:
// tensor/quantized_matrix.h).
std::vector<std::byte> word_bytes(std::span<const std::uint32_t> words);
std::vector<std::byte> group_index_bytes(
    const QuantizedMatrix& matrix);  // I32 [in]: the group of each column
std::vector<std::byte> scale_bytes(std::span<const float> scales, DType dtype);

// The names under which any format llmq knows may store the weight of `module`, dense or packed.
std::vector<std::string> weight_tensor_names(const std::string& module);

}  // namespace llmq
