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
#include "quant/recipe/recipe.h"

namespace llmq {
namespace {

const std::vector<int> kDefaultCandidates = {4, 8, kDenseBits};

std::uint64_t weights_of(const PlannedModule& module) {
  return static_cast<std::uint64_t>(module.out_features) * static_cast<std::uint64_t>(module.in_features);
}

std::uint64_t stored_bits_of(const Plan& plan, PlannedModule module, int bits, const Checkpoint& checkpoint) {
  if (bits == kDenseBits)
    return weights_of(module) * 8 *
           static_cast<std::uint64_t>(element_bytes(written_dtype(checkpoint.at(module.module + ".weight"))));
  module.scheme.bits = bits;
  return stored_bits(plan.format, module);
}

// Whether the format can store linears of `bits` beside linears of `fewest`.
void check_candidate(const Plan& plan, int fewest, int bits) {
  std::vector<PlannedModule> modules = plan.modules;
  for (PlannedModule& module : modules) module.scheme.bits = bits;
  check_expressible(plan.format, modules);
  modules.front().scheme.bits = fewest;
  check_expressible(plan.format, modules);
}

std::vector<int> storable_defaults(const Plan& plan) {
  std::vector<int> bits;
  for (const int candidate : kDefaultCandidates) {
    try {
      if (candidate != kDenseBits) check_candidate(plan, bits.empty() ? candidate : bits.front(), candidate);
      bits.push_back(candidate);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
    }
  }
  return bits;
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
  for (const PlannedModule& module : plan.modules)
    if (module.scheme.activation_bits != 16 || module.scheme.weight_type != WeightType::kInteger)
      fail(ErrorKind::kUnsupported,
           {"a budget of bits is for integer weights with 16-bit activations, not " + module.scheme.text(),
            recipe.source, "target_bits", "write scheme: w4a16"});
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
  choice.options.resize(plan.candidate_bits.size());
  for (std::size_t b = 0; b < plan.candidate_bits.size(); ++b) {
    PrecisionOption& option = choice.options[b];
    option.bits = plan.candidate_bits[b];
    option.gram_loss += group.gram_loss[b];
    option.divergence += group.loss[b];
    for (const std::size_t place : group.modules)
      option.stored += stored_bits_of(plan, plan.modules[place], option.bits, checkpoint);
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

std::vector<int> resolve_candidates(const Recipe& recipe, const Plan& plan, const Checkpoint& checkpoint) {
  check_request(recipe, plan);
  std::vector<int> bits = recipe.mixed.bits.empty() ? storable_defaults(plan) : recipe.mixed.bits;
  for (const int candidate : bits)
    if (candidate != kDenseBits) check_candidate(plan, bits.front(), candidate);
  std::uint64_t weights = 0, least = 0, most = 0;
  for (const PlannedModule& module : plan.modules) {
    weights += weights_of(module);
    least += stored_bits_of(plan, module, bits.front(), checkpoint);
    most += stored_bits_of(plan, module, bits.back(), checkpoint);
  }
  const double budget = budget_of(*recipe.target_bits, weights),
               per_weight = 1 / static_cast<double>(weights);
  if (budget < static_cast<double>(least))
    fail(ErrorKind::kUsage,
         {fmt::format("{} bits per weight are fewer than {} bits everywhere take with scales and zeros",
                      *recipe.target_bits, bits.front()),
          recipe.source, "target_bits",
          "at least " + rounded_up(static_cast<double>(least) * per_weight) + " would do"});
  if (bits.back() == kDenseBits && budget >= static_cast<double>(most))
    fail(ErrorKind::kUsage,
         {fmt::format("{} bits per weight pay for leaving every linear as it is", *recipe.target_bits),
          recipe.source, "target_bits",
          "write less than " + fmt::format("{:g}", static_cast<double>(most) * per_weight)});
  return bits;
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
    for (const PrecisionOption& option : choice.options)
      options.push_back(Json::object({{"bits", Json(option.bits)},
                                      {"bits_per_weight", Json(static_cast<double>(option.stored) /
                                                               static_cast<double>(choice.weights))},
                                      {"loss", Json(option.gram_loss)},
                                      {"kl", Json(option.divergence)}}));
    Json row = Json::object({{"modules", text_list(choice.modules)},
                             {"bits", Json(choice.options[choice.chosen].bits)},
                             {"options", options}});
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
