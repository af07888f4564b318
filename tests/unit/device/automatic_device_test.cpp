#include "device/automatic_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "device/backend.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

TEST(AutomaticDevice, IsCudaWhereTheBackendsTestsHavePassed) {
  const AutomaticDevice chosen = choose_device({SeenGpu{"NVIDIA H100 80GB HBM3", 9, 0}, {}}, nullptr);
  EXPECT_EQ(chosen.device, "cuda");
  EXPECT_EQ(chosen.why,
            "--device auto is cuda: NVIDIA H100 80GB HBM3 is sm_90, on which the backend's tests passed on "
            "26 November 2026 (docs/measurements/gpu.md)");
  EXPECT_TRUE(std::ifstream(std::string(LLMQ_SOURCE_DIR) + "/docs/measurements/gpu.md").good());
  EXPECT_TRUE(chosen.has_gpu);
}

TEST(AutomaticDevice, IsTheCpuElseAndSaysWhy) {
  const AutomaticDevice older = choose_device({SeenGpu{"NVIDIA A100", 8, 0}, {}}, ""),
                        newer = choose_device({SeenGpu{"NVIDIA B200", 10, 0}, {}}, nullptr),
                        none = choose_device({{}, "this machine has no CUDA device"}, nullptr),
                        forced = choose_device({SeenGpu{"NVIDIA H100", 9, 0}, {}}, "avx2");
  for (const AutomaticDevice* const one : {&older, &newer, &none, &forced}) EXPECT_EQ(one->device, "cpu");
  EXPECT_THAT(older.why, HasSubstr("not passed on sm_80 yet, which NVIDIA A100 is; --device cuda"));
  EXPECT_THAT(newer.why, HasSubstr("sm_100"));
  EXPECT_TRUE(older.has_gpu);
  EXPECT_EQ(none.why, "--device auto is cpu: this machine has no CUDA device");
  EXPECT_FALSE(none.has_gpu);
  EXPECT_EQ(forced.why, "--device auto is cpu: LLMQ_CPU_ISA=avx2 asks for it");
}

// Here, whatever this machine has; and a CPU's arithmetic is that of a CPU.
TEST(AutomaticDevice, IsWhatABackendIsMadeOf) {
  const AutomaticDevice& chosen = automatic_device();
  EXPECT_EQ(make_backend({"auto", 1})->name(), make_backend({chosen.device, 1})->name());
  EXPECT_EQ(make_backend({"auto", 1, kPortableArithmetic})->arithmetic(), kPortableArithmetic);
}

}  // namespace
}  // namespace llmq
