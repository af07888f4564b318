#include "export/packed_modules.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "export/packed_writer.h"
#include "model/linear_source.h"
#include "model/quantization_config.h"

namespace llmq {
namespace {

const char* codes_suffix(PackedFormat format) {
  return format == PackedFormat::kAwqGemm ? ".qweight" : ".weight_packed";
}
const char* scales_suffix(PackedFormat format) {
  return format == PackedFormat::kAwqGemm ? ".scales" : ".weight_scale";
}

// [out, in] as stored: compressed-tensors says it in a tensor, AWQ by the extents of its words.
std::pair<std::int64_t, std::int64_t> extents(const Checkpoint& checkpoint, PackedFormat format,
                                              const std::string& module) {
  if (format == PackedFormat::kAwqGemm) {
    const Shape& shape = checkpoint.at(module + ".qweight").view.shape;
    if (shape.rank() != 2)
      fail(ErrorKind::kBadInput, {"has shape " + shape.text() + ", expected [in, out/8]",
                                  checkpoint.path().string(),
                                  module + ".qweight",
                                  {}});
    return {shape[1] * 8, shape[0]};
  }
  const StoredTensor& stored = checkpoint.at(module + ".weight_shape");
  if (stored.view.dtype != DType::kI64 || !(stored.view.shape == Shape{2}))
    fail(ErrorKind::kBadInput, {"is not I64 [2]", checkpoint.path().string(), stored.name, {}});
  std::int64_t pair[2];
  std::memcpy(pair, stored.view.pointer, sizeof pair);
  return {pair[0], pair[1]};
}

}  // namespace

PackedModules read_packed_modules(const Checkpoint& checkpoint) {
  const LinearSource source = LinearSource::open(checkpoint);
  const PackedFormat format = source.format();
  PackedModules packed{format_name(format), {}};
  if (format == PackedFormat::kNone) return packed;
  const Path file = checkpoint.path() / "config.json";
  const QuantizationConfig config = QuantizationConfig::read(checkpoint.config(), file.string());
  std::vector<TensorDeclaration> names;
  const std::string_view suffix = codes_suffix(format);
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (tensor.name.ends_with(suffix))
      names.push_back({tensor.name.substr(0, tensor.name.size() - suffix.size()), tensor.view.dtype, {}});
  written_order(names);
  for (const TensorDeclaration& name : names) {
    const std::optional<QuantScheme> scheme = config.scheme_of(name.name);
    if (!scheme)
      fail(ErrorKind::kBadInput,
           {"a packed linear is in no group of quantization_config", file.string(), name.name, {}});
    const auto [out, in] = extents(checkpoint, format, name.name);
    packed.modules.push_back({name.name, *scheme, out, in});
    packed.modules.back().scheme.scale_dtype = checkpoint.at(name.name + scales_suffix(format)).view.dtype;
  }
  return packed;
}

std::vector<std::string> unpacked_linears(const ModelSpec& spec, std::span<const PlannedModule> modules) {
  std::set<std::string> packed;
  for (const PlannedModule& m : modules) packed.insert(m.module);
  std::vector<std::string> names;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      if (packed.count(linear.module) == 0) names.push_back(linear.module);
  return names;
}

std::string common_scheme(std::span<const PlannedModule> modules) {
  if (modules.empty()) return "";
  const std::string first = modules.front().scheme.text();
  const bool equal = std::all_of(modules.begin(), modules.end(),
                                 [&](const PlannedModule& m) { return m.scheme.text() == first; });
  return equal ? first : "mixed";
}

}  // namespace llmq
