#include "quant/mixed_precision/mixed_precision.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "export/formats/packed_formats.h"
#include "export/output/model_writer.h"
#include "quant/mixed_precision/knapsack.h"
#include "quant/mixed_precision/sensitivity.h"
#include "quant/plan/plan.h"
#include "quant/plan/schemes.h"
#include "quant/recipe/recipe.h"

namespace llmq {
namespace {

const std::vector<int> kDefaultCandidates = {4, 8, kDenseBits};

std::uint64_t weights_of(const PlannedModule& module) {
  return static_cast<std::uint64_t>(module.out_features) * static_cast<std::uint64_t>(module.in_features);
}

using Candidates = std::vector<PrecisionCandidate>;

// Of one linear, the plan's at `place`, with a candidate.
std::uint64_t stored_bits_of(const Plan& plan, const PrecisionCandidate& candidate, std::size_t place,
                             const Checkpoint& checkpoint) {
  if (!candidate.stays_dense()) return stored_bits(plan.format, candidate.modules[place]);
  const PlannedModule& module = plan.modules[place];
  return weights_of(module) * 8 *
         static_cast<std::uint64_t>(element_bytes(written_dtype(checkpoint.at(module.module + ".weight"))));
}

std::uint64_t stored_bits_of(const Plan& plan, const PrecisionCandidate& candidate,
                             const Checkpoint& checkpoint) {
  std::uint64_t sum = 0;
  for (std::size_t place = 0; place < plan.modules.size(); ++place)
    sum += stored_bits_of(plan, candidate, place, checkpoint);
  return sum;
}

PrecisionCandidate with_bits(const Plan& plan, int bits) {
  PrecisionCandidate candidate{bits, {}, {}};
  if (bits == kDenseBits) return candidate;
  candidate.modules = plan.modules;
  for (PlannedModule& module : candidate.modules) module.scheme.bits = bits;
  return candidate;
}

// Whether the format can store linears of `candidate` beside linears of `first`.
void check_candidate(const Plan& plan, const PrecisionCandidate& first, const PrecisionCandidate& candidate) {
  if (candidate.stays_dense()) return;
  std::vector<PlannedModule> modules = candidate.modules;
  check_expressible(plan.format, modules);
  if (!first.stays_dense()) modules.front() = first.modules.front();
  check_expressible(plan.format, modules);
}

Candidates storable_defaults(const Plan& plan) {
  Candidates candidates;
  for (const int bits : kDefaultCandidates) {
    try {
      const PrecisionCandidate candidate = with_bits(plan, bits);
      check_candidate(plan, candidates.empty() ? candidate : candidates.front(), candidate);
      candidates.push_back(candidate);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
    }
  }
  return candidates;
}

void check_request(const Recipe& recipe, const Plan& plan) {
  if (packed_format(plan.format).dense)
    fail(ErrorKind::kUnsupported,
         {fmt::format("a budget of bits means nothing where format {} stores dense weights", plan.format),
          recipe.source, "target_bits", "write format: compressed-tensors"});
  if (!recipe.overrides.empty())
    fail(ErrorKind::kUnsupported,
         {"a budget of bits and overrides of single linears together are not in this version", recipe.source,
          "target_bits", "leave out one of them"});
  const auto& schemes = recipe.mixed.schemes;
  if (!schemes.empty() && std::none_of(schemes.begin(), schemes.end(), [](auto& one) { return !!one; }))
    fail(ErrorKind::kUsage, {"every candidate leaves every linear as it is", recipe.source, "mixed.schemes",
                             "write schemes: [w4a16_g64_asym, nvfp4a16, fp8]"});
  if (!schemes.empty()) return;
  for (const PlannedModule& module : plan.modules)
    if (module.scheme.activation_bits != 16 || module.scheme.weight_type != WeightType::kInteger)
      fail(ErrorKind::kUnsupported,
           {"a budget of bits is for integer weights with 16-bit activations, not " + module.scheme.text(),
            recipe.source, "target_bits", "write scheme: w4a16, or candidates as mixed.schemes"});
}

// What rounding inputs costs is known of E4M3, scaled as they come (sensitivity.h).
void check_inputs(const Recipe& recipe, const QuantScheme& scheme) {
  const bool known =
      scheme.activation_scale == ActivationScale::kNone ||
      (scheme.weight_type == WeightType::kFloat8 && scheme.activation_scale != ActivationScale::kTensor);
  if (!known)
    fail(ErrorKind::kUnsupported,
         {fmt::format("what the rounded inputs of {} cost is not measured", scheme.text()), recipe.source,
          "mixed.schemes", "leave it out; weights alone, fp8 and fp8_block are measured"});
}

Candidates whole_schemes(const Recipe& recipe, const Plan& plan, const Checkpoint& checkpoint,
                         const std::vector<ChosenLinear>& chosen) {
  Candidates candidates;
  std::vector<PlannedModule> one_of_each;
  for (const std::optional<SchemeRequest>& asked : recipe.mixed.schemes) {
    PrecisionCandidate& candidate = candidates.emplace_back();
    candidate.bits = kDenseBits, candidate.scheme = kDenseWord;
    if (!asked) continue;
    std::vector<ChosenLinear> linears = chosen;
    for (ChosenLinear& linear : linears) linear.request = *asked;
    candidate.modules = resolve_modules(recipe, plan, checkpoint, linears);
    const QuantScheme& scheme = candidate.modules.front().scheme;
    check_inputs(recipe, scheme);
    candidate.bits = scheme.bits, candidate.scheme = scheme.text();
    for (std::size_t other = 0; other + 1 < candidates.size(); ++other)
      if (candidates[other].scheme == candidate.scheme)
        fail(ErrorKind::kUsage,
             {fmt::format("two candidates are {} where what they leave open is settled", candidate.scheme),
              recipe.source, "mixed.schemes", "leave one out"});
    one_of_each.push_back(candidate.modules.front());
  }
  check_float_codes(recipe, one_of_each, plan);
  std::stable_sort(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    return stored_bits_of(plan, a, checkpoint) < stored_bits_of(plan, b, checkpoint);
  });
  return candidates;
}

// "4 bits everywhere take", "nvfp4a16 everywhere takes"
std::string everywhere(const PrecisionCandidate& candidate) {
  return candidate.scheme.empty() ? fmt::format("{} bits everywhere take", candidate.bits)
                                  : candidate.scheme + " everywhere takes";
}

double budget_of(double target, std::uint64_t weights) {
  return std::floor(target * static_cast<double>(weights));
}

// "4.313": never below the number itself.
std::string rounded_up(double bits) { return fmt::format("{:.3f}", std::ceil(bits * 1000) / 1000); }

// Of each expert's linear that a row may be sent to: which mixture has it, and how many experts that has.
struct ExpertPlace {
  const MixtureSpec* mixture = nullptr;
  std::int64_t experts = 0;
};
std::map<std::string, ExpertPlace> places_of_experts(const ModelSpec& spec) {
  std::map<std::string, ExpertPlace> places;
  for (const BlockSpec& block : spec.blocks)
    if (const MixtureSpec* const mixture = block.mixture(); mixture != nullptr)
      for (const ExpertSpec& expert : mixture->experts)
        for (const LinearId id : expert.linears())
          places[block.at(id).module] = {mixture, std::ssize(mixture->experts)};
  return places;
}

void add_group(const Plan& plan, const MeasuredGroup& group, const Checkpoint& checkpoint,
               PrecisionChoice& choice) {
  for (const std::size_t place : group.modules) {
    choice.modules.push_back(plan.modules[place].module);
    choice.weights += weights_of(plan.modules[place]);
  }
  choice.options.resize(plan.candidates.size());
  for (std::size_t b = 0; b < plan.candidates.size(); ++b) {
    PrecisionOption& option = choice.options[b];
    option.bits = plan.candidates[b].bits;
    option.scheme = plan.candidates[b].scheme;
    option.gram_loss += group.gram_loss[b];
    option.divergence += group.loss[b];
    for (const std::size_t place : group.modules)
      option.stored += stored_bits_of(plan, plan.candidates[b], place, checkpoint);
  }
}

MixedPrecision tabulate(const Plan& plan, const ModelSpec& spec, const std::vector<MeasuredGroup>& measured,
                        const Checkpoint& checkpoint) {
  const std::map<std::string, ExpertPlace> experts = places_of_experts(spec);
  std::map<const MixtureSpec*, std::size_t> choice_of;
  MixedPrecision mixed;
  mixed.target_bits = *plan.target_bits;
  for (const MeasuredGroup& group : measured) {
    std::size_t choice = mixed.choices.size();
    const auto expert = experts.find(plan.modules[group.modules.front()].module);
    if (expert != experts.end()) choice = choice_of.emplace(expert->second.mixture, choice).first->second;
    if (choice == mixed.choices.size()) mixed.choices.emplace_back();
    if (expert != experts.end()) mixed.choices[choice].experts = expert->second.experts;
    add_group(plan, group, checkpoint, mixed.choices[choice]);
  }
  return mixed;
}

void choose(MixedPrecision& mixed) {
  std::vector<std::vector<BudgetOption>> groups;
  std::uint64_t weights = 0;
  for (const PrecisionChoice& choice : mixed.choices) {
    weights += choice.weights;
    mixed.uniform_divergence += choice.options.front().divergence;
    std::vector<BudgetOption>& options = groups.emplace_back();
    for (const PrecisionOption& option : choice.options)
      options.push_back({option.stored, option.divergence});
  }
  const std::optional<BudgetChoice> found =
      choose_within(groups, static_cast<std::uint64_t>(budget_of(mixed.target_bits, weights)));
  if (!found)
    fail(ErrorKind::kInternal, "the budget of {} bits per weight fell short after it was checked",
         mixed.target_bits);
  for (std::size_t g = 0; g < groups.size(); ++g) mixed.choices[g].chosen = found->option[g];
  mixed.bits_per_weight = static_cast<double>(found->cost) / static_cast<double>(weights);
  mixed.divergence = found->loss;
  mixed.optimal = found->optimal;
}

}  // namespace

