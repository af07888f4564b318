#include "export/formats/fused_scales.h"

#include <fmt/format.h>

#include <bit>
#include <map>
#include <set>

#include "export/formats/fused_linears.h"
#include "io/checkpoint.h"
#include "model/packed/packed_floats.h"

namespace llmq {
namespace {

// The sets that were met, by name, and what the first linear of each has.
class FusedNumbers {
 public:
  explicit FusedNumbers(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // A NaN is like itself, and what it means is said where it is decoded.
  void add(const std::string& set, const std::string& module, const char* suffix) {
    const float number = checkpoint_.read_float32(checkpoint_.at(module + suffix)).at(0);
    const auto [first, fresh] = first_.try_emplace(set, module, number);
    if (fresh || std::bit_cast<std::uint32_t>(first->second.second) == std::bit_cast<std::uint32_t>(number))
      return;
    if (!unlike_) unlike_ = {set, first->second.first, module, first->second.second, number};
    if (sets_.insert(set).second) ++unlike_->sets;
  }
  const std::optional<UnlikeScales>& unlike() const { return unlike_; }

 private:
  const Checkpoint& checkpoint_;
  std::map<std::string, std::pair<std::string, float>> first_;
  std::set<std::string> sets_;  // unlike ones
  std::optional<UnlikeScales> unlike_;
};

}  // namespace

FusedScales read_fused_scales(const Checkpoint& checkpoint, std::span<const PlannedModule> modules) {
  std::set<std::string> names;
  for (const PlannedModule& m : modules) names.insert(m.module);
  FusedNumbers weights(checkpoint), inputs(checkpoint);
  for (const PlannedModule& m : modules) {
    const FusedLinear whole = fused_linear(m.module, names);
    if (whole.parts == 1) continue;
    const bool two_levels = m.scheme.scale_form() == ScaleForm::kTwoLevel,
               compressed = checkpoint.find(m.module + kPackedSuffix) != nullptr;
    if (two_levels) weights.add(whole.module, m.module, compressed ? kGlobalSuffix : kFactorSuffix);
    if (m.scheme.calibrates_inputs())
      inputs.add(whole.module, m.module, two_levels && compressed ? ".input_global_scale" : ".input_scale");
  }
  return {weights.unlike(), inputs.unlike()};
}

std::string said_of_keeping(const UnlikeScales& weights, const std::string& format) {
  return fmt::format(
      "{} and {} have different global scales ({} and {}){}; --to {} keeps them, and vLLM, which runs the "
      "two as one linear, decodes both by one of them: their weights would be wrong there",
      weights.first, weights.second, weights.of_first, weights.of_second,
      weights.sets == 1 ? "" : fmt::format(", and so have linears of {} further sets", weights.sets - 1),
      format);
}

}  // namespace llmq
