// llmq quantize, from the recipe to a published output, its report and its own evaluation; or, where the same
// job was done before, to the output that is there. Who runs it says how it is shown.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "io/digest_cache.h"
#include "job/planned_job.h"
#include "job/run_provenance.h"
#include "job/unchanged_output.h"

namespace llmq {

struct QuantizeRequest {
  Recipe recipe;
  bool overwrite = false;        // replace an earlier output of llmq
  bool restart = false;          // throw away what an interrupted run left, redo what is unchanged
  bool allow_nonfinite = false;  // weights may hold NaN and infinity
  bool paranoid = false;         // believe no digest of an earlier run
  bool direct_io = false;        // read the model past the page cache
};

// What such a recipe asks of the backend (BackendRequest::arithmetic); empty: nothing.
std::string wanted_arithmetic(const Recipe& recipe);

// A job without its output: how long it would take here, and what it would cost, with all that it reads.
struct JobPreview {
  TimePrediction time;
  const PlanCosts costs;
};

struct JobEnd {
  std::optional<PublishedOutput> unchanged;  // nothing was done: the same job made this
  JobOutcome outcome;                        // else
  Json document;                             // of schema llmq.quantize/1, of either
};

// Where several ranks share it (JobSettings::shared_by) run() is of all of them, and what it returns, and all
// that has a name, is rank 0's.
class QuantizeJob {
 public:
  // Opens the model and makes the plan: all errors of intent.
  QuantizeJob(Io& io, QuantizeRequest request, JobSettings settings);
  QuantizeJob(const QuantizeJob&) = delete;
  QuantizeJob& operator=(const QuantizeJob&) = delete;

  const OutputForm& form() const { return planned_.form(); }
  // What ranks that share the job have to have in common; hashes the inputs.
  std::vector<Fact> facts();
  // Completes the plan without writing anything, by all ranks: the bits of mixed precision are chosen.
  void choose_bits();
  // So does this, where nobody did, and measures the job's time on this machine; of one rank.
  JobPreview preview();
  // Once. What misses a gate is published all the same, but does not become `latest`.
  JobEnd run();

 private:
  OutputTarget target() const;
  void check_samples() const;
  void identify();
  std::optional<PublishedOutput> find_unchanged();
  Json known_measures() const;
  void count_traffic(std::uint64_t written_before);
  void predict();
  std::vector<ReadPass> reads() const;
  void fill_facts();
  void write_and_publish();

  Io& io_;
  const QuantizeRequest request_;
  const JobSettings settings_;
  const std::chrono::steady_clock::time_point start_;
  RunFiles files_;
  LoadedModel model_;
  PlannedJob planned_;
  DigestCache digests_;
  std::vector<ReadPass> whole_file_reads_;  // of the model, beside its tensors
  Json measured_;                           // what the bits were chosen by
  std::optional<double> measuring_seconds_;
  JobOutcome outcome_;
};

}  // namespace llmq
