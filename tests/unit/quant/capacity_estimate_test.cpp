// What a step reads on this machine, whose rates need no probe here.
#include "quant/plan/capacity_estimate.h"

#include <gtest/gtest.h>

#include "model/open_checkpoint.h"

namespace llmq {
namespace {

TEST(CapacityEstimate, CodesBesideInputsOf8BitsTakeTheirBytesHere) {
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-656k";
  MachineRates machine;
  machine.memory_bytes = std::uint64_t{1} << 32;
  machine.bytes_per_second = machine.bfloat16_flops = 1e9;
  machine.measured = true;
  EstimateRequest request;
  request.schemes = {"w8a8_channel_sym", "w4a8_g32_sym", "w4a8_g64_asym", "w4a8_channel_sym"};
  request.contexts = {64};
  request.batches = {1};
  double weights = 0;
  for (const BlockSpec& block : ModelSpec::read(open_checkpoint(system_io(), model)).blocks)
    for (const LinearSpec& linear : block.linears)
      weights += static_cast<double>(linear.out_features * linear.in_features);
  std::vector<double> bytes;
  for (const SchemeEstimate& scheme : estimate(system_io(), model, request, machine).schemes) {
    ASSERT_EQ(scheme.refusal, "") << scheme.scheme;
    bytes.push_back(scheme.cells.front().step_bytes);
  }
  ASSERT_EQ(bytes.size(), 4u);
  EXPECT_NEAR(bytes[0] - bytes[1], weights * (0.5 - 2.0 / 32), 1) << "scales of BF16";
  EXPECT_NEAR(bytes[0] - bytes[2], weights * (0.5 - 3.0 / 64), 1) << "and zeros of a byte";
  EXPECT_NEAR(bytes[0] - bytes[3], weights * 0.5, 1);
}

}  // namespace
}  // namespace llmq
