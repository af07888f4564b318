#include "export/formats/listed_names.h"

#include <algorithm>
#include <map>
#include <set>

#include "export/formats/fused_linears.h"
#include "model/model_spec.h"

namespace llmq {
namespace {

// A name as an expression.
std::string escaped(std::string_view name) {
  std::string pattern;
  for (const char c : name) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  return pattern;
}

// "layers.0.mlp.down_proj"; the name itself where it does not lie in the decoder.
std::string below_decoder(const std::string& module, const WrapperSpec& wrapper) {
  return module.starts_with(wrapper.prefix + ".") ? module.substr(wrapper.prefix.size() + 1) : module;
}

// Parts without the "model." that Transformers has before them and vLLM has not.
std::set<std::string> part_names(const ListedModules& listed) {
  constexpr std::string_view kModel = "model.";
  std::set<std::string> names;
  if (listed.carried == nullptr) return names;
  for (const std::string& part : listed.carried->parts)
    names.insert(part.starts_with(kModel) ? part.substr(kModel.size()) : part);
  return names;
}

bool is_head(const std::string& module) { return module == "lm_head"; }

// What is packed of a part, "visual", whether or not "model." stands before it.
bool has_packed(const ListedModules& listed, const std::string& part) {
  return std::any_of(listed.packed.begin(), listed.packed.end(), [&](const PlannedModule& m) {
    return m.module.starts_with(part + ".") || m.module.starts_with("model." + part + ".");
  });
}

// ^(?:model\.)?vision_tower\.(?:vision_model\.)?encoder\.layers\.3\.mlp\.fc1; `any` block, [0-9]+ for 3.
std::string below_model(std::string_view name, bool any = false) {
  std::string pattern = "^(?:model\\.)?";
  if (name.starts_with("model.")) name.remove_prefix(std::string_view("model.").size());
  for (bool first = true; !name.empty(); first = false) {
    const std::string_view word = name.substr(0, name.find('.'));
    const bool last = word.size() == name.size();
    name.remove_prefix(word.size() + (last ? 0 : 1));
    const bool number = word.find_first_not_of("0123456789") == std::string_view::npos;
    if (word == "vision_model" && !last && !first)  // a part of that name is no part of another
      pattern += "(?:vision_model\\.)?";
    else
      pattern += (any && number ? "[0-9]+" : std::string(word)) + (last ? "" : "\\.");
  }
  return pattern;
}

// Experts of a layer once, where all of them are dense, in the place of the first linear of theirs.
std::vector<std::string> dense_names(const ListedModules& listed, const std::set<std::string>& uniform) {
  const std::set<std::string> linears = listed_linears(listed);
  std::set<std::string> said;
  std::vector<std::string> names;
  for (const std::string& module : listed.dense) {
    const std::string experts = experts_of(module);
    if (!uniform.contains(experts))
      names.push_back(module);
    else if (said.insert(experts).second)
      names.push_back(experts);
    if (const auto values = missing_values(module, linears)) names.push_back(*values);
  }
  return names;
}

// Keys and values that nobody reads (Gemma 4 E2B), beside queries that are dense: vLLM asks of them by name.
std::set<std::string> unread_beside_dense(const ListedModules& listed) {
  const std::set<std::string> dense(listed.dense.begin(), listed.dense.end());
  std::set<std::string> names;
  if (listed.carried != nullptr)
    for (const std::string& part : listed.carried->parts)
      if (const auto queries = queries_beside(part); queries && dense.contains(*queries)) names.insert(part);
  return names;
}

}  // namespace

std::string experts_of(const std::string& module) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = module.rfind(kExperts);
  if (at == std::string::npos) return {};
  const std::size_t number = at + kExperts.size(), end = module.find('.', number);
  if (end == std::string::npos || end == number || module.find_first_not_of("0123456789", number) != end)
    return {};
  return module.substr(0, number - 1);
}

