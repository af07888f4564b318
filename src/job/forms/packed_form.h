// A directory of packed safetensors: plan -> bits of every linear -> pipeline -> shards, index and config;
// then report.json, report.html and README.md (job/forms/packed_documents.h).
#pragma once
#include <memory>

#include "job/forms/output_form.h"

namespace llmq {

class PackedForm final : public OutputForm {
 public:
  explicit PackedForm(const JobInputs& inputs);

  PlanOutline outline() const override;
  const CalibrationRequest& calibration() const override { return made_->plan.calibration; }
  std::variant<const Plan*, const GgufPlan*> plan() const override { return &made_->plan; }
  const PlanCosts& costs() const override { return made_->costs; }
  TimePrediction predict() const override;
  RankShares shares() const override;
  RankCosts over_ranks(int ranks) const override;
  std::vector<ReadPass> tensor_reads() const override;

  Json choose_bits(const CalibrationSet& calibration, const Json& known) override;
  void open(const OutputTarget& target) override;
  void write(const CalibrationSet& calibration, JobOutcome& outcome) override;
  Path place() const override { return writer_->directory(); }
  std::string publish(const JobOutcome& outcome, const ManifestText& manifest, bool met) override;

 private:
  struct Made {
    const Plan plan;
    const PlanCosts costs;
  };
  std::unique_ptr<const Made> with_costs(const Plan& plan) const;

  JobInputs in_;
  std::unique_ptr<const Made> made_;  // by the recipe; another one once the bits are chosen
  bool measured_before_ = false;      // the bits were chosen by what an interrupted run measured
  Path beside_;  // the directory that the output is in, for what lies on its disk meanwhile
  std::unique_ptr<ModelWriter> writer_;
  QuantizeReport report_;
};

}  // namespace llmq