std::vector<PrecisionCandidate> resolve_candidates(const Recipe& recipe, const Plan& plan,
                                                   const Checkpoint& checkpoint,
                                                   const std::vector<ChosenLinear>& chosen) {
  check_request(recipe, plan);
  Candidates candidates;
  if (!recipe.mixed.schemes.empty())
    candidates = whole_schemes(recipe, plan, checkpoint, chosen);
  else if (recipe.mixed.bits.empty())
    candidates = storable_defaults(plan);
  for (const int bits : recipe.mixed.bits) candidates.push_back(with_bits(plan, bits));
  for (const PrecisionCandidate& candidate : candidates) check_candidate(plan, candidates.front(), candidate);
  std::uint64_t weights = 0;
  for (const PlannedModule& module : plan.modules) weights += weights_of(module);
  const auto least = static_cast<double>(stored_bits_of(plan, candidates.front(), checkpoint)),
             most = static_cast<double>(stored_bits_of(plan, candidates.back(), checkpoint));
  const double budget = budget_of(*recipe.target_bits, weights),
               per_weight = 1 / static_cast<double>(weights);
  if (budget < least)
    fail(ErrorKind::kUsage,
         {fmt::format("{} bits per weight are fewer than {} with scales and zeros", *recipe.target_bits,
                      everywhere(candidates.front())),
          recipe.source, "target_bits", "at least " + rounded_up(least * per_weight) + " would do"});
  if (candidates.back().stays_dense() && budget >= most)
    fail(ErrorKind::kUsage,
         {fmt::format("{} bits per weight pay for leaving every linear as it is", *recipe.target_bits),
          recipe.source, "target_bits", "write less than " + fmt::format("{:g}", most * per_weight)});
  return candidates;
}

