// The probe's figures are rates of real work: positive, bounded by what any machine could do, and of the same size
// when asked again.
#include "device/machine_probe.h"

#include <gtest/gtest.h>

#include <cmath>

namespace llmq {
namespace {

TEST(MachineProbeTest, MeasuresEveryRateInTwoSeconds) {
  const auto backend = make_cpu_backend(1);
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    const MachineProbe probe = probe_machine(*backend, compute);
    EXPECT_EQ(probe.backend, backend->name());
    for (const double rate :
         {probe.decode_bytes_per_second, probe.linear_flops, probe.gram_flops, probe.hash_bytes_per_second}) {
      EXPECT_TRUE(std::isfinite(rate));
      EXPECT_GT(rate, 1e6);
    }
    EXPECT_GT(probe.call_seconds, 0);
    EXPECT_LT(probe.call_seconds, 1e-2);
    // Each product of many rows uses a weight it has loaded 256 times: per byte it does more than one row can.
    const double element = compute == Compute::kFloat32 ? 4 : 2;
    EXPECT_GT(probe.linear_flops, probe.decode_bytes_per_second * 2 / element);
  }
}

}  // namespace
}  // namespace llmq
