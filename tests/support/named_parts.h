// Linears, sites and norms of a block by their names, for tests that speak of one.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

#include "model/block_spec.h"

namespace llmq {

// The linear whose module ends with `name`: "q_proj".
inline const LinearSpec& linear_named(const BlockSpec& block, std::string_view name) {
  for (const LinearSpec& linear : block.linears)
    if (linear.module.ends_with(name)) return linear;
  throw std::runtime_error(block.prefix + " has no linear " + std::string(name));
}

inline SiteId site_named(const BlockSpec& block, std::string_view name) {
  for (std::size_t i = 0; i < block.sites.size(); ++i)
    if (block.sites[i].name == name) return static_cast<SiteId>(i);
  throw std::runtime_error(block.prefix + " has no site " + std::string(name));
}

// The norm whose gain is "<prefix>.<name>.weight".
inline NormId norm_named(const BlockSpec& block, std::string_view name) {
  for (std::size_t i = 0; i < block.norms.size(); ++i)
    if (block.norms[i].gain.tensor == block.prefix + "." + std::string(name) + ".weight")
      return static_cast<NormId>(i);
  throw std::runtime_error(block.prefix + " has no norm " + std::string(name));
}

}  // namespace llmq
