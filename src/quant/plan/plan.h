// What every linear will get, and what the run will cost: all errors of intent appear here, before the first
// weight is read.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/backend.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "quant/methods/registry.h"
#include "quant/mixed_precision/mixed_precision.h"
#include "quant/recipe/recipe.h"
#include "tensor/planned_module.h"

namespace llmq {

// A part of an amount, by the name of what takes it.
struct NamedBytes {
  std::string what;
  std::uint64_t bytes;
};
using MemoryItem = NamedBytes;
using ReadPass = NamedBytes;  // one reading of (a part of) the inputs
std::uint64_t total_bytes(std::span<const NamedBytes> parts);
Json named_bytes_json(std::span<const NamedBytes> parts);  // [{what, bytes}]

// What a device with memory of its own has: to be had now, and of it for partial results of operations that
// can be cut.
struct DeviceRoom {
  std::uint64_t free_bytes = 0, scratch_bytes = 0;
};

// The devices of a run as a plan needs them: their names where there are several, and the least room where
// they have memory of their own.
struct PlannedDevices {
  std::vector<std::string> names = {};
  std::optional<DeviceRoom> room = {};
};
PlannedDevices planned_devices(std::span<const std::shared_ptr<Backend>> devices);

// How much a run of a plan takes: for --dry-run and the report, and to be held against limits. One function
// works all of it out (estimate_costs() in quant/plan/plan_costs.h).
struct PlanCosts {
  std::vector<MemoryItem> memory;  // parts of the peak; their sum is peak_bytes
  std::uint64_t peak_bytes = 0, bytes_in = 0, bytes_out = 0;
  // of the checkpoint's tensors (quant/plan/disk_reads.h); commands add what they read themselves
  std::vector<ReadPass> reads;
  double flops = 0;
  std::vector<MemoryItem> device_memory;  // parts of a device's peak, where devices have memory of their own
  // Their sum; without such memory, of a device beside the first: weights, one chunk, sums, its share of the
  // samples aside.
  std::uint64_t device_bytes = 0;
};

// What every linear gets, and where the run keeps what it works on.
struct Plan : MethodOptions {
  std::string method;  // its name: "awq", "awq+gptq", "awq.salient_fp16"
  const MethodRow* traits = &plain_rounding();
  std::string format;
  Compute compute = Compute::kBFloat16;
  std::vector<PlannedModule> modules;  // in model order
  std::vector<std::string> ignored;    // linears left dense, checkpoint names
  CalibrationRequest calibration;
  std::optional<KvCacheType> kv_cache;  // scales of keys and values are calibrated and written
  ActivationRange activations;
  bool needs_calibration = true;
  // Mixed precision: modules carry the recipe's scheme until choose_precision() gives each its bits.
  std::optional<double> target_bits;
  std::vector<int> candidate_bits;  // rising
  std::int64_t measured_samples = 16;
  std::optional<MixedPrecision> mixed;  // once chosen
  std::int64_t chunk_tokens = 0;        // rows of activations processed at a time
  bool keep_inputs = true;              // inputs of o and down stay in memory instead of being computed again
  // the residual stream, but for a chunk, is not on the device, which has no room for it
  bool activations_on_host = false;
  bool activations_in_file = false;       // the residual stream of all samples, which is in memory otherwise
  std::vector<std::string> devices;       // by name, where several share the run
  std::optional<DeviceRoom> device_room;  // of each device, where they have memory of their own
  std::vector<std::string> warnings;
  std::uint64_t bytes_copied = 0;  // of files beside the tensors; who opens the files says how many
  PlanCosts costs;                 // of all that is above

  // How many calibration tokens enter a Gram matrix: all, or few where only the report's losses read it.
  std::int64_t gram_tokens() const;
  double bits_per_weight() const;  // over the quantized linears: codes, scales, zeros
  std::uint64_t bytes_written() const { return costs.bytes_out + bytes_copied; }
  Json to_json() const;
};

// Whether o and down make up for part of what earlier rounding did (quant/pipeline/upstream_error.h).
bool takes_back_upstream(const Plan& plan);

// Error where columns are to stay at 16 bits and the format has no place for them.
void check_kept_columns(const Recipe& recipe);

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
// Works out the costs of a plan whose modules have changed, and keeps activations where the run fits within
// the limit and its devices; refused like above where it fits nowhere (quant/plan/plan_limits.cpp).
void settle_costs(Plan& plan, const std::string& source, const Checkpoint& checkpoint, const ModelSpec& spec,
                  int threads, std::uint64_t memory_limit);

}  // namespace llmq
