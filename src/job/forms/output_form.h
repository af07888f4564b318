// The output of a job in one of its forms, from the plan to the name: a directory of packed safetensors
// (job/forms/packed_form.h) or one .gguf file (job/forms/gguf_form.h). A third form is a third
// implementation, and a line in make_form().
//
//   plan   choose_bits()   open()   write()   publish()          in this order, once each
#pragma once
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "calibration/calibration_text.h"
#include "export/output/model_writer.h"
#include "job/job_outcome.h"
#include "job/job_settings.h"
#include "job/loaded_model.h"
#include "quant/plan/gguf_plan.h"
#include "quant/plan/plan_costs.h"
#include "quant/plan/ranks/rank_time.h"
#include "quant/plan/ranks/rank_traffic.h"
#include "quant/recipe/recipe.h"

namespace llmq {

// What a form works on. All of it outlives the form.
struct JobInputs {
  const Recipe& recipe;
  const LoadedModel& model;
  const JobSettings& settings;
  Io& io;        // the output's files
  Io& model_io;  // the model's
  Io& scratch;   // activations that do not fit in memory, and a probe of the disk
  bool allow_nonfinite = false;
};

// What the plans of all forms say.
struct PlanOutline {
  std::string method, scheme, format;
  std::size_t modules = 0;  // linears, or tensors of a GGUF
  bool calibrates = false, chooses_bits = false;
  double flops = 0;
  std::uint64_t bytes_in = 0, bytes_written = 0, peak_bytes = 0;
  std::vector<std::string> warnings;
};

class OutputForm {
 public:
  virtual ~OutputForm() = default;

  virtual PlanOutline outline() const = 0;
  virtual const CalibrationRequest& calibration() const = 0;
  // The plan itself, for who shows it, and what it costs; of reads those of the model's tensors.
  virtual std::variant<const Plan*, const GgufPlan*> plan() const = 0;
  virtual const PlanCosts& costs() const = 0;
  virtual TimePrediction predict() const = 0;  // of one process, whoever shares the job
  // What ranks could share of it, and what so many of them would hold and send.
  virtual RankShares shares() const = 0;
  virtual RankCosts over_ranks(int ranks) const = 0;
  // Of the model's tensors, by this run; less where it goes on behind an interrupted one, once that is known.
  virtual std::vector<ReadPass> tensor_reads() const = 0;

  // What the form adds to what decides the bytes; `sha256` of a file.
  virtual void identify(Json&, const std::function<std::string(const Path&)>&) const {}
  virtual void check_target(const OutputTarget&) const {}
  // `known`: what the pass of an interrupted run found, or null; with it nothing is measured. What the
  // schemes were chosen by; null where the recipe says them.
  virtual Json choose_bits(const CalibrationSet&, const Json&) { return {}; }

  virtual void open(const OutputTarget& target) = 0;
  // Every byte that loaders read, at place(), which is not the output's name yet. Fills the outcome's facts
  // of the output, and its peaks.
  virtual void write(const CalibrationSet& calibration, JobOutcome& outcome) = 0;
  virtual Path place() const = 0;
  // The documents, then the name. Of a versioned output, the version, which becomes the latest where `met`.
  virtual std::string publish(const JobOutcome& outcome, const ManifestText& manifest, bool met) = 0;
};

// By the recipe's format; makes the plan, with all errors of intent.
std::unique_ptr<OutputForm> make_form(const JobInputs& inputs);

}  // namespace llmq
