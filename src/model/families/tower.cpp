#include "model/families/tower.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "model/families/wrapper.h"

namespace llmq {
namespace {

// "visual.blocks.3.attn.qkv.weight" -> "visual.blocks" and 3, where the name has such a number and more
// behind it.
struct BlockOf {
  std::string blocks;
  std::int64_t number = 0;
};
std::optional<BlockOf> block_of(const std::string& name) {
  constexpr std::size_t kMostDigits = 5;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const std::size_t end = name.find('.', dot + 1);
    if (end == std::string::npos) return std::nullopt;
    const std::string digits = name.substr(dot + 1, end - dot - 1);
    if (!digits.empty() && digits.size() <= kMostDigits &&
        digits.find_first_not_of("0123456789") == std::string::npos)
      return BlockOf{name.substr(0, dot), std::stoll(digits)};
  }
  return std::nullopt;
}

std::int64_t counted_blocks(const Json& config) {
  const Json* const vision = config.find("vision_config");
  if (vision == nullptr || !vision->is_object()) return 0;
  for (const char* const key : {"depth", "num_hidden_layers"})
    if (const Json* const count = vision->find(key); count != nullptr && count->is_integer())
      return count->as_integer();
  return 0;
}

bool lies_in(const std::string& name, const std::string& module) { return name.starts_with(module + "."); }

// The module directly below what `name` and `path` have in common.
std::string beside_path(const std::string& name, const std::string& path) {
  std::size_t common = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
    if (name.compare(0, dot + 1, path, 0, dot + 1) == 0) common = dot + 1;
  return name.substr(0, name.find('.', common));
}

}  // namespace

Tower find_tower(const Checkpoint& checkpoint, const ModelSpec& spec) {
  Tower tower;
  const std::int64_t depth = counted_blocks(checkpoint.config());
  if (!spec.wrapper || depth < 1) return tower;
  std::map<std::string, std::set<std::int64_t>> stacks;
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (spec.carried.carries(tensor.name))
      if (const std::optional<BlockOf> block = block_of(tensor.name))
        stacks[block->blocks].insert(block->number);
  std::set<std::string> beside;
  for (const auto& [blocks, numbers] : stacks) {
    const std::string last = blocks.substr(blocks.rfind('.') + 1);
    if (static_cast<std::int64_t>(numbers.size()) != depth ||
        (last != "blocks" && last != "layers" && last != "layer"))
      continue;
    const auto part =
        std::find_if(spec.carried.parts.begin(), spec.carried.parts.end(),
                     [&within = blocks](const std::string& name) { return lies_in(within, name); });
    // The second tower of a model that hears is no vision tower.
    if (part == spec.carried.parts.end() || part->find("audio") != std::string::npos) continue;
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      if (!lies_in(tensor.name, *part)) continue;
      const bool in_blocks = lies_in(tensor.name, blocks), linear = tensor.name.ends_with(".weight") &&
                                                                    tensor.view.shape.rank() == 2 &&
                                                                    is_float(tensor.view.dtype);
      if (!in_blocks) {
        beside.insert(beside_path(tensor.name, blocks));
      } else if (linear) {
        LinearSpec& found = tower.linears.emplace_back();
        found.module = tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size());
        found.weight.tensor = tensor.name;
        found.out_features = tensor.view.shape[0], found.in_features = tensor.view.shape[1];
        found.parts = {found.out_features};
      }
    }
  }
  tower.beside.assign(beside.begin(), beside.end());
  return tower;
}

}  // namespace llmq
