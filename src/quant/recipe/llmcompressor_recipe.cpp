// llm-compressor recipes as they are: stages of modifiers, turned into llmq's Recipe.
//
//   [<name>_stage:] [<name>_modifiers:] {<Name>Modifier: {...}, ...}       order = order of application
//
// What becomes of each key: quant/recipe/llmcompressor_keys.h. A job of llmq has one method for all linears,
// so one modifier brings the schemes; the others say what is folded before, how codes are chosen, and how
// keys and values are kept. Sources: llmcompressor 0.14.0.1, recipe/recipe.py, quantization/mixin.py and
// gptq/base.py of its modifiers; compressed_tensors 0.19, utils/match.py.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "quant/methods/registry.h"
#include "quant/recipe/llmcompressor_keys.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq {
namespace {

namespace lc = llmcompressor;
using lc::Draft;
using lc::Modifier;

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

void read_modifier(Draft& draft, const Yaml::Member& m) {
  const auto rows = lc::modifier_rows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const lc::ModifierRow& one) { return one.name == m.key; });
  if (row == rows.end() || row->method.empty())
    lc::refuse(m, fmt::format("modifier '{}' is not read by llmq", m.key),
               row == rows.end()
                   ? "AWQModifier, GPTQModifier, SmoothQuantModifier and QuantizationModifier are"
                   : std::string(row->words));
  for (const Modifier& before : draft.modifiers)
    if (before.name == m.key && row->method != "rtn") lc::refuse(m, m.key + " stands twice", "leave one out");
  Modifier& modifier = draft.modifiers.emplace_back();
  modifier.at = &m;
  modifier.name = m.key;
  modifier.method = row->method;
  if (modifier.method == "smoothquant") draft.recipe.smoothquant.alpha = 0.5;  // where it says nothing
  if (!is_null(m.value)) lc::read_keys(draft, m.value, m.key, row->places);
}

void read_stage(Draft& draft, const Yaml& node) {
  static constexpr std::array kPlaces = {lc::Place::kStage};
  for (const Yaml::Member& m : node.members()) {
    if (ends_with(m.key, "_stage") || ends_with(m.key, "_modifiers"))
      read_stage(draft, m.value);
    else if (ends_with(m.key, "Modifier"))
      read_modifier(draft, m);
    else if (!lc::read_key(draft, m, {}, kPlaces))
      fail_unknown_key(node, m, m.key, {"<name>_stage", "<name>_modifiers", "<Name>Modifier"});
  }
}

// The names and patterns of a list of targets; none where it says "Linear", the class of every linear.
// "LlamaAttention" and "Embedding" are classes of other modules.
std::vector<std::string> linears_of(std::vector<std::string> targets, const Yaml& at) {
  const auto is_class = [](const std::string& target) {
    return !target.empty() && target.front() >= 'A' && target.front() <= 'Z' && target != "Linear";
  };
  if (const auto other = std::find_if(targets.begin(), targets.end(), is_class); other != targets.end())
    lc::refuse(at, fmt::format("target '{}' is a class of modules that llmq does not quantize", *other),
               "name linears: Linear, a name or a re: pattern");
  if (std::find(targets.begin(), targets.end(), "Linear") != targets.end()) targets.clear();
  return targets;
}

// compressed_tensors prefers names to patterns, and of patterns the first of the alphabet; llmq's overrides
// the last that matches.
void sort_by_preference(std::vector<SchemeOverride>& overrides) {
  const auto is_pattern = [](const SchemeOverride& o) { return o.match.starts_with("re:"); };
  std::stable_sort(overrides.begin(), overrides.end(), [&](const SchemeOverride& a, const SchemeOverride& b) {
    if (is_pattern(a) != is_pattern(b)) return is_pattern(a);
    return a.match > b.match;
  });
}

// One group is the recipe's scheme; several become overrides, each for its own targets.
void take_schemes(Draft& draft, const Modifier& m) {
  Recipe& recipe = draft.recipe;
  const Yaml& at = m.config_groups != nullptr ? m.config_groups->value
                   : m.targets != nullptr     ? m.targets->value
                                              : m.at->value;
  const std::vector<std::string> own =
      m.targets != nullptr ? read_names(m.targets->value) : std::vector<std::string>{"Linear"};
  if (m.config_groups != nullptr && m.targets != nullptr && own != std::vector<std::string>{"Linear"})
    draft.note(*m.targets, m.name + ".targets", "each of config_groups has targets of its own");
  const bool alone = m.groups.size() == 1;
  bool every = false;
  for (const lc::Group& group : m.groups) {
    if (group.targets.empty() && !alone) at.fail_here("with several groups each needs its targets");
    const std::vector<std::string> names = linears_of(group.targets.empty() ? own : group.targets, at);
    every = every || names.empty();
    if (alone || names.empty()) recipe.scheme = group.scheme;
    for (const std::string& name : names) {
      recipe.targets.push_back(name);
      if (!alone) recipe.overrides.push_back({name, group.scheme});
    }
  }
  if (every) recipe.targets.clear();
  sort_by_preference(recipe.overrides);
  if (m.ignore == nullptr) return;
  recipe.ignore = read_names(m.ignore->value);
  if (std::find(recipe.ignore.begin(), recipe.ignore.end(), "Linear") != recipe.ignore.end())
    lc::refuse(*m.ignore, m.name + ".ignore names every linear", "leave Linear out");
}

