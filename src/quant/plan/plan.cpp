// Resolving a recipe against a model. The last override that matches a linear wins; an ignored linear is left
// alone whatever overrides say.
#include "quant/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/pattern.h"
#include "export/formats/packed_formats.h"
#include "export/gguf/type_mix.h"
#include "io/codes/first_rounding.h"
#include "model/linear_source.h"
#include "model/packed/unpacked.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/plan/plan_limits.h"
#include "quant/plan/schemes.h"
#include "quant/plan/tower_plan.h"
#include "quant/plan/uncalibrated_blocks.h"
#include "quant/rotation/value_rotation.h"

namespace llmq {
namespace {

struct Pattern {
  NamePattern pattern;
  const char* key;
  bool used = false;
};

void check_intent(const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec) {
  if (recipe.keep > 0 && !recipe.versioned)
    fail(ErrorKind::kUsage, {"versions are kept where there are versions", recipe.source, "output.keep",
                             "add versioned: true, or leave it out"});
  if (recipe.scheme_is_gguf)
    fail(ErrorKind::kUsage,
         {"scheme " + recipe.gguf.type + " is a type of GGUF, and the format is " + recipe.format,
          recipe.source, "scheme", "write format: gguf"});
  packed_format(recipe.format);
  for (const SchemeOverride& one : recipe.overrides)
    if (one.gguf_type && !one.scheme && *one.gguf_type != DType::kBF16)
      fail(ErrorKind::kUsage, {fmt::format("scheme {} of '{}' is a type of GGUF, and the format is {}",
                                           gguf_tensor_type_name(*one.gguf_type), one.match, recipe.format),
                               recipe.source, "overrides", "write format: gguf"});
  const std::pair<const std::string&, const char*> of_gguf[] = {
      {recipe.gguf.importance, "gguf.importance"},
      {recipe.gguf.search, "gguf.search"},
      {recipe.gguf.imatrix_out, "gguf.imatrix_out"}};
  for (const auto& [value, key] : of_gguf)
    if (!value.empty())
      fail(ErrorKind::kUsage, {"is for a GGUF, and the format is " + recipe.format, recipe.source, key,
                               "write format: gguf, or leave it out"});
  check_kept_columns(recipe);
  if (!recipe.target_bits && !(recipe.mixed.bits.empty() && recipe.mixed.schemes.empty()))
    fail(ErrorKind::kUsage,
         {"candidates of mixed precision need a budget", recipe.source,
          recipe.mixed.bits.empty() ? "mixed.schemes" : "mixed.bits", "write target_bits: 4.5"});
  if (!recipe.mixed.schemes.empty() && (recipe.scheme || !recipe.mixed.bits.empty()))
    fail(ErrorKind::kUsage,
         {"candidates that are whole schemes leave nothing to say of bits or of a scheme", recipe.source,
          "mixed.schemes", recipe.scheme ? "leave out scheme" : "leave out mixed.bits"});
  const auto stays = [](const std::optional<SchemeRequest>& one) { return !one; };
  if (packed_format(recipe.format).stacked &&
      (std::any_of(recipe.overrides.begin(), recipe.overrides.end(),
                   [&](const SchemeOverride& one) { return stays(one.scheme); }) ||
       std::any_of(recipe.mixed.schemes.begin(), recipe.mixed.schemes.end(), stays)))
    fail(ErrorKind::kUnsupported,
         {fmt::format("format {} has no words for experts of one layer that stay dense", recipe.format),
          recipe.source, recipe.mixed.schemes.empty() ? "overrides" : "mixed.schemes",
          "leave dense out, or write format: compressed-tensors"});
  refuse_packed(checkpoint);
  if (spec.blocks.empty())
    fail(ErrorKind::kBadInput, {"the model has no decoder block", checkpoint.path().string(), {}, {}});
}

std::string kept_from_rounded_inputs(const LinearSpec& linear) {
  return fmt::format(
      "{} and those like it stay dense: attention over latents absorbs them, so they have no inputs to round",
      linear.module);
}

// What is asked for where no override says otherwise; of a budget that chooses among schemes, one of them.
SchemeRequest asked_everywhere(const Recipe& recipe) {
  for (const std::optional<SchemeRequest>& candidate : recipe.mixed.schemes)
    if (candidate) return *candidate;
  return recipe.scheme.value_or(SchemeRequest{});
}

// Which linears are quantized and what was asked for each.
std::vector<ChosenLinear> choose_linears(const Recipe& recipe, const ModelSpec& spec, Plan& plan) {
  std::vector<Pattern> targets, ignore, overrides;
  for (const std::string& text : recipe.targets) targets.push_back({NamePattern(text), "targets"});
  for (const std::string& text : recipe.ignore) ignore.push_back({NamePattern(text), "ignore"});
  for (const SchemeOverride& o : recipe.overrides) overrides.push_back({NamePattern(o.match), "overrides"});
  const auto any = [](std::vector<Pattern>& patterns, const std::string& name) {
    bool found = false;
    for (Pattern& p : patterns)
      if (p.pattern.matches(name)) found = p.used = true;
    return found;
  };
  std::vector<ChosenLinear> chosen;
  const auto rounds = [](const auto& one) { return one && one->activation_bits != 16; };
  const bool perhaps_rounds = std::any_of(recipe.mixed.schemes.begin(), recipe.mixed.schemes.end(), rounds);
  int absorbed = 0;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears) {
      const bool ignored = any(ignore, linear.module);
      if (!linear.quantizable)
        for (Pattern& p : overrides)
          if (!p.used && p.pattern.matches(linear.module)) {
            p.used = true;
            plan.warnings.push_back(fmt::format("overrides: '{}' names {}, which is never quantized",
                                                p.pattern.text(), linear.module));
          }
      if ((!targets.empty() && !any(targets, linear.module)) || ignored || !linear.quantizable) {
        plan.ignored.push_back(linear.module);
        continue;
      }
      std::optional<SchemeRequest> request = asked_everywhere(recipe);
      for (std::size_t i = 0; i < overrides.size(); ++i) {
        if (!overrides[i].pattern.matches(linear.module)) continue;
        overrides[i].used = true;
        request = recipe.overrides[i].scheme;
      }
      const bool absorbed_one = linear.absorbed && request && (perhaps_rounds || rounds(request));
      if (absorbed_one && !absorbed++) plan.warnings.push_back(kept_from_rounded_inputs(linear));
      if (absorbed_one || !request)
        plan.ignored.push_back(linear.module);
      else
        chosen.push_back({&linear, *request});
    }
  const bool head_ignored = any(ignore, "lm_head"), head_targeted = any(targets, "lm_head");
  // What is never looked at may be named, as recipes for other tools have to.
  for (const std::string& part : spec.carried.parts) any(ignore, part), any(ignore, part + ".0");
  if (!spec.tied_head && !head_ignored && !head_targeted && targets.empty())
    plan.warnings.push_back(
        "lm_head stays as it is: this version quantizes the linears of the decoder blocks");
  for (const std::vector<Pattern>* list : {&targets, &ignore, &overrides})
    for (const Pattern& p : *list)
      if (!p.used)
        plan.warnings.push_back(std::string(p.key) + ": '" + p.pattern.text() +
                                "' matches no linear of this model");
  return chosen;
}

// What a mixture of experts asks for that is not calibrated; empty: nothing does.
std::string uncalibrated_in_mixtures(const Plan& plan) {
  if (plan.kv_cache) return "quantized KV cache";
  return plan.devices.empty() ? "" : "run on several devices";
}

// How many experts' sums are collected at once, if memory has room for all; 0: there is no mixture.
std::int64_t experts_to_calibrate(const Recipe& recipe, const ModelSpec& spec, const Plan& plan) {
  std::int64_t most = 0;
  for (const BlockSpec& block : spec.blocks) {
    const MixtureSpec* const mixture = block.mixture();
    if (mixture == nullptr) continue;
    if (const std::string asked = uncalibrated_in_mixtures(plan); !asked.empty())
      fail(ErrorKind::kUnsupported,
           {fmt::format("{} has a mixture of experts, for which this version has no {}", block.prefix, asked),
            recipe.source,
            {},
            "leave it out"});
    most = std::max(most, static_cast<std::int64_t>(mixture->experts.size()));
  }
  return most;
}

void resolve_calibration(const Recipe& recipe, const ModelSpec& spec, Plan& plan) {
  plan.calibration = recipe.calibration;
  plan.needs_calibration = plan.traits->calibrates || plan.kv_cache ||
                           std::any_of(plan.modules.begin(), plan.modules.end(),
                                       [](const PlannedModule& m) { return m.scheme.calibrates_inputs(); });
  if (!plan.needs_calibration && !plan.target_bits) return;
  refuse_uncalibrated_blocks(recipe, spec, plan);
  plan.experts_at_once = experts_to_calibrate(recipe, spec, plan);
  plan.chunk_tokens = calibration_chunk(recipe, spec);
}

bool is_fixed(const SiteSpec& site) { return std::holds_alternative<std::monostate>(site.producer); }
bool is_unsearched(const SiteSpec& site) { return !site.searched; }
bool is_unsmoothed(const SiteSpec& site) { return !site.smoothed; }

// Names of such sites, each once; those of experts ("x_down.3") by what they have in common.
std::vector<std::string> sites_that(bool (*are)(const SiteSpec&), const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const BlockSpec& block : spec.blocks)
    for (const SiteSpec& site : block.sites) {
      const std::string name = site.name.substr(0, site.name.find('.'));
      if (are(site) && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  return names;
}

// What the blocks leave for the method to do. Where every output passes a norm before it is added, or is
// added beside another, no output makes up for what the residual stream lost before it.
void suit_to_blocks(const Recipe& recipe, const ModelSpec& spec, Plan& plan) {
  if (const std::vector<std::string> fixed = sites_that(is_fixed, spec); plan.traits->folds && !fixed.empty())
    plan.warnings.push_back(fmt::format("{} moves no scale out of {}: nothing makes {} that could be divided",
                                        plan.method, fmt::join(fixed, " and "),
                                        fixed.size() == 1 ? "it" : "them"));
  if (const std::vector<std::string> left = sites_that(is_unsearched, spec);
      plan.traits->searches_by_gram && !left.empty())
    plan.warnings.push_back(fmt::format("{} moves no scale out of {}: it was measured to lose in family {}",
                                        plan.method, fmt::join(left, " and "), spec.family));
  if (const std::vector<std::string> left = sites_that(is_unsmoothed, spec);
      plan.traits->samples_rows && !left.empty())
    plan.warnings.push_back(
        fmt::format("{} moves no scale out of {}: it was measured to lose in mixtures of "
                    "experts; attention is smoothed",
                    plan.method, fmt::join(left, " and ")));
  const bool none_alone = std::all_of(spec.blocks.begin(), spec.blocks.end(), [](const BlockSpec& block) {
    return std::all_of(block.sublayers.begin(), block.sublayers.end(),
                       [](const SublayerSpec& part) { return part.shares_what_is_added(); });
  });
  if (!takes_back_upstream(plan) || !none_alone) return;
  plan.gptq.upstream_share = 0;
  if (recipe.gptq.upstream_share)
    plan.warnings.emplace_back(
        "gptq.upstream_share: every output passes a norm before it is added or is added beside another, so "
        "none takes anything back");
}

// The modules with the schemes that were chosen; those that stay dense go to `ignored`.
void apply_choices(const MixedPrecision& chosen, Plan& plan) {
  std::map<std::string, std::size_t> candidate_of;
  for (const PrecisionChoice& choice : chosen.choices)
    for (const std::string& module : choice.modules) candidate_of[module] = choice.chosen;
  std::vector<PlannedModule> quantized;
  for (std::size_t place = 0; place < plan.modules.size(); ++place) {
    const std::string& module = plan.modules[place].module;
    const PrecisionCandidate& candidate = plan.candidates[candidate_of.at(module)];
    if (candidate.stays_dense())
      plan.ignored.push_back(module);
    else
      quantized.push_back(candidate.modules[place]);
  }
  plan.modules = std::move(quantized);
}

}  // namespace

bool takes_back_upstream(const Plan& plan) {
  return plan.traits->factorizes && plan.gptq.upstream_share.value_or(0) > 0;
}

void refuse_packed(const Checkpoint& checkpoint) {
  if (LinearSource::open(checkpoint).format() != PackedFormat::kNone)
    fail(ErrorKind::kUnsupported,
         {"the linears lie packed, and are rounded again as numbers alone", checkpoint.path().string(),
          "quantization_config", "plan for what unpacked() makes of the checkpoint"});
}

namespace {

// Of linears that are made of codes, which all say the same.
std::vector<std::string> told_of_packed(const Checkpoint& checkpoint) {
  std::vector<std::string> of_change;  // where one changes numbers that were not packed
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const ChangedNumbers* const changed = changed_numbers(tensor);
    if (tensor.unpacking && (changed == nullptr || changed->of_codes())) return tensor.unpacking->told();
    if (changed != nullptr && of_change.empty()) of_change = changed->told();
  }
  return of_change;
}

}  // namespace

