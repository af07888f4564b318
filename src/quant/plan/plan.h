// What every linear will get, and where a run keeps what it works on: all errors of intent appear here,
// before the first weight is read. How much the run takes: quant/plan/plan_costs.h.
//
// A plan is made once, by a function of this folder, and handed around as const.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/backend.h"
#include "export/formats/rotated_heads.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "quant/methods/registry.h"
#include "quant/mixed_precision/mixed_precision.h"
#include "quant/recipe/recipe.h"
#include "tensor/planned_module.h"

namespace llmq {

// What a device with memory of its own has: to be had now, and of it for partial results of operations that
// can be cut.
struct DeviceRoom {
  std::uint64_t free_bytes = 0, scratch_bytes = 0;
};

// The devices of a run as a plan needs them: their names where there are several, the least room where they
// have memory of their own, and why the host factorizes for the first of them, or its own kernels multiply
// where a library could, where they do. And how many ranks share the run, and what joining
// them took of the host's memory.
struct PlannedDevices {
  std::vector<std::string> names = {};
  std::optional<DeviceRoom> room = {};
  std::string host_factorization = {}, own_products = {};
  std::uint64_t joining_bytes = 0;
  int ranks = 1;
};
PlannedDevices planned_devices(std::span<const std::shared_ptr<Backend>> devices);

struct Plan : MethodOptions {
  std::string method;  // its name: "awq", "awq+gptq", "awq.salient_fp16"
  const MethodRow* traits = &plain_rounding();
  std::string format;
  Compute compute = Compute::kBFloat16;
  std::vector<PlannedModule> modules;  // in model order
  std::vector<PlannedModule> tower;    // linears of a vision tower, rounded to nearest
  std::vector<std::string> ignored;    // linears left dense, checkpoint names
  CalibrationRequest calibration;
  std::optional<KvCacheType> kv_cache;  // scales of keys and values are calibrated and written
  std::vector<RotatedHeads> rotated;    // whose weights the checkpoint shows rotated
  ActivationRange activations;
  bool needs_calibration = true;
  // Mixed precision: modules carry one candidate's schemes; those of plan_with_bits() what was chosen.
  std::optional<double> target_bits;
  std::vector<PrecisionCandidate> candidates;  // from the one that stores the fewest bits on
  std::int64_t measured_samples = 16;
  std::optional<MixedPrecision> mixed;  // once chosen
  std::int64_t chunk_tokens = 0;        // rows of activations processed at a time
  std::int64_t experts_at_once =
      0;                    // of a mixture, whose Gram matrices are summed in one pass; 0: no mixture
  bool keep_inputs = true;  // inputs of o and down stay in memory instead of being computed again
  // the residual stream, but for a chunk, is not on the device, which has no room for it
  bool activations_on_host = false;
  bool activations_in_file = false;       // the residual stream of all samples, which is in memory otherwise
  std::vector<std::string> devices;       // by name, where several share the run
  std::optional<DeviceRoom> device_room;  // of each device, where they have memory of their own
  std::uint64_t joining_bytes = 0;        // of each of several ranks (Ranks::joining_bytes())
  int ranks = 1;                          // that have a run of chunks each (most_chunks())
  std::vector<std::string> warnings;

  // Whether candidates are rounded as the run rounds while they are measured, or to nearest.
  bool measures_by_method() const { return !candidates.empty() && !candidates.front().scheme.empty(); }
  // And behind the scale that AWQ would move into the readers of an input.
  bool searches_while_measuring() const {
    return measures_by_method() && traits->folds && traits->searches_by_gram;
  }
  // How many calibration tokens enter a Gram matrix: all, or few where only the report's losses read it.
  std::int64_t gram_tokens() const;
  // Chunks of calibration samples, C, and how many of them a rank has at most: ceil(C / ranks).
  std::int64_t chunks() const;
  std::int64_t most_chunks() const { return (chunks() + ranks - 1) / ranks; }
  double bits_per_weight() const;  // over the quantized linears of the decoder: codes, scales, zeros
  std::vector<PlannedModule> packed() const;  // everything that is packed: the modules, and the tower's
};

// Whether o and down make up for part of what earlier rounding did (quant/pipeline/upstream_error.h).
bool takes_back_upstream(const Plan& plan);

// Error(kUnsupported) where linears lie packed: plans are made of numbers (model/packed/unpacked.h).
void refuse_packed(const Checkpoint& checkpoint);

// Warnings of what a recipe asks for and is not done, and of linears whose numbers were rounded before: those
// that are unpacked (model/packed/unpacked.h), else the first of those that the plan rounds
// (io/codes/first_rounding.h).
std::vector<std::string> told_of_source(const Recipe& recipe, const Checkpoint& checkpoint,
                                        const ModelSpec& spec,
                                        const std::function<bool(const LinearSpec&)>& is_rounded);

// How many tokens of calibration samples run through the model at a time: whole samples, a number that
// depends on nothing but their length, so that no figure of the machine enters the order of the sums.
// Error(kUsage) for samples longer than the model's positions.
std::int64_t calibration_chunk(const Recipe& recipe, const ModelSpec& spec);
// The same for samples of `length` tokens.
std::int64_t chunk_of(std::int64_t length);

// Errors: kUsage/kUnsupported/kBadInput with the first module at fault and what would do (a named group that
// does not divide is exit 2 naming the first module and the groups that would); memory_limit 0: none.
// A run that its devices have no room for is refused with the figure that would do.
Plan make_plan(const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec, Compute compute,
               int threads, std::uint64_t memory_limit, PlannedDevices devices = {});
// The plan of a run of mixed precision whose schemes were chosen: modules have them, those left dense are
// among the ignored ones. Refused like above where the run fits nowhere; `source`: the recipe's file.
Plan plan_with_bits(const Plan& plan, MixedPrecision chosen, const std::string& source,
                    const Checkpoint& checkpoint, const ModelSpec& spec, int threads,
                    std::uint64_t memory_limit);

}  // namespace llmq
