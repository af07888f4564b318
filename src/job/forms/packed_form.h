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
  const CalibrationRequest& calibration() const override { return plan_.calibration; }
  std::variant<const Plan*, const GgufPlan*> plan() const override { return &plan_; }
  Json plan_json() const override { return plan_.to_json(); }
  TimePrediction predict() const override;
  std::vector<ReadPass> tensor_reads() const override;
  void announce_reads(std::vector<ReadPass> reads) override { plan_.costs.reads = std::move(reads); }

  Json choose_bits(const CalibrationSet& calibration, const Json& known) override;
  void open(const OutputTarget& target) override;
  void write(const CalibrationSet& calibration, JobOutcome& outcome) override;
  Path place() const override { return writer_->directory(); }
  std::string publish(const JobOutcome& outcome, const ManifestText& manifest, bool met) override;

 private:
  JobInputs in_;
  Plan plan_;
  bool measured_before_ = false;  // the bits were chosen by what an interrupted run measured
  Path beside_;                   // the directory that the output is in, for what lies on its disk meanwhile
  std::unique_ptr<ModelWriter> writer_;
  QuantizeReport report_;
};

}  // namespace llmq