std::vector<std::string> told_of_source(const Recipe& recipe, const Checkpoint& checkpoint,
                                        const ModelSpec& spec,
                                        const std::function<bool(const LinearSpec&)>& is_rounded) {
  std::vector<std::string> told = recipe.notes;
  const std::vector<std::string> of_packed = told_of_packed(checkpoint);
  told.insert(told.end(), of_packed.begin(), of_packed.end());
  if (!of_packed.empty()) return told;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears) {
      const StoredTensor* weight = checkpoint.find(linear.weight.tensor);
      if (weight == nullptr || !is_rounded(linear)) continue;
      const std::string form = first_rounding(*weight);
      if (form.empty()) continue;
      told.push_back(told_of_second_rounding(linear.module, form));
      return told;
    }
  return told;
}

std::int64_t chunk_of(std::int64_t length) {
  constexpr std::int64_t kChunkTokens = 4096;
  return std::max<std::int64_t>(1, kChunkTokens / length) * length;
}

std::int64_t calibration_chunk(const Recipe& recipe, const ModelSpec& spec) {
  const std::int64_t length = recipe.calibration.sequence_length;
  if (length > spec.max_position)
    fail(ErrorKind::kUsage,
         {fmt::format("samples of {} tokens exceed the model's {} positions", length, spec.max_position),
          recipe.source, "calibration.sequence_length", fmt::format("write at most {}", spec.max_position)});
  return chunk_of(length);
}

