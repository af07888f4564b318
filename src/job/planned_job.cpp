#include "job/planned_job.h"

namespace llmq {

PlannedJob::PlannedJob(const JobInputs& inputs) : in_(inputs), form_(make_form(inputs)) {
  if (form_->outline().calibrates && form_->calibration().chat_template)
    chat_ = model_chat_template(in_.io, in_.model.checkpoint.path());
}

void PlannedJob::calibrate() {
  if (form_->outline().calibrates && calibration_.samples.empty())
    calibration_ = load_calibration(in_.io, form_->calibration(), in_.model.tokenizer, chat_);
}

Json PlannedJob::choose_bits(const Json& known) {
  if (!form_->outline().chooses_bits) return {};
  calibrate();
  return form_->choose_bits(calibration_, known);
}

void PlannedJob::write(const OutputTarget& target, JobOutcome& outcome) {
  calibrate();
  form_->open(target);
  form_->write(calibration_, outcome);
}

}  // namespace llmq
