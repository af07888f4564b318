#include "quant/plan/ranks/measuring_work.h"

#include <algorithm>
#include <map>
#include <string>

#include "quant/methods/awq/clip_search.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/mixed_precision/sensitivity.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/pipeline/scale_folding.h"

namespace llmq {
namespace {

class BlockByBlock {
 public:
  BlockByBlock(const Plan& plan, const ModelSpec& spec)
      : plan_(plan),
        tokens_(static_cast<double>(std::min(plan.measured_samples, plan.calibration.samples)) *
                static_cast<double>(plan.calibration.sequence_length)),
        probe_(
            static_cast<double>(kProbeSamples * std::min(kProbeLength, plan.calibration.sequence_length))) {
    for (const PrecisionCandidate& candidate : plan.candidates)
      for (const PlannedModule& module : candidate.modules) schemes_[module.module].push_back(module.scheme);
    for (const BlockSpec& block : spec.blocks) add(block);
    const double head = probe_ / 2 * static_cast<double>(spec.vocab_size) *
                        static_cast<double>(spec.hidden_size);  // every second position
    work_.by_each += 2 * head;
    work_.dealt += 2 * head * forks_;
    work_.divergences = static_cast<std::uint64_t>(forks_);
  }
  MeasuringWork work() const { return work_; }

 private:
  void add(const BlockSpec& block) {
    double weights = 0;
    for (const LinearSpec& linear : block.linears) {
      weights += static_cast<double>(linear.out_features) * static_cast<double>(linear.in_features);
      judge(linear);
    }
    for (const SublayerSpec& part : block.sublayers)
      if (const auto* const mixture = std::get_if<MixtureSpec>(&part.mixer)) {
        for (const ExpertSpec& expert : mixture->experts) sum_expert(block, *mixture, expert);
        if (mixture->shared) sum_expert(block, *mixture, *mixture->shared);
      } else {
        for (const SiteId site : part.sites) {
          sum(block.at(site).channels);
          search(block, site);
        }
      }
    forks_ += static_cast<double>(group_weights(block).size());
    work_.by_samples += 2 * 2 * weights * tokens_;  // for the statistics of inputs, and once more behind them
    work_.dealt += 2 * weights * probe_ * forks_;
    work_.by_each += 2 * weights * probe_;
  }

  void sum_expert(const BlockSpec& block, const MixtureSpec& mixture, const ExpertSpec& expert) {
    sum(mixture.hidden);
    sum(block.at(expert.inner).channels);
  }

  void sum(std::int64_t channels) {
    const std::uint64_t k = counted(channels);
    work_.triangles += k * (k + 1) / 2;
    work_.magnitudes += k;
    work_.by_samples += tokens_ * static_cast<double>(k) * static_cast<double>(k);
  }

  void search(const BlockSpec& block, SiteId id) {
    const auto is_planned = [&](LinearId linear) { return schemes_.contains(block.at(linear).module); };
    if (!plan_.searches_while_measuring() || !site_can_fold(*plan_.traits, block, id, is_planned)) return;
    const std::uint64_t losses = scale_search_losses(planned_reader_rows(block, id, is_planned), plan_.awq),
                        k = counted(block.at(id).channels);
    work_.losses += losses * kLossBytes;
    work_.dealt += 2 * static_cast<double>(losses) * static_cast<double>(k * k);
  }

  void judge(const LinearSpec& linear) {
    const auto found = schemes_.find(linear.module);
    if (found == schemes_.end()) return;
    const std::uint64_t out = counted(linear.out_features), in = counted(linear.in_features);
    const double k = static_cast<double>(in), products = static_cast<double>(out) * k * k;
    for (const QuantScheme& scheme : found->second) {
      const bool by_method = plan_.measures_by_method() && chooses_codes(*plan_.traits, scheme);
      const std::uint64_t groups = counted(scheme.groups_of(linear.in_features));
      work_.losses += rounding_losses(plan_, scheme, by_method, out, groups) * kLossBytes;
      work_.dealt += 2 * products;
      if (by_method && plan_.traits->clips && plan_.awq.clip)
        work_.dealt +=
            2 * products *
            (1 + static_cast<double>(clip_options(scheme.symmetric)) / static_cast<double>(groups));
      if (!by_method || !plan_.traits->factorizes) continue;
      work_.by_each += k * k * k;
      if (!deals_codes(plan_, scheme)) continue;
      work_.codes += dealt_code_bytes(out, in, groups);
      work_.dealt += products;
    }
  }

  const Plan& plan_;
  const double tokens_, probe_;
  std::map<std::string, std::vector<QuantScheme>> schemes_;  // of the candidates that round, by module
  double forks_ = 0;
  MeasuringWork work_;
};

}  // namespace

std::uint64_t rounding_losses(const Plan& plan, const QuantScheme& scheme, bool by_method, std::uint64_t rows,
                              std::uint64_t groups) {
  if (!by_method || !plan.traits->clips) return rows;
  if (scheme.scale_form() != ScaleForm::kNumber) return 2 * rows;
  return plan.awq.clip ? rows * (2 + groups * clip_options(scheme.symmetric)) : rows;
}

bool deals_codes(const Plan& plan, const QuantScheme& scheme) {
  return plan.traits->factorizes && chooses_codes(*plan.traits, scheme) &&
         (!plan.device_room || scheme.scale_form() != ScaleForm::kNumber);
}

std::uint64_t dealt_code_bytes(std::uint64_t rows, std::uint64_t columns, std::uint64_t groups) {
  return rows * columns + rows * groups * 5;
}

MeasuringWork measuring_work(const Plan& plan, const ModelSpec& spec) {
  return plan.target_bits ? BlockByBlock(plan, spec).work() : MeasuringWork();
}

std::int64_t measured_chunks(const Plan& plan) {
  if (!plan.target_bits) return 0;
  return chunk_count(std::min(plan.measured_samples, plan.calibration.samples),
                     std::max<std::int64_t>(1, plan.calibration.sequence_length), plan.chunk_tokens);
}

}  // namespace llmq
