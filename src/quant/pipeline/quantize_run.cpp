#include "quant/pipeline/quantize_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "quant/plan/replaced_weights.h"

namespace llmq {

QuantizeRun::QuantizeRun(const Plan& of, const LinearSource& from, const ModelSpec& model, Backend& on,
                         const PipelineOptions& how, QuantizeReport& found, PartClock& time,
                         std::unique_ptr<Method> rounds, BackgroundWriter& into)
    : plan(of),
      source(from),
      spec(model),
      backend(on),
      options(how),
      report(found),
      clock(time),
      rounding(std::move(rounds)),
      nearest(plain_rounding().make(of, of.compute)),
      writing(into),
      replaced(replaced_weights(of.packed(), model)),
      never_quantized(of.traits->folds ? model.never_quantized() : std::set<std::string>()) {
  experts_at_once =
      static_cast<std::size_t>(-most_of(ranks(), -std::max<std::int64_t>(1, plan.experts_at_once)));
  for (const PlannedModule& module : plan.modules) planned[module.module] = &module;
  for (const auto& [name, module] : planned) names.insert(name);
  for (const PlannedModule& module : plan.tower) planned[module.module] = &module;
}

std::vector<Backend*> QuantizeRun::devices() const {
  std::vector<Backend*> all = {&backend};
  for (const std::shared_ptr<Backend>& further : options.further_devices) all.push_back(further.get());
  return all;
}

double PartClock::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void PartClock::charge(const std::string& part) {
  const double time = now();
  auto entry = std::find_if(seconds_.begin(), seconds_.end(), [&](const auto& e) { return e.first == part; });
  if (entry == seconds_.end()) entry = seconds_.insert(seconds_.end(), {part, 0.0});
  entry->second += time - last_;
  last_ = time;
}

ZeroedNumbers<float> load_planned_weight(QuantizeRun& run, const LinearSpec& linear) {
  ZeroedNumbers<float> weight = run.source.weight(linear, run.pool(), run.options.allow_nonfinite);
  if (!run.options.allow_nonfinite) return weight;
  float largest = 0;
  std::size_t replaced = 0;
  for (const float w : weight)
    if (std::isfinite(w)) largest = std::max(largest, std::fabs(w));
  for (float& w : weight) {
    if (std::isfinite(w)) continue;
    w = std::isnan(w) ? 0.0f : std::copysign(largest, w);
    ++replaced;
  }
  if (replaced != 0)
    run.report.warnings.push_back(
        fmt::format("{}.weight: {} values that are not finite were replaced (NaN by 0, infinity by {:g})",
                    linear.module, replaced, largest));
  return weight;
}

void read_ahead(const QuantizeRun& run, std::size_t block) {
  if (block >= run.spec.blocks.size()) return;
  const Checkpoint& checkpoint = run.source.checkpoint();
  for (const LinearSpec& linear : run.spec.blocks[block].linears) {
    if (!run.plan.needs_calibration &&
        (run.planned.count(linear.module) == 0 || !run.quantizes(linear.module)))
      continue;  // nobody will look at it
    if (const StoredTensor* tensor = checkpoint.find(linear.weight.tensor)) checkpoint.read_ahead(*tensor);
  }
}

}  // namespace llmq
