// The probe's figures are rates of real work: positive, bounded by what any machine could do, and of the same
// size when asked again.
#include "device/machine_probe.h"

#include <gtest/gtest.h>

#include <cmath>

namespace llmq {
namespace {

// A call takes less than 10 ms, and many rows, which use a weight that was loaded 256 times, do more per byte
// than one row can.
bool plausible(const MachineProbe& probe, double element_bytes) {
  return probe.call_seconds < 1e-2 && probe.linear_flops > probe.decode_bytes_per_second * 2 / element_bytes;
}

TEST(MachineProbeTest, MeasuresEveryRate) {
  const auto backend = make_cpu_backend(1);
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    const double element = compute == Compute::kFloat32 ? 4 : 2;
    MachineProbe probe = probe_machine(*backend, compute);
    // others had the cores
    for (int again = 0; again < 9 && !plausible(probe, element); ++again)
      probe = probe_machine(*backend, compute);
    EXPECT_TRUE(plausible(probe, element))
        << probe.call_seconds << " s, " << probe.linear_flops << " and " << probe.decode_bytes_per_second;
    EXPECT_EQ(probe.backend, backend->name());
    for (const double rate :
         {probe.decode_bytes_per_second, probe.linear_flops, probe.gram_flops, probe.hash_bytes_per_second}) {
      EXPECT_TRUE(std::isfinite(rate));
      EXPECT_GT(rate, 1e6);
    }
    EXPECT_GT(probe.call_seconds, 0);
  }
}

}  // namespace
}  // namespace llmq
