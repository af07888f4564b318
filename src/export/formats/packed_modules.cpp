#include "export/formats/packed_modules.h"

#include <algorithm>
#include <set>

#include "export/output/packed_writer.h"
#include "model/linear_source.h"

namespace llmq {

PackedModules read_packed_modules(const Checkpoint& checkpoint) {
  const LinearSource source = LinearSource::open(checkpoint);
  PackedModules packed{format_name(source.format()), {}};
  std::vector<TensorDeclaration> names;
  for (const std::string& module : source.packed_modules()) names.push_back({module, DType::kI32, {}});
  written_order(names);
  for (const TensorDeclaration& name : names) {
    const PackedShape shape = source.packed_shape(name.name);
    packed.modules.push_back(
        {name.name, shape.scheme, shape.out_features, shape.in_features, shape.column_groups});
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
