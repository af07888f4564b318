// What layer_types (Transformers 5) says of blocks, and which of them attend through a sliding window: by it,
// or by Qwen's older three keys.
#include <fmt/format.h>

#include "base/error.h"
#include "model/families/family.h"

namespace llmq {

std::vector<bool> read_turning_blocks(ConfigFields& config, std::size_t blocks, bool empty_is_none) {
  constexpr const char* kKey = "no_rope_layers";
  const std::int64_t interval =
      config.integer("no_rope_layer_interval", {1, kLayersRange.most}, kUsualTurningPeriod);
  const Json* const list = config.find(kKey);
  std::vector<bool> turning;
  if (list == nullptr || (empty_is_none && list->is_array() && list->items().empty())) {
    for (std::size_t i = 0; i < blocks; ++i)
      turning.push_back((static_cast<std::int64_t>(i) + 1) % interval != 0);
    return turning;
  }
  if (!list->is_array() || list->items().size() < blocks)
    config.bad(kKey, fmt::format("is no list of {} numbers, one for each block", blocks));
  for (std::size_t i = 0; i < blocks; ++i) {
    const Json& item = list->items()[i];
    if (!item.is_integer() || (item.as_integer() != 0 && item.as_integer() != 1))
      config.bad(kKey, fmt::format("holds {} for block {}", item.dump(), i), "0 or 1 would do");
    turning.push_back(item.as_integer() == 1);
  }
  return turning;
}

std::vector<bool> read_layer_types(ConfigFields& config, const ModelSpec& spec, const char* other) {
  const Json* types = config.find("layer_types");
  std::vector<bool> others;
  if (types == nullptr) return others;
  if (!types->is_array())
    config.bad("layer_types", fmt::format("expected an array, found {}", types->kind()));
  if (types->items().size() != spec.blocks.size())
    config.bad("layer_types", fmt::format("has {} entries, num_hidden_layers is {}", types->items().size(),
                                          spec.blocks.size()));
  for (const Json& type : types->items()) {
    const std::string name = type.is_string() ? type.as_string() : type.dump();
    if (name != "full_attention" && name != other)
      config.unsupported("layer_types", fmt::format("names the kind {}, which is not known here", name),
                         fmt::format("full_attention and {} are", other));
    others.push_back(name == other);
  }
  return others;
}

std::vector<std::int64_t> read_periodic_windows(ConfigFields& config, const ModelSpec& spec,
                                                std::int64_t period) {
  const std::int64_t size = config.integer("sliding_window", {1, kPositionsRange.most}, 4096);
  const std::vector<bool> types = read_layer_types(config, spec);
  std::vector<std::int64_t> windows;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const bool sliding = types.empty() ? (static_cast<std::int64_t>(i) + 1) % period != 0 : types[i];
    if (sliding && config.is_null("sliding_window"))
      config.bad("sliding_window", fmt::format("is null, and block {} is sliding_attention", i));
    windows.push_back(sliding ? size : 0);
  }
  return windows;
}

std::vector<std::int64_t> read_qwen_windows(ConfigFields& config, const ModelSpec& spec,
                                            std::int64_t first_absent) {
  const bool use = config.flag("use_sliding_window", false);
  // A null window is none even when use_sliding_window is true; an absent one is the class's 4096.
  const bool none = config.is_null("sliding_window");
  const std::int64_t size = config.integer("sliding_window", {0, kPositionsRange.most}, 4096);
  if (use && !none && size == 0) config.bad("sliding_window", "is 0, which leaves nothing to attend to");
  const std::int64_t window = use && !none ? size : 0;
  const std::int64_t first = config.integer("max_window_layers", {0, kPositionsRange.most}, first_absent);
  const std::vector<bool> types = read_layer_types(config, spec);
  std::vector<std::int64_t> windows;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const bool sliding = types.empty() ? static_cast<std::int64_t>(i) >= first && window != 0 : types[i];
    if (sliding && window == 0)
      config.bad("layer_types",
                 fmt::format("asks for sliding_attention in block {} without a sliding_window in use", i),
                 "set use_sliding_window to true and sliding_window to its size");
    windows.push_back(sliding ? window : 0);
  }
  return windows;
}

}  // namespace llmq
