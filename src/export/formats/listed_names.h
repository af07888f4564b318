// The names that config.json lists, of linears and of modules left alone, as loaders will look for them.
//
// Of a decoder alone they are the checkpoint's. In a wrapper loaders have names of their own: what lies at
// language_model.model.layers.3 (LLaVA) or model.layers.3 (Qwen2-VL) is model.language_model.layers.3 to
// Transformers and language_model.model.layers.3 to vLLM, and both leave expressions as they are. So they are
// written such that each of the three fits, the checkpoint's own too, by which llmq reads them back. Source:
// Transformers' conversion_mapping.py, vLLM's hf_to_vllm_mapper and apply_vllm_mapper().
#pragma once
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tensor/planned_module.h"

namespace llmq {

struct CarriedSpec;
struct WrapperSpec;

struct ListedModules {
  std::span<const PlannedModule> packed;  // at least one
  std::span<const std::string> dense;     // linears that are not; the head may be among them
  const WrapperSpec* wrapper = nullptr;   // none: the checkpoint is a decoder alone
  const CarriedSpec* carried = nullptr;   // none: nothing lies beside it
  // Where linears of a tower are among the packed ones: what lies beside its blocks (Tower::beside).
  std::span<const std::string> beside_tower = {};
};

// ^model\.layers\.0\.mlp\.down_proj$, or the same behind each prefix that a wrapper's decoder may have.
std::string name_expression(const std::string& module, const WrapperSpec* wrapper);

// "model.layers.3.mlp.experts" of a linear of one of them; empty of others.
std::string experts_of(const std::string& module);
// Experts of a layer that are all dense, or all packed and alike. They are listed as one: vLLM looks for the
// stack, or for experts.0.gate_proj whatever the checkpoint calls it, and 384 names a layer are compared with
// one another for minutes.
std::set<std::string> uniform_experts(
    const ListedModules& listed,
    const std::function<bool(const PlannedModule&, const PlannedModule&)>& alike = {});
// ^model\.layers\.3\.mlp\.experts(?:\.|$), which fits each of their linears and the stack.
std::string experts_expression(const std::string& experts, const WrapperSpec* wrapper);
// ^(?:model\.)?visual\. of each part that is carried along; of one whose blocks are packed, what lies beside
// them.
std::vector<std::string> part_expressions(const ListedModules& listed);
// ^(?:model\.)?visual\.blocks\.[0-9]+\.attn\.qkv$: this linear of each of a tower's blocks, which are alike.
// Transformers 5 has no vision_model where CLIP's and SigLIP's checkpoints have one, and vLLM has it.
std::string tower_expression(const std::string& module);

// All linears that are listed.
std::set<std::string> listed_linears(const ListedModules& listed);
// Attention whose keys are its values (Gemma 4) has no v_proj, and vLLM wants to hear the same of q, k and v:
// the v_proj that is missing beside a k_proj; nullopt of others.
std::optional<std::string> missing_values(const std::string& module, const std::set<std::string>& linears);

// As compressed-tensors has them: names of a decoder alone, "re:" and an expression of a wrapper's.
std::string compressed_target(const std::string& module, const WrapperSpec* wrapper);
std::vector<std::string> compressed_ignore(const ListedModules& listed);
// Ends and beginnings of names, which is what AWQ's loaders compare.
std::vector<std::string> awq_ignore(const ListedModules& listed);
// A shell's wildcards over whole names: TensorRT-LLM asks of each module, those inside a part too.
std::vector<std::string> modelopt_ignore(const ListedModules& listed);

}  // namespace llmq
