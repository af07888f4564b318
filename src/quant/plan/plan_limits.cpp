#include "quant/plan/plan_limits.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "calibration/calibration_kernels.h"
#include "calibration/input_stats.h"
#include "quant/methods/gptq/factorization.h"
#include "quant/plan/memory_limit.h"
#include "quant/plan/plan_costs.h"

namespace llmq {
namespace {

constexpr std::int64_t kFewPasses = 8;

bool fits_on_device(const Plan& plan, const PlanCosts& costs) {
  return !plan.device_room || fits_in_memory(costs.device_bytes, plan.device_room->free_bytes);
}

// With what would do: fewer samples, shorter ones, or another device.
[[noreturn]] void refuse_device(const Plan& plan, const PlanCosts& costs, const std::string& source,
                                const Checkpoint& checkpoint, const ModelSpec& spec, int threads) {
  const std::string found =
      fmt::format("the run needs {} on its device, which has {} to give",
                  bytes_text(memory_needed(costs.device_bytes)), bytes_text(plan.device_room->free_bytes));
  const MemoryItem most =
      *std::max_element(costs.device_memory.begin(), costs.device_memory.end(),
                        [](const MemoryItem& a, const MemoryItem& b) { return a.bytes < b.bytes; });
  const auto try_less = [&](const char* key, const auto& value_of) {
    Plan tried = plan;
    while (value_of(tried) > 1) {
      value_of(tried) /= 2;
      tried.chunk_tokens = chunk_of(tried.calibration.sequence_length);
      if (fits_on_device(tried, estimate_costs(tried, checkpoint, spec, threads)))
        fail(ErrorKind::kUsage,
             {found, source, key, fmt::format("{}: {} would do, or --device cpu", key, value_of(tried))});
    }
  };
  try_less("calibration.samples", [](Plan& tried) -> std::int64_t& { return tried.calibration.samples; });
  try_less("calibration.sequence_length",
           [](Plan& tried) -> std::int64_t& { return tried.calibration.sequence_length; });
  fail(ErrorKind::kUsage, {found, source, "--device",
                           fmt::format("no number of samples would do, most of it is for {}; use --device "
                                       "cpu, or a device with more memory",
                                       most.what)});
}

}  // namespace

PlannedDevices planned_devices(std::span<const std::shared_ptr<Backend>> devices) {
  PlannedDevices planned;
  for (const std::shared_ptr<Backend>& device : devices) {
    if (devices.size() > 1) planned.names.push_back(device->name());
    if (device->scratch_bytes() == 0) continue;  // its memory is the host's
    if (!planned.room) planned.room = {device->free_bytes(), device->scratch_bytes()};
    planned.room->free_bytes = std::min(planned.room->free_bytes, device->free_bytes());
  }
  if (devices.empty()) return planned;
  planned.host_factorization = host_factorization(*devices.front());
  planned.own_products = own_products(devices);
  return planned;
}

void keep_within_limits(Plan& plan, const std::string& source, const Checkpoint& checkpoint,
                        const ModelSpec& spec, int threads, std::uint64_t memory_limit) {
  PlanCosts costs;
  const auto fits = [&] {
    return fits_in_limit(costs.peak_bytes, memory_limit) && fits_on_device(plan, costs);
  };
  const std::int64_t all = plan.experts_at_once;
  // Fewer experts' sums at a time are the same bytes, for one more pass over what their block reads.
  const auto fewer_experts = [&](std::int64_t from, std::int64_t least) {
    plan.experts_at_once = from;
    costs = estimate_costs(plan, checkpoint, spec, threads);
    while (plan.experts_at_once > least && !fits()) {
      plan.experts_at_once = (plan.experts_at_once + 1) / 2;
      costs = estimate_costs(plan, checkpoint, spec, threads);
    }
  };
  // Each further pass costs a run of the block up to its experts, and what follows costs one altogether or
  // goes through the disk: so a few passes come before it, and many after it.
  const std::int64_t few = (all + kFewPasses - 1) / kFewPasses;
  fewer_experts(all, few);
  if (!fits() && plan.needs_calibration) {
    plan.keep_inputs = false;  // the same bytes, for one more run of each block up to them
    fewer_experts(all, few);
  }
  if (!fits_on_device(plan, costs)) {
    plan.activations_on_host = true;
    fewer_experts(all, few);
  }
  const bool held = !plan.device_room || plan.activations_on_host;  // by the host
  if (!fits_in_limit(costs.peak_bytes, memory_limit) && plan.needs_calibration && held) {
    plan.activations_in_file = true;
    fewer_experts(all, few);
  }
  if (!fits()) fewer_experts(plan.experts_at_once, 1);
  check_memory_limit(costs.peak_bytes, memory_limit, source);
  if (!fits_on_device(plan, costs)) refuse_device(plan, costs, source, checkpoint, spec, threads);
}

}  // namespace llmq