std::set<std::string> uniform_experts(
    const ListedModules& listed,
    const std::function<bool(const PlannedModule&, const PlannedModule&)>& alike) {
  std::map<std::string, const PlannedModule*> first;  // null of dense ones
  std::set<std::string> mixed;
  for (const PlannedModule& m : listed.packed) {
    const std::string experts = experts_of(m.module);
    if (experts.empty()) continue;
    const PlannedModule& other = *first.emplace(experts, &m).first->second;
    if (alike && !alike(m, other)) mixed.insert(experts);
  }
  for (const std::string& module : listed.dense) {
    const std::string experts = experts_of(module);
    if (experts.empty()) continue;
    if (first.emplace(experts, nullptr).first->second != nullptr) mixed.insert(experts);
  }
  std::set<std::string> uniform;
  for (const auto& [experts, module] : first)
    if (!mixed.contains(experts)) uniform.insert(experts);
  return uniform;
}

std::string experts_expression(const std::string& experts, const WrapperSpec* wrapper) {
  std::string expression = name_expression(experts, wrapper);
  expression.pop_back();  // "$"
  return expression + "(?:\\.|$)";
}

std::string name_expression(const std::string& module, const WrapperSpec* wrapper) {
  if (wrapper == nullptr) return "^" + escaped(module) + "$";
  if (is_head(module)) return "^(?:language_model\\.)?lm_head$";
  return "^(?:model|model\\.language_model|language_model\\.model)\\." +
         escaped(below_decoder(module, *wrapper)) + "$";
}

std::vector<std::string> part_expressions(const ListedModules& listed) {
  std::vector<std::string> patterns;
  for (const std::string& name : part_names(listed))
    if (!has_packed(listed, name)) patterns.push_back(below_model(name) + "\\.");
  for (const std::string& name : unread_beside_dense(listed))
    patterns.push_back(name_expression(name, listed.wrapper));
  std::set<std::string> beside;
  for (const std::string& name : listed.beside_tower) beside.insert(below_model(name) + "(?:\\.|$)");
  patterns.insert(patterns.end(), beside.begin(), beside.end());
  return patterns;
}

std::string tower_expression(const std::string& module) { return below_model(module, true) + "$"; }

std::set<std::string> listed_linears(const ListedModules& listed) {
  std::set<std::string> linears(listed.dense.begin(), listed.dense.end());
  for (const PlannedModule& m : listed.packed) linears.insert(m.module);
  return linears;
}

std::optional<std::string> missing_values(const std::string& module, const std::set<std::string>& linears) {
  const std::optional<std::string> values = values_beside(module);
  return values && !linears.contains(*values) ? values : std::nullopt;
}

std::string compressed_target(const std::string& module, const WrapperSpec* wrapper) {
  return wrapper == nullptr ? module : "re:" + name_expression(module, wrapper);
}

std::vector<std::string> compressed_ignore(const ListedModules& listed) {
  std::vector<std::string> names;
  for (const std::string& part : part_expressions(listed)) names.push_back("re:" + part);
  const std::set<std::string> experts = uniform_experts(listed);
  for (const std::string& name : dense_names(listed, experts))
    names.push_back(experts.contains(name) ? "re:" + experts_expression(name, listed.wrapper)
                                           : compressed_target(name, listed.wrapper));
  return names;
}

std::vector<std::string> awq_ignore(const ListedModules& listed) {
  std::vector<std::string> names;
  for (const std::string& part : part_names(listed)) {
    names.push_back(part);
    names.push_back("model." + part);
  }
  for (const std::string& name : dense_names(listed, uniform_experts(listed)))
    names.push_back(listed.wrapper == nullptr ? name : below_decoder(name, *listed.wrapper));
  return names;
}

std::vector<std::string> modelopt_ignore(const ListedModules& listed) {
  std::vector<std::string> names = awq_ignore(listed);
  for (const std::string& part : part_names(listed))
    for (const char* above : {"", "model."}) names.push_back(above + part + ".*");
  return names;
}

}  // namespace llmq
