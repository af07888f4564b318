#include "device/automatic_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace llmq {
namespace {

// Where every test of the backend passed on a device, as the part `tests` of scripts/device_check.sh runs
// them. A row needs the page that says so, and what did not run.
struct ProvedArchitecture {
  int major, minor;
  const char *day, *page;
};
constexpr ProvedArchitecture kProved[] = {{9, 0, "26 November 2026", "docs/measurements/gpu.md"}};

}  // namespace

AutomaticDevice choose_device(const GpuSight& sight, const char* forced_level) {
  if (forced_level != nullptr && *forced_level != '\0')
    return {"cpu", fmt::format("--device auto is cpu: LLMQ_CPU_ISA={} asks for it", forced_level), false};
  if (!sight.first) return {"cpu", "--device auto is cpu: " + sight.why_none, false};
  const SeenGpu& gpu = *sight.first;
  const auto* const proved = std::find_if(
      std::begin(kProved), std::end(kProved),
      [&](const ProvedArchitecture& row) { return row.major == gpu.major && row.minor == gpu.minor; });
  if (proved == std::end(kProved))
    return {
        "cpu",
        fmt::format("--device auto is cpu: the backend's tests have not passed on sm_{}{} yet, which {} is; "
                    "--device cuda computes there",
                    gpu.major, gpu.minor, gpu.name),
        true};
  return {"cuda",
          fmt::format("--device auto is cuda: {} is sm_{}{}, on which the backend's tests passed on {} ({})",
                      gpu.name, gpu.major, gpu.minor, proved->day, proved->page),
          true};
}

const AutomaticDevice& automatic_device() {
  static const AutomaticDevice chosen = [] {
    const char* const level = std::getenv("LLMQ_CPU_ISA");
    // A driver that nobody needs is not asked.
    const bool forced = level != nullptr && *level != '\0';
    return choose_device(forced ? GpuSight{} : look_for_gpu(), level);
  }();
  return chosen;
}

}  // namespace llmq
