#include "export/formats/fused_linears.h"

#include <string_view>

namespace llmq {

FusedLinear fused_linear(const std::string& module) {
  const std::size_t name = module.rfind('.') + 1;  // 0 without a dot
  const std::string parent = module.substr(0, name), leaf = module.substr(name);
  if (leaf == "q_proj" || leaf == "k_proj" || leaf == "v_proj")
    return {parent + "qkv_proj", 3, leaf == "v_proj"};
  if (leaf == "gate_proj" || leaf == "up_proj") return {parent + "gate_up_proj", 2, leaf == "up_proj"};
  if (leaf == "w1" || leaf == "w3") return {parent + "w13", 2, leaf == "w3", false};
  if (leaf == "q_a_proj" || leaf == "kv_a_proj_with_mqa")
    return {parent + "fused_qkv_a_proj", 2, leaf == "kv_a_proj_with_mqa"};
  if (leaf == "in_proj_qkv" || leaf == "in_proj_z") return {parent + "in_proj_qkvz", 2, leaf == "in_proj_z"};
  if (leaf == "in_proj_b" || leaf == "in_proj_a") return {parent + "in_proj_ba", 2, leaf == "in_proj_a"};
  return {module, 1};
}

FusedLinear fused_linear(const std::string& module, const std::set<std::string>& quantized) {
  const std::size_t name = module.rfind('.') + 1;
  const std::string parent = module.substr(0, name), leaf = module.substr(name);
  const bool of_latents = leaf == "q_proj" || leaf == "kv_a_proj_with_mqa";
  if (of_latents && quantized.contains(parent + "q_proj") &&
      quantized.contains(parent + "kv_a_proj_with_mqa"))
    return {module, 1};
  return fused_linear(module);
}

std::optional<std::string> values_beside(const std::string& module) {
  constexpr std::string_view kKeys = ".k_proj";
  if (!module.ends_with(kKeys)) return std::nullopt;
  return module.substr(0, module.size() - kKeys.size()) + ".v_proj";
}

std::optional<std::string> queries_beside(const std::string& module) {
  for (const std::string_view other : {".k_proj", ".v_proj"})
    if (module.ends_with(other)) return module.substr(0, module.size() - other.size()) + ".q_proj";
  return std::nullopt;
}

}  // namespace llmq
