// Where a run keeps its activations so that it fits: the cheapest place is tried first, and a run that fits
// nowhere is refused with what would do.
#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "quant/plan/memory_limit.h"
#include "quant/plan/plan.h"
#include "quant/plan/plan_costs.h"

namespace llmq {
namespace {

bool fits_on_device(const Plan& plan) {
  return !plan.device_room || fits_in_memory(plan.costs.device_bytes, plan.device_room->free_bytes);
}

// With what would do: fewer samples, shorter ones, or another device.
[[noreturn]] void refuse_device(const Plan& plan, const std::string& source, const Checkpoint& checkpoint,
                                const ModelSpec& spec, int threads) {
  const std::string found = fmt::format("the run needs {} on its device, which has {} to give",
                                        bytes_text(memory_needed(plan.costs.device_bytes)),
                                        bytes_text(plan.device_room->free_bytes));
  const MemoryItem most =
      *std::max_element(plan.costs.device_memory.begin(), plan.costs.device_memory.end(),
                        [](const MemoryItem& a, const MemoryItem& b) { return a.bytes < b.bytes; });
  const auto try_less = [&](const char* key, const auto& value_of) {
    Plan tried = plan;
    while (value_of(tried) > 1) {
      value_of(tried) /= 2;
      tried.chunk_tokens = chunk_of(tried.calibration.sequence_length);
      tried.costs = estimate_costs(tried, checkpoint, spec, threads);
      if (fits_on_device(tried))
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
  return planned;
}

void settle_costs(Plan& plan, const std::string& source, const Checkpoint& checkpoint, const ModelSpec& spec,
                  int threads, std::uint64_t memory_limit) {
  const auto estimate = [&] { plan.costs = estimate_costs(plan, checkpoint, spec, threads); };
  estimate();
  if (!(fits_in_limit(plan.costs.peak_bytes, memory_limit) && fits_on_device(plan)) &&
      plan.needs_calibration) {
    plan.keep_inputs = false;  // the same bytes, for one more run of each block up to them
    estimate();
  }
  if (!fits_on_device(plan)) {
    plan.activations_on_host = true;
    estimate();
  }
  const bool held = !plan.device_room || plan.activations_on_host;  // by the host
  if (!fits_in_limit(plan.costs.peak_bytes, memory_limit) && plan.needs_calibration && held) {
    plan.activations_in_file = true;
    estimate();
  }
  check_memory_limit(plan.costs.peak_bytes, memory_limit, source);
  if (!fits_on_device(plan)) refuse_device(plan, source, checkpoint, spec, threads);
}

}  // namespace llmq
