// What an engine says of the kernels of its device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/open_checkpoint.h"
#include "runtime/engine.h"
#include "support/stand_in_library.h"

namespace llmq {
namespace {

TEST(EngineKernels, AMissingLibraryIsSaidWhereItWouldMultiply) {
  const Checkpoint checkpoint =
      open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/models/tinystories-656k");
  const auto said = [&](const std::shared_ptr<Backend>& device, Compute compute) {
    Engine::Options options;
    options.compute = compute;
    options.max_context = 32;
    options.kv_tokens = 32;
    return Engine::load(checkpoint, device, options).slower_than_possible();
  };
  const auto without = [](DeviceUse use) {
    return make_backend_on(std::make_unique<testing::DeviceWithoutLibrary>(), 1, use);
  };
  EXPECT_THAT(
      said(without(DeviceUse::kCalibration), Compute::kBFloat16),
      ::testing::ElementsAre("dense products have the own kernels: cuBLASLt cannot be opened: it is not "
                             "there"));
  EXPECT_THAT(said(without(DeviceUse::kCalibration), Compute::kFloat32), ::testing::IsEmpty());
  EXPECT_THAT(said(without(DeviceUse::kServing), Compute::kBFloat16), ::testing::IsEmpty());
}

}  // namespace
}  // namespace llmq
