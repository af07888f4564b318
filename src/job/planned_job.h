// A recipe and an opened model on the way to an output: plan -> calibrate -> choose bits -> write. `llmq
// quantize` (job/quantize_job.h) and `llmq verify --rebuild` (job/rebuild.h) both go this way, so that what
// is rebuilt is what was built.
#pragma once
#include <memory>
#include <optional>

#include "job/forms/output_form.h"

namespace llmq {

class PlannedJob {
 public:
  explicit PlannedJob(const JobInputs& inputs);  // makes the plan

  OutputForm& form() { return *form_; }
  const OutputForm& form() const { return *form_; }
  const CalibrationSet& calibration() const { return calibration_; }

  // The text that the plan asks for, once; nothing where it asks for none.
  void calibrate();
  // Of mixed precision; nothing, and null, where the recipe says every linear's. `known`: what an interrupted
  // run measured. What the bits were chosen by.
  Json choose_bits(const Json& known = Json());
  // The output at form().place(), whole and without a name.
  void write(const OutputTarget& target, JobOutcome& outcome);

 private:
  JobInputs in_;
  std::unique_ptr<OutputForm> form_;
  std::optional<ChatTemplate> chat_;  // of the model, where the calibration text is chats
  CalibrationSet calibration_;
};

}  // namespace llmq
