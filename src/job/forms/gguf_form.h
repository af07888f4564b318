// One .gguf file, or several where shard_bytes says so: plan -> importance, where the plan has one -> every
// tensor; the report lies beside the first as NAME.gguf.report.json.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "base/log.h"
#include "calibration/calibration_kernels.h"
#include "export/gguf/gguf_file.h"
#include "job/forms/output_form.h"
#include "quant/pipeline/memory_trace.h"

namespace llmq {

class GgufForm final : public OutputForm {
 public:
  explicit GgufForm(const JobInputs& inputs);

  PlanOutline outline() const override;
  const CalibrationRequest& calibration() const override { return plan_.calibration; }
  std::variant<const Plan*, const GgufPlan*> plan() const override { return &plan_; }
  const PlanCosts& costs() const override { return costs_; }
  TimePrediction predict() const override;
  RankShares shares() const override;
  RankCosts over_ranks(int ranks) const override;
  std::vector<ReadPass> tensor_reads() const override { return tensor_reads_; }

  void identify(Json& job, const std::function<std::string(const Path&)>& sha256) const override;
  void check_target(const OutputTarget& target) const override;
  void open(const OutputTarget& target) override;
  void write(const CalibrationSet& calibration, JobOutcome& outcome) override;
  Path place() const override { return output_->file(); }
  std::string publish(const JobOutcome& outcome, const ManifestText& manifest, bool met) override;

 private:
  void begin_tensor(const std::string& tensor);
  std::optional<Imatrix> importance(const CalibrationSet& calibration);

  JobInputs in_;
  const GgufPlan plan_;
  const PlanCosts costs_;
  std::vector<ReadPass> tensor_reads_;
  std::optional<GgufOutput> output_;
  GgufWritten written_;
  std::unique_ptr<Progress> progress_;
  std::size_t begun_ = 0;  // tensors
  MemoryTrace memory_;
  std::vector<KernelChoice> kernels_;  // of the importance that this run collected
};

}  // namespace llmq
