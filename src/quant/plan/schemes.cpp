#include "quant/plan/schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "base/pattern.h"
#include "export/formats/fused_linears.h"
#include "export/formats/packed_formats.h"

namespace llmq {
namespace {

constexpr std::array<int, 3> kDefaultGroups = {128, 64, 32};

// Weights of 8 bits beside 8-bit inputs have a scale per channel, all others one per group.
Granularity granularity_of(const SchemeRequest& r) {
  const bool channel = r.bits == 8 && r.activation_bits == 8;
  return r.granularity.value_or(channel ? Granularity::kChannel : Granularity::kGroup);
}

bool group_is_open(const SchemeRequest& r) {
  return !r.group_size && granularity_of(r) == Granularity::kGroup;
}

// The sizes that divide every linear for which a group was asked for.
std::string groups_that_would(const std::vector<ChosenLinear>& chosen) {
  std::string text;
  for (const int group : {256, 128, 64, 32, 16, 8}) {
    const bool fits = std::all_of(chosen.begin(), chosen.end(), [&](const ChosenLinear& c) {
      return granularity_of(c.request) != Granularity::kGroup || c.linear->in_features % group == 0;
    });
    if (fits) text += (text.empty() ? "" : ", ") + std::to_string(group);
  }
  return text.empty() ? "no common group does: write _channel" : "groups of " + text + " divide every linear";
}

// The largest default group that divides every linear whose group is open.
std::optional<int> default_group(const std::vector<ChosenLinear>& chosen) {
  for (const int group : kDefaultGroups)
    if (std::all_of(chosen.begin(), chosen.end(), [&](const ChosenLinear& c) {
          return !group_is_open(c.request) || c.linear->in_features % group == 0;
        }))
      return group;
  return std::nullopt;
}

QuantScheme resolve_scheme(const ChosenLinear& c, const std::vector<ChosenLinear>& all,
                           std::optional<int> open_group, const std::string& source, bool symmetric) {
  const SchemeRequest& r = c.request;
  QuantScheme scheme;
  scheme.bits = r.bits;
  scheme.activation_bits = r.activation_bits;
  scheme.weight_type = r.weight_type;
  if (r.activation_bits != 16 && r.activation_bits != 8)
    fail(ErrorKind::kUnsupported,
         {fmt::format("{}-bit activations are not in this version", r.activation_bits), source, "scheme",
          fmt::format("write w{0}a16 or w{0}a8", r.bits)});
  scheme.granularity = granularity_of(r);
  scheme.symmetric = r.symmetric.value_or(symmetric || r.activation_bits == 8);
  if (r.activation_bits == 8)
    scheme.activation_scale = r.static_activations                        ? ActivationScale::kTensor
                              : scheme.granularity == Granularity::kBlock ? ActivationScale::kTokenGroup
                                                                          : ActivationScale::kToken;
  if (scheme.granularity != Granularity::kGroup) return scheme;
  if (group_is_open(r) && !open_group)
    fail(ErrorKind::kUsage,
         {fmt::format("none of 128, 64, 32 divides {} ({} input features) and every other linear",
                      c.linear->module, c.linear->in_features),
          source, "scheme", groups_that_would(all)});
  scheme.group_size = r.group_size ? *r.group_size : *open_group;
  if (scheme.group_size < 1 || c.linear->in_features % scheme.group_size != 0)
    fail(ErrorKind::kUsage, {fmt::format("group_size {} does not divide the {} input features of {}",
                                         scheme.group_size, c.linear->in_features, c.linear->module),
                             source, "scheme", groups_that_would(all)});
  return scheme;
}

// Parts of what an engine runs as one linear, by its name there: each part's own name, and its scheme.
using FusedParts = std::map<std::string, std::vector<std::pair<std::string, std::string>>>;

std::string own_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// "q_proj, k_proj and v_proj"
std::string names_of_parts(const FusedParts::mapped_type& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i].first;
  return text;
}

// Whose last override that matches leaves it as it is.
std::set<std::string> left_by_overrides(const Recipe& recipe, const Plan& plan) {
  std::vector<NamePattern> patterns;
  for (const SchemeOverride& one : recipe.overrides) patterns.emplace_back(one.match);
  std::set<std::string> left;
  for (const std::string& module : plan.ignored)
    for (std::size_t i = patterns.size(); i-- > 0;) {
      if (!patterns[i].matches(module)) continue;
      if (!recipe.overrides[i].scheme) left.insert(module);
      break;
    }
  return left;
}

}  // namespace

