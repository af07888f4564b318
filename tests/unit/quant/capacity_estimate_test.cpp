// What a step reads on this machine, whose rates need no probe here.
#include "quant/plan/capacity_estimate.h"

#include <gtest/gtest.h>

#include "model/open_checkpoint.h"

namespace llmq {
namespace {

const std::string kEstimatedModel = std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-656k";

// Of one sequence's step on a machine that was measured, of each scheme.
std::vector<double> bytes_of_a_step(const std::vector<std::string>& schemes, Compute compute,
                                    bool on_device = false) {
  MachineRates machine;
  machine.memory_bytes = std::uint64_t{1} << 32;
  machine.bytes_per_second = machine.bfloat16_flops = 1e9;
  machine.measured = true;
  machine.on_device = on_device;
  EstimateRequest request;
  request.schemes = schemes;
  request.contexts = {64};
  request.batches = {1};
  request.compute = compute;
  std::vector<double> bytes;
  for (const SchemeEstimate& scheme : estimate(system_io(), kEstimatedModel, request, machine).schemes) {
    EXPECT_EQ(scheme.refusal, "") << scheme.scheme;
    if (scheme.refusal.empty()) bytes.push_back(scheme.cells.front().step_bytes);
  }
  return bytes;
}

double linear_weights() {
  double weights = 0;
  for (const BlockSpec& block : ModelSpec::read(open_checkpoint(system_io(), kEstimatedModel)).blocks)
    for (const LinearSpec& linear : block.linears)
      weights += static_cast<double>(linear.out_features * linear.in_features);
  return weights;
}

TEST(CapacityEstimate, CodesBesideInputsOf8BitsTakeTheirBytesHere) {
  const double weights = linear_weights();
  const std::vector<double> bytes = bytes_of_a_step(
      {"w8a8_channel_sym", "w4a8_g32_sym", "w4a8_g64_asym", "w4a8_channel_sym"}, Compute::kBFloat16);
  ASSERT_EQ(bytes.size(), 4u);
  EXPECT_NEAR(bytes[0] - bytes[1], weights * (0.5 - 2.0 / 32), 1) << "scales of BF16";
  EXPECT_NEAR(bytes[0] - bytes[2], weights * (0.5 - 3.0 / 64), 1) << "and zeros of a byte";
  EXPECT_NEAR(bytes[0] - bytes[3], weights * 0.5, 1);
}

TEST(CapacityEstimate, CodesBesideInputsOf16BitsTakeTheirBitsHere) {
  const double weights = linear_weights();
  for (const Compute compute : {Compute::kBFloat16, Compute::kFloat32}) {
    const double dense = compute == Compute::kFloat32 ? 4 : 2;
    const std::vector<double> bytes = bytes_of_a_step(
        {"original", "w4a16_g64_asym", "w3a16_g32_sym", "nvfp4a16", "mxfp4", "mxfp8a16", "q4_0"}, compute);
    ASSERT_EQ(bytes.size(), 7u);
    EXPECT_NEAR(bytes[0] - bytes[1], weights * (dense - 0.5 - 3.0 / 64), 1);
    EXPECT_NEAR(bytes[0] - bytes[2], weights * (dense - 3.0 / 8 - 2.0 / 32), 1);
    EXPECT_NEAR(bytes[0] - bytes[3], weights * (dense - 0.5 - 1.0 / 16), 1);
    EXPECT_NEAR(bytes[0] - bytes[4], weights * (dense - 0.5 - 1.0 / 32), 1);
    EXPECT_EQ(bytes[0], bytes[5]) << "E4M3 is held as numbers";
    EXPECT_LT(bytes[6], bytes[0] * 0.4);
  }
}

TEST(CapacityEstimate, ADeviceHasABytePerCodeBesideInputsOf8BitsAndScalesOfFourBytes) {
  const double weights = linear_weights();
  const std::vector<double> bytes =
      bytes_of_a_step({"original", "w4a8_g32_sym", "w4a16_g64_asym", "w5a16_g64_sym", "nvfp4", "nvfp4a16"},
                      Compute::kBFloat16, true);
  ASSERT_EQ(bytes.size(), 6u);
  EXPECT_NEAR(bytes[0] - bytes[1], weights, 1);
  EXPECT_NEAR(bytes[0] - bytes[2], weights * (2 - 0.5 - 8.0 / 64), 1);
  EXPECT_NEAR(bytes[0] - bytes[3], weights * (2 - 1 - 4.0 / 64), 1);
  EXPECT_NEAR(bytes[0] - bytes[4], weights * (2 - 0.5 - 1.0 / 16), 1);
  EXPECT_EQ(bytes[4], bytes[5]);
}

// A step reads none of it but the rows that it looks up; the head is another tensor.
TEST(CapacityEstimate, AGgufsEmbeddingIsTakenOffAsItLies) {
  const std::string untied = std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/mistral-head-dim/model";
  const Checkpoint checkpoint = open_checkpoint(system_io(), untied);
  const auto looked_up =
      static_cast<double>(checkpoint.at("model.embed_tokens.weight").view.shape.elements());
  MachineRates machine;
  machine.memory_bytes = std::uint64_t{1} << 32;
  machine.bytes_per_second = machine.bfloat16_flops = 1e9;
  EstimateRequest request;
  request.schemes = {"q8_0"};
  request.contexts = {8};
  request.batches = {1};
  for (const bool measured : {true, false}) {
    machine.measured = measured;
    const Estimate found = estimate(system_io(), untied, request, machine);
    const SchemeEstimate& scheme = found.schemes.front();
    ASSERT_EQ(scheme.refusal, "");
    const EstimatedCell& cell = scheme.cells.front();
    EXPECT_NEAR(cell.step_bytes,
                static_cast<double>(scheme.weight_bytes + cell.kv_bytes) - looked_up * 34 / 32, 1);
  }
}

}  // namespace
}  // namespace llmq
