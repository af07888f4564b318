#include "export/formats/listed_names.h"

#include <set>

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

}  // namespace

std::string name_expression(const std::string& module, const WrapperSpec* wrapper) {
  if (wrapper == nullptr) return "^" + escaped(module) + "$";
  if (is_head(module)) return "^(?:language_model\\.)?lm_head$";
  return "^(?:model|model\\.language_model|language_model\\.model)\\." +
         escaped(below_decoder(module, *wrapper)) + "$";
}

std::vector<std::string> part_expressions(const ListedModules& listed) {
  std::vector<std::string> patterns;
  for (const std::string& name : part_names(listed))
    patterns.push_back("^(?:model\\.)?" + escaped(name) + "\\.");
  return patterns;
}

std::string compressed_target(const std::string& module, const WrapperSpec* wrapper) {
  return wrapper == nullptr ? module : "re:" + name_expression(module, wrapper);
}

std::vector<std::string> compressed_ignore(const ListedModules& listed) {
  std::vector<std::string> names;
  for (const std::string& part : part_expressions(listed)) names.push_back("re:" + part);
  for (const std::string& module : listed.dense) names.push_back(compressed_target(module, listed.wrapper));
  return names;
}

std::vector<std::string> awq_ignore(const ListedModules& listed) {
  std::vector<std::string> names;
  for (const std::string& part : part_names(listed)) {
    names.push_back(part);
    names.push_back("model." + part);
  }
  for (const std::string& module : listed.dense)
    names.push_back(listed.wrapper == nullptr ? module : below_decoder(module, *listed.wrapper));
  return names;
}

}  // namespace llmq
