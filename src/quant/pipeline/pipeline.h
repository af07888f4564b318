// The block pipeline: streams calibration samples through the layers, quantizes each linear on inputs that
// already carry the upstream error, and feeds the writer. Stages follow the order in which inputs arise
// (docs/adr/0017-a-block-is-data.md); each linear runs once, with quantized weights.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calibration/calibration_text.h"
#include "export/output/model_writer.h"
#include "quant/methods/method.h"
#include "quant/pipeline/scale_histogram.h"
#include "quant/plan/plan.h"

namespace llmq {

struct ModuleReport {
  std::string module;
  QuantScheme scheme;
  double loss = 0, rtn_loss = 0;  // tr(dW G dW^T), both on the same statistics; 0 without calibration
  double relative_error = 0;      // loss / tr(W G W^T), or ||dW||^2 / ||W||^2 without calibration
  double weight_error = 0;        // ||dW||_F / ||W||_F
  double input_error =
      0;  // what 8-bit inputs cost, relative to the outputs (quant/methods/smoothquant/smoothquant.h)
  double lambda = 0;   // what GPTQ added to the Gram matrix's diagonal
  std::string method;  // what it got in the end: "awq+gptq", "rtn"
  ScaleHistogram scales;
};
struct Fallback {
  std::string module, reason;
};
Json fallbacks_json(std::span<const Fallback> fallbacks);

struct QuantizeReport {
  std::vector<ModuleReport> modules;
  std::vector<Fallback> fallbacks;
  std::vector<std::string> warnings;
  std::vector<KernelChoice> kernels;  // of a device's dense products, where there is a choice
  std::vector<Json> mixtures;  // what the experts of each block got (MixtureQuantizer), as the report has it
  // The losses are taken from the products of so many calibration tokens and scaled to all.
  std::int64_t loss_tokens = 0;
  std::int64_t resumed_blocks = 0;  // finished by an interrupted run before this one
  double seconds = 0;
  std::vector<std::pair<std::string, double>>
      seconds_by_part;   // forward, statistics, search, rounding, writing
  Json memory_samples;   // [{seconds, rss_bytes, most_bytes}], one a block (MemoryTrace)
  Json to_json() const;  // without those: it is the same however often the run was interrupted
};

struct PipelineOptions {
  bool allow_nonfinite = false;
  Io* io = &system_io();
  Path scratch_directory = ".";  // where activations lie that do not fit in memory
  // Devices beside the backend, of its kind and arithmetic: the samples are spread over all. No byte of the
  // output depends on them.
  std::vector<std::shared_ptr<Backend>> further_devices = {};
  std::function<void(const std::string& place, const std::string& figures)> on_step;
};

// The plan's rounding.
std::unique_ptr<Method> make_rounding(const Plan& plan);

// The most that the copy of a dense tensor holds at a time: a band as it is stored, and in FP32 and as it is
// written where that differs.
std::uint64_t copied_band_bytes(const StoredTensor& tensor);

// Runs the plan from the first block that the writer has not committed. The writer receives every planned
// module and every dense tensor, and a commit at the end of each block; to complete it is the caller's.
QuantizeReport run_pipeline(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                            const CalibrationSet& calibration, Backend& backend, ModelWriter& writer,
                            const PipelineOptions& options);

}  // namespace llmq