std::vector<PlannedModule> resolve_modules(const Recipe& recipe, const Plan& plan,
                                           const Checkpoint& checkpoint,
                                           const std::vector<ChosenLinear>& chosen) {
  const PackedFormatRow& format = packed_format(recipe.format);
  const std::optional<int> open_group = default_group(chosen);
  std::vector<PlannedModule> modules;
  for (const ChosenLinear& c : chosen) {
    QuantScheme scheme =
        resolve_scheme(c, chosen, open_group, recipe.source, plan.traits->symmetric_by_default);
    const StoredTensor* const weight = checkpoint.find(c.linear->weight.tensor);
    scheme.scale_dtype = scale_dtype(format, weight == nullptr ? DType::kBF16 : weight->view.dtype);
    if (!format.asymmetric_refusal.empty() && !scheme.symmetric)
      fail(ErrorKind::kUnsupported, {std::string(format.asymmetric_refusal), recipe.source, c.linear->module,
                                     std::string(format.asymmetric_hint)});
    const bool column_groups = plan.traits->factorizes && plan.gptq.order == RoundingOrder::kAct &&
                               scheme.group_of(c.linear->in_features) < c.linear->in_features;
    modules.push_back(
        {c.linear->module, scheme, c.linear->out_features, c.linear->in_features, column_groups});
  }
  return modules;
}

void check_float_codes(const Recipe& recipe, std::span<const PlannedModule> modules, const Plan& plan) {
  const auto chooses = [&](const PlannedModule& m) { return chooses_codes(*plan.traits, m.scheme); };
  for (const PlannedModule& m : modules)
    if (!chooses(m) && m.scheme.scale_form() != ScaleForm::kNumber)
      fail(ErrorKind::kUnsupported, {fmt::format("{} is {}, and method {} does not round floats in groups",
                                                 m.module, m.scheme.text(), plan.method),
                                     recipe.source, "method", "write awq, gptq or rtn"});
  if (std::none_of(modules.begin(), modules.end(), chooses))
    fail(ErrorKind::kUnsupported,
         {fmt::format("{} is {}, and method {} chooses integer codes", modules.front().module,
                      modules.front().scheme.text(), plan.method),
          recipe.source, "method", "write rtn or smoothquant"});
}

void warn_of_plain_rounding(Plan& plan) {
  for (const PlannedModule& m : plan.modules) {
    if (chooses_codes(*plan.traits, m.scheme)) continue;
    plan.warnings.push_back(fmt::format("{} and those like it are {}, which {} leaves to rounding to nearest",
                                        m.module, m.scheme.text(), plan.method));
    return;
  }
}

void check_fused_sets(const Recipe& recipe, const ModelSpec& spec, const Plan& plan) {
  if (recipe.overrides.empty() || packed_format(recipe.format).dense) return;
  std::map<std::string, std::string> scheme_of;
  std::set<std::string> names = left_by_overrides(recipe, plan);
  for (const std::string& module : names) scheme_of[module] = "dense";
  for (const PlannedModule& m : plan.modules) {
    scheme_of[m.module] = m.scheme.text();
    names.insert(m.module);
  }
  FusedParts fused;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      if (const auto found = scheme_of.find(linear.module); found != scheme_of.end())
        fused[fused_linear(linear.module, names).module].emplace_back(own_name(linear.module), found->second);
  for (const auto& [name, parts] : fused) {
    const bool equal = std::all_of(parts.begin(), parts.end(), [&one = parts.front()](const auto& part) {
      return part.second == one.second;
    });
    if (equal) continue;
    std::string found;
    for (const auto& [part, scheme] : parts) found += (found.empty() ? "" : ", ") + part + " " + scheme;
    fail(ErrorKind::kUsage,
         {fmt::format("engines run {} as one linear, and its parts were given different schemes: {}", name,
                      found),
          recipe.source, "overrides", fmt::format("give {} one scheme", names_of_parts(parts))});
  }
}

}  // namespace llmq
