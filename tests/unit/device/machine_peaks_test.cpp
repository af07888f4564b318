// Figures are not judged; that there is one for every level and kind that it has an instruction for, is.
#include "device/machine_peaks.h"

#include <gtest/gtest.h>

#include "device/cpu/cpu_backend.h"
#include "device/cuda/cuda_backend.h"
#include "kernels/cpu/level.h"

namespace llmq {
namespace {

TEST(MachinePeaks, NameEveryLevelAndItsProducts) {
  const MachinePeaks peaks = measure_machine(1);
  std::size_t expected = 0;
  for (const std::string& level : cpu_levels_present())
    expected += level == "amx" ? 2 : level == "avx512" && avx512_level() != avx512_plain_level() ? 3 : 1;
  EXPECT_EQ(peaks.arithmetic.size(), expected);
  for (const LevelPeak& level : peaks.arithmetic) EXPECT_GT(level.peak.by_clock, 0) << level.level;
  EXPECT_GT(peaks.read_bytes_per_second, 0);
  EXPECT_FALSE(peaks.cpu.empty());
}

TEST(MachinePeaks, OfADeviceAreTheDevices) {
  const auto backend = make_emulated_cuda_backend(1);
  const MachinePeaks peaks = measure_machine(*backend);
  EXPECT_EQ(peaks.gpu, "cuda (emulated)");
  EXPECT_GT(peaks.read_bytes_per_second, 0);
  ASSERT_EQ(peaks.arithmetic.size(), 3u);
  for (const LevelPeak& level : peaks.arithmetic) {
    EXPECT_EQ(level.level, "cuda emulated");
    EXPECT_GT(level.peak.by_clock, 0);
  }
  EXPECT_TRUE(measure_machine(*make_cpu_backend(1)).gpu.empty());
}

TEST(ReadMemory, SeesEveryWord) {
  for (const CpuKernels* const kernels : {scalar_level(), avx2_level(), avx512_level()}) {
    if (kernels == nullptr) continue;
    alignas(64) std::int32_t words[2 * 256 / 4] = {};
    EXPECT_EQ(kernels->read_memory(words, sizeof words), 0) << kernels->name;
    for (std::int32_t& word : words) {
      word = 5;
      EXPECT_EQ(kernels->read_memory(words, sizeof words), 5) << kernels->name;
      word = 0;
    }
  }
}

}  // namespace
}  // namespace llmq
