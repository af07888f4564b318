#include "tools/machine_figures.h"

#include "device/cpu/cpu_backend.h"
#include "device/device_peaks.h"

namespace llmq::tools {
namespace {

// Of the device, or of the level in use; of its FP32 products where it has no instruction for BF16.
double peak_in(const MachinePeaks& machine, Compute compute) {
  const ArithmeticKind kind = compute == Compute::kBFloat16 ? ArithmeticKind::kBF16 : ArithmeticKind::kF32;
  double peak = 0;
  for (const LevelPeak& level : machine.arithmetic)
    if ((!machine.gpu.empty() || level.level == chosen_cpu_level()) && (level.kind == kind || peak == 0))
      peak = level.peak.by_clock;
  return peak;
}

}  // namespace

MachineFigures measure_figures(Backend& backend, Compute compute) {
  MachineFigures figures;
  figures.isa = backend.arithmetic();
  if (figures.isa.starts_with("cpu ")) figures.isa.erase(0, 4);
  figures.peaks = measure_machine(backend);
  figures.peak_operations_per_second = peak_in(figures.peaks, compute);
  return figures;
}

void measure_bandwidth_again(MachineFigures& figures, Backend& backend) {
  if (DevicePeaks* const device = backend.extensions().device_peaks) {
    figures.read_bytes_per_second_after = device->measure_reading();
    return;
  }
  ThreadPool pool(figures.peaks.threads);
  figures.read_bytes_per_second_after = measure_read_bandwidth(pool);
}

}  // namespace llmq::tools
