// What the blocks of one run share: the plan, where weights come from and go to, the clock of its parts, the
// disk that is waited for.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/threads.h"
#include "model/linear_source.h"
#include "quant/methods/method.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/pipeline/background_writer.h"
#include "quant/pipeline/memory_trace.h"
#include "quant/pipeline/pipeline.h"
#include "quant/pipeline/upstream_error.h"

namespace llmq {

// Seconds by part, in the order in which parts were first met.
class PartClock {
 public:
  // Adds the time since the last call (or construction) to `part`.
  void charge(const std::string& part);
  const std::vector<std::pair<std::string, double>>& seconds() const { return seconds_; }

 private:
  double last_ = now();
  static double now();
  std::vector<std::pair<std::string, double>> seconds_;
};

// What a run shares between blocks.
struct QuantizeRun {
  QuantizeRun(const Plan& of, const LinearSource& from, const ModelSpec& model, Backend& on,
              const PipelineOptions& how, QuantizeReport& found, PartClock& time,
              std::unique_ptr<Method> rounds, BackgroundWriter& into);

  const Plan& plan;
  const LinearSource& source;
  const ModelSpec& spec;
  Backend& backend;
  const PipelineOptions& options;
  QuantizeReport& report;
  PartClock& clock;
  std::unique_ptr<Method> rounding;
  std::unique_ptr<Method> nearest;  // of schemes whose codes the method does not choose
  BackgroundWriter& writing;
  MemoryTrace memory;
  // Of a mixture, in one pass: what the plans of all ranks have room for, since all of them join what one of
  // them sees.
  std::size_t experts_at_once = 1;
  OriginalStream* original = nullptr;                   // null: nothing upstream is taken back
  std::map<std::string, const PlannedModule*> planned;  // by module
  std::set<std::string> names;                          // the same modules
  std::set<std::string> replaced;                       // weights of the planned linears, by tensor
  // Weights that stay dense and that folds may scale, by tensor.
  std::set<std::string> never_quantized;
  std::map<std::string, std::vector<float>> changed_dense;  // what folds of this block changed, by tensor
  // Called after each linear: figures for the progress line.
  std::function<void(const PlannedModule&, const ModuleReport&)> on_linear;
  std::set<std::string>
      written_dense;  // those copied at the start, and those changed by folds of the blocks before
  const Method& rounding_of(const QuantScheme& scheme) const {
    return chooses_codes(*plan.traits, scheme) ? *rounding : *nearest;
  }
  // Whether this rank quantizes what is not done of it: everything, where samples go through it.
  bool quantizes(const std::string& module) const {
    return plan.needs_calibration || writing.writer().lacks_module(module);
  }
  Ranks& ranks() const { return writing.writer().ranks(); }
  ThreadPool& pool() const { return backend.workers(); }
  std::vector<Backend*> devices() const;  // the backend first
};

// The disk reads the linears of a block that this run, or this rank, will look at, while the one before it is
// worked on.
void read_ahead(const QuantizeRun& run, std::size_t block);

// FP32 values of a planned linear; refuses what is not finite by name, or, where allowed, replaces it (NaN by
// 0, infinity by the largest finite magnitude) and says so in the report.
ZeroedNumbers<float> load_planned_weight(QuantizeRun& run, const LinearSpec& linear);

}  // namespace llmq