// targets and ignore of a modifier that brings no scheme.
void check_without_scheme(Draft& draft, const Modifier& m) {
  for (const Yaml::Member* const key : {m.targets, m.ignore}) {
    if (key == nullptr) continue;
    const std::vector<std::string> names = read_names(key->value);
    if (names.empty() || (key == m.targets && names == std::vector<std::string>{"Linear"})) continue;
    const std::string path = m.name + "." + key->key;
    if (m.method == "gptq")
      lc::refuse(*key, path + " belongs to a scheme, and this modifier has none",
                 "write it where the scheme stands");
    draft.note(*key, path, "it belongs to a scheme, and this modifier has none");
  }
  if (m.method == "rtn" && m.kv_cache == nullptr)
    lc::refuse(*m.at, m.name + " quantizes nothing", "give it a scheme, as scheme: W4A16");
}

RoundingOrder rounding_order(const Yaml& node) {
  if (is_null(node)) return RoundingOrder::kNone;
  const std::string word =
      read_word(node, {"static", "weight", "group", "dynamic", "true", "True", "false", "False"});
  if (word == "static" || word == "weight") return RoundingOrder::kStatic;
  return word == "false" || word == "False" ? RoundingOrder::kNone : RoundingOrder::kAct;
}

// actorder, of GPTQModifier and of its schemes' weights: there is one for all linears.
void take_order(Draft& draft, const Modifier& brings, bool factorizes) {
  std::optional<RoundingOrder> order;
  for (const Modifier& m : draft.modifiers)
    if (m.order != nullptr) order = rounding_order(m.order->value);
  for (const lc::Group& group : brings.groups) {
    if (group.order == nullptr) continue;
    const RoundingOrder of_group = rounding_order(group.order->value);
    if (!factorizes)
      draft.note(*group.order, "weights.actorder", "nothing but GPTQModifier orders columns");
    else if (order && *order != of_group)
      lc::refuse(*group.order, "weights.actorder is another than one before it",
                 "columns of all linears are rounded in one order");
    else
      order = of_group;
  }
  if (order && factorizes) draft.recipe.gptq.order = *order;
}

// The words of the method: what is folded, then what rounds. In 0.14 AWQModifier is a transform in front of a
// quantizer; with plain rounding behind it the pair is llmq's awq.
std::vector<std::string> method_of(const Draft& draft) {
  std::vector<std::string> folds;
  bool rounds = false, factorizes = false;
  for (const Modifier& m : draft.modifiers) {
    const bool folds_here = m.method == "awq" || m.method == "smoothquant";
    if (folds_here && (rounds || !folds.empty()))
      lc::refuse(*m.at,
                 m.name + (rounds ? " stands behind what rounds" : " is a second fold, and llmq has one"),
                 rounds ? "write it first" : "leave one out");
    if (folds_here) folds.push_back(m.method);
    rounds = rounds || (!folds_here && !m.groups.empty());
    factorizes = factorizes || m.method == "gptq";
  }
  if (factorizes)
    folds.emplace_back("gptq");
  else if (rounds && folds != std::vector<std::string>{"awq"})
    folds.emplace_back("rtn");
  return folds;
}

// Floats are rounded to nearest alone.
void check_codes(const Draft& draft, const Modifier& brings) {
  const Recipe& recipe = draft.recipe;
  const bool floats = std::any_of(brings.groups.begin(), brings.groups.end(), [](const lc::Group& group) {
    return group.scheme.weight_type == WeightType::kFloat8;
  });
  if (!floats || !find_method(recipe.methods, recipe, recipe.source).integer_codes_only) return;
  for (const Modifier& m : draft.modifiers)
    if (find_method({m.method}, recipe, recipe.source).integer_codes_only)
      lc::refuse(*m.at, m.name + " chooses integer codes, and the scheme is of floats",
                 "leave it to QuantizationModifier, with or without SmoothQuantModifier");
}

void compose(Draft& draft, const Yaml& root) {
  const Modifier *brings = nullptr, *kv_cache = nullptr;
  for (const Modifier& m : draft.modifiers) {
    if (m.scheme != nullptr && m.config_groups != nullptr)
      lc::refuse(*m.config_groups, m.name + " has a scheme and config_groups", "leave one out");
    if (m.kv_cache != nullptr && kv_cache != nullptr)
      lc::refuse(*m.kv_cache, m.name + ".kv_cache_scheme is the second of the recipe", "leave one out");
    if (m.kv_cache != nullptr) kv_cache = &m;
    if (m.groups.empty()) {
      check_without_scheme(draft, m);
    } else if (brings != nullptr) {
      lc::refuse(*m.at,
                 fmt::format("{} brings a scheme, and so does {}: llmq rounds all linears by one method",
                             m.name, brings->name),
                 "write both schemes into config_groups of one of them");
    } else {
      brings = &m;
    }
  }
  if (draft.modifiers.empty()) root.fail_here("the recipe holds no modifier");
  if (brings == nullptr && kv_cache != nullptr)
    lc::refuse(*kv_cache->kv_cache, "kv_cache_scheme alone leaves all weights as they are",
               "give a modifier a scheme, as scheme: W8A8");
  if (brings == nullptr)
    lc::refuse(*draft.modifiers.front().at, "no modifier says how weights are quantized",
               "give GPTQModifier or QuantizationModifier a scheme, as scheme: W4A16");
  draft.recipe.methods = method_of(draft);
  check_codes(draft, *brings);
  take_schemes(draft, *brings);
  take_order(draft, *brings, draft.recipe.methods.back() == "gptq");
}

}  // namespace

bool is_llmcompressor_recipe(const Yaml& root) {
  return std::any_of(root.members().begin(), root.members().end(), [](const Yaml::Member& m) {
    return ends_with(m.key, "_stage") || ends_with(m.key, "_modifiers") || ends_with(m.key, "Modifier");
  });
}

void read_llmcompressor_recipe(const Yaml& root, Recipe& recipe) {
  recipe.ignore.clear();
  Draft draft{recipe, {}, {}, {}, {}};
  read_stage(draft, root);
  compose(draft, root);
}

}  // namespace llmq