MixedPrecision choose_precision(const Plan& plan, const ModelSpec& spec,
                                const std::vector<MeasuredGroup>& measured, const Checkpoint& checkpoint) {
  MixedPrecision mixed = tabulate(plan, spec, measured, checkpoint);
  choose(mixed);
  return mixed;
}

Json MixedPrecision::to_json() const {
  Json rows = Json::array();
  for (const PrecisionChoice& choice : choices) {
    Json options = Json::array();
    for (const PrecisionOption& option : choice.options) {
      Json said = Json::object({{"bits", Json(option.bits)},
                                {"bits_per_weight", Json(static_cast<double>(option.stored) /
                                                         static_cast<double>(choice.weights))},
                                {"loss", Json(option.gram_loss)},
                                {"kl", Json(option.divergence)}});
      if (!option.scheme.empty()) said["scheme"] = option.scheme;
      options.push_back(std::move(said));
    }
    Json row = Json::object({{"modules", text_list(choice.modules)},
                             {"bits", Json(choice.options[choice.chosen].bits)},
                             {"options", options}});
    const std::string& scheme = choice.options[choice.chosen].scheme;
    if (!scheme.empty()) row["scheme"] = scheme;
    if (choice.experts != 0) row["experts"] = choice.experts;
    rows.push_back(std::move(row));
  }
  return Json::object({{"target_bits", Json(target_bits)},
                       {"bits_per_weight", Json(bits_per_weight)},
                       {"kl", Json(divergence)},
                       {"kl_at_fewest_bits", Json(uniform_divergence)},
                       {"optimal", Json(optimal)},
                       {"choices", rows}});
}

}  // namespace llmq