Plan make_plan(const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec, Compute compute,
               int threads, std::uint64_t memory_limit, PlannedDevices devices) {
  require_written(spec, recipe.format, recipe.source);
  Plan plan;
  plan.devices = std::move(devices.names);
  plan.device_room = devices.room;
  plan.joining_bytes = devices.joining_bytes;
  plan.ranks = devices.ranks;
  plan.traits = &find_method(recipe.methods, recipe, recipe.source);
  plan.method = plan.traits->name;
  static_cast<MethodOptions&>(plan) = complete_options(*plan.traits, recipe);
  plan.floats.power_of_two = packed_format(recipe.format).global_form == GlobalForm::kFactor;
  plan.format = recipe.format;
  plan.compute = compute;
  plan.activations = recipe.activations;
  plan.target_bits = recipe.target_bits;
  plan.measured_samples = recipe.mixed.samples;
  check_intent(recipe, checkpoint, spec);
  const PackedFormatRow& format = packed_format(recipe.format);
  check_model_written(format, spec, recipe.source);
  const std::vector<ChosenLinear> chosen = choose_linears(recipe, spec, plan);
  if (chosen.empty())
    fail(ErrorKind::kUsage,
         {"every linear is ignored: nothing is left to quantize", recipe.source, "ignore", {}});
  plan.modules = resolve_modules(recipe, plan, checkpoint, chosen);
  if (recipe.mixed.schemes.empty()) {
    check_float_codes(recipe, plan.modules, plan);
    warn_of_plain_rounding(plan);
  }
  check_fused_sets(recipe, spec, plan);
  plan.rotated = rotated_heads(recipe, spec, plan.modules);
  suit_to_blocks(recipe, spec, plan);
  check_expressible(plan.format, plan.modules);
  plan_tower(recipe, checkpoint, spec, plan);
  if (!format.column_groups_warning.empty() &&
      std::any_of(plan.modules.begin(), plan.modules.end(), [](const auto& m) { return m.column_groups; }))
    plan.warnings.emplace_back(format.column_groups_warning);
  plan.kv_cache = recipe.kv_cache;
  if (plan.kv_cache) check_kv_cache_place(format, recipe.source);
  resolve_calibration(recipe, spec, plan);
  if (plan.target_bits) plan.candidates = resolve_candidates(recipe, plan, checkpoint, chosen);
  if (recipe.rotates_values) check_rotated_schemes(recipe, spec, plan);
  std::set<std::string> rounded;
  for (const PlannedModule& m : plan.modules) rounded.insert(m.module);
  for (std::string& said : told_of_source(recipe, checkpoint, spec, [&](const LinearSpec& linear) {
         return rounded.count(linear.module) != 0;
       }))
    plan.warnings.push_back(std::move(said));
  if (plan.traits->factorizes && !devices.host_factorization.empty())
    plan.warnings.push_back(devices.host_factorization);
  if (plan.needs_calibration && compute == Compute::kBFloat16 && !devices.own_products.empty())
    plan.warnings.push_back(devices.own_products);
  keep_within_limits(plan, recipe.source, checkpoint, spec, threads, memory_limit);
  return plan;
}

Plan plan_with_bits(const Plan& plan, MixedPrecision chosen, const std::string& source,
                    const Checkpoint& checkpoint, const ModelSpec& spec, int threads,
                    std::uint64_t memory_limit) {
  Plan with_bits = plan;
  apply_choices(chosen, with_bits);
  warn_of_plain_rounding(with_bits);
  check_expressible(with_bits.format, with_bits.modules);
  with_bits.mixed = std::move(chosen);
  keep_within_limits(with_bits, source, checkpoint, spec, threads, memory_limit);
  return with_bits;
}

std::int64_t Plan::gram_tokens() const {
  const bool for_the_report_alone =
      traits->samples_rows && smoothquant.alpha.has_value() && !traits->factorizes;
  return for_the_report_alone ? kGramChunkRows : kAllTokens;
}

std::int64_t Plan::chunks() const {
  return chunk_count(calibration.samples, std::max<std::int64_t>(1, calibration.sequence_length),
                     chunk_tokens);
}

double Plan::bits_per_weight() const { return stored_bits_per_weight(format, modules); }

std::vector<PlannedModule> Plan::packed() const {
  std::vector<PlannedModule> all = modules;
  all.insert(all.end(), tower.begin(), tower.end());
  return all;
}

}  // namespace llmq
