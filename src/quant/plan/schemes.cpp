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
#include "model/packed/unpacked.h"
#include "quant/rotation/value_rotation.h"

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
  const bool in_float_groups =
      r.weight_type != WeightType::kInteger && granularity_of(r) == Granularity::kGroup;
  if (r.activation_bits != 16 && r.activation_bits != 8 && !in_float_groups)
    fail(ErrorKind::kUnsupported,
         {fmt::format("{}-bit activations are not in this version", r.activation_bits), source, "scheme",
          fmt::format("write w{0}a16 or w{0}a8", r.bits)});
  scheme.granularity = granularity_of(r);
  scheme.symmetric = r.symmetric.value_or(symmetric || r.activation_bits != 16);
  const bool by_groups = in_float_groups || scheme.granularity == Granularity::kBlock;
  if (r.activation_bits != 16)
    scheme.activation_scale = r.static_activations ? ActivationScale::kTensor
                              : by_groups          ? ActivationScale::kTokenGroup
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

// A linear of a set, by its own name, and its scheme; none: an override leaves it dense.
struct SetPart {
  std::string name;
  const QuantScheme* scheme;
  std::string text() const { return name + " " + (scheme == nullptr ? kDenseWord : scheme->text()); }
};
// What an engine runs as one, by its name there.
using FusedParts = std::map<std::string, std::vector<SetPart>>;

std::string own_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// "q_proj, k_proj and v_proj"
std::string names_of_parts(const FusedParts::mapped_type& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i].name;
  return text;
}

bool alike(const SetPart& a, const SetPart& b) {
  return a.scheme == nullptr || b.scheme == nullptr ? a.scheme == b.scheme : *a.scheme == *b.scheme;
}

// Whether the schemes differ and one is no integer: integers of two forms are left to the table of loaders.
bool parted(const std::vector<SetPart>& parts) {
  const auto differs = [&](const SetPart& one) { return !alike(one, parts.front()); };
  const auto is_integer = [](const SetPart& one) {
    return one.scheme != nullptr && one.scheme->weight_type == WeightType::kInteger;
  };
  return std::any_of(parts.begin(), parts.end(), differs) &&
         !std::all_of(parts.begin(), parts.end(), is_integer);
}

// The first, and the first that differs from it.
std::vector<SetPart> two_of(const std::vector<SetPart>& parts) {
  const auto other = std::find_if(parts.begin(), parts.end(),
                                  [&](const SetPart& one) { return !alike(one, parts.front()); });
  return {parts.front(), *other};
}

// Of the experts of a block that rows are sent to: "experts.3.down_proj".
std::vector<SetPart> parts_of_experts(const BlockSpec& block,
                                      const std::map<std::string, const QuantScheme*>& scheme_of) {
  std::vector<SetPart> parts;
  const MixtureSpec* const mixture = block.mixture();
  if (mixture == nullptr) return parts;
  for (const ExpertSpec& expert : mixture->experts)
    for (const LinearId id : expert.linears()) {
      const std::string& module = block.at(id).module;
      const auto found = scheme_of.find(module);
      if (found == scheme_of.end()) continue;
      const std::size_t last = module.rfind('.'), number = module.rfind('.', last - 1);
      const std::size_t begin = module.rfind('.', number - 1) + 1;
      parts.push_back({module.substr(begin), found->second});
    }
  return parts;
}

[[noreturn]] void refuse_parts(const Recipe& recipe, const std::string& what,
                               const std::vector<SetPart>& parts, const std::string& hint) {
  std::string found;
  for (const SetPart& part : parts) found += (found.empty() ? "" : ", ") + part.text();
  fail(ErrorKind::kUsage,
       {fmt::format("engines run {}, and its parts were given different schemes: {}", what, found),
        recipe.source, "overrides", hint});
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
    scheme.scale_dtype =
        scale_dtype(format, weight == nullptr ? DType::kBF16 : stored_type(checkpoint, *weight));
    scheme.zero_form = format.zero_form;
    if (!format.asymmetric_refusal.empty() && !scheme.symmetric)
      fail(ErrorKind::kUnsupported, {std::string(format.asymmetric_refusal), recipe.source, c.linear->module,
                                     std::string(format.asymmetric_hint)});
    const bool column_groups = plan.traits->factorizes && plan.gptq.order == RoundingOrder::kAct &&
                               chooses_codes(*plan.traits, scheme) &&
                               scheme.group_of(c.linear->in_features) < c.linear->in_features;
    modules.push_back(
        {c.linear->module, scheme, c.linear->out_features, c.linear->in_features, column_groups});
  }
  return modules;
}

void check_kept_columns(const Recipe& recipe) {
  const MethodRow* const asked = asked_by_option(recipe);
  if (asked == nullptr || !asked->keeps_columns || recipe.format == kDenseFormat.name) return;
  fail(ErrorKind::kUnsupported,
       {fmt::format("format {} has no place for columns that stay at 16 bits", recipe.format), recipe.source,
        std::string(asked->key),
        fmt::format("write format: {}, which stores dense weights", kDenseFormat.name)});
}

void check_rotated_schemes(const Recipe& recipe, const ModelSpec& spec, Plan& plan) {
  const bool schemes = !recipe.mixed.schemes.empty();
  if (std::any_of(plan.candidates.begin(), plan.candidates.end(),
                  [](const PrecisionCandidate& one) { return one.stays_dense(); }))
    fail(ErrorKind::kUsage,
         {"the candidate that stays dense may be what makes or reads rotated values", recipe.source,
          schemes ? "mixed.schemes" : "mixed.bits",
          schemes ? "leave dense out, or leave out rotate" : "write [4, 8], or leave out rotate"});
  const std::set<std::string> rotated = rotated_modules(spec, recipe.source);
  const auto floats = [&](std::span<const PlannedModule> modules) {
    return std::any_of(modules.begin(), modules.end(), [&](const PlannedModule& one) {
      return one.scheme.weight_type == WeightType::kFloat4 && rotated.count(one.module) != 0;
    });
  };
  // With whole schemes to choose among, plan.modules has none of them yet.
  if ((!schemes && floats(plan.modules)) ||
      std::any_of(plan.candidates.begin(), plan.candidates.end(),
                  [&](const PrecisionCandidate& one) { return floats(one.modules); }))
    plan.warnings.emplace_back(
        "rotate.value: weights of NVFP4 and MXFP4 were measured to gain nothing by it, and to lose up to 4 "
        "%");
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
  std::map<std::string, const QuantScheme*> scheme_of;
  std::set<std::string> names = left_by_overrides(recipe, plan);
  for (const std::string& module : names) scheme_of[module] = nullptr;
  for (const PlannedModule& m : plan.modules) {
    scheme_of[m.module] = &m.scheme;
    names.insert(m.module);
  }
  for (const BlockSpec& block : spec.blocks) {
    FusedParts fused;
    for (const LinearSpec& linear : block.linears)
      if (const auto found = scheme_of.find(linear.module); found != scheme_of.end())
        fused[fused_linear(linear.module, names).module].push_back({own_name(linear.module), found->second});
    for (const auto& [name, parts] : fused)
      if (parted(parts))
        refuse_parts(recipe, name + " as one linear", parts, "give " + names_of_parts(parts) + " one scheme");
    const std::vector<SetPart> experts = parts_of_experts(block, scheme_of);
    if (parted(experts))
      refuse_parts(recipe, "the experts of " + block.prefix + " as one product", two_of(experts),
                   "give gate, up and down of all experts of a layer one scheme");
  }
}

}  // namespace llmq
