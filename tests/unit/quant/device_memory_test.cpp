// What a plan says that a device with memory of its own will hold, against what an emulated one held; and
// what is done where it has less.
#include <gmock/gmock.h>

#include "base/error.h"
#include "captured_output.h"
#include "device/cuda/cuda_backend.h"
#include "quant/plan/memory_limit.h"
#include "quant/plan/plan_costs.h"

namespace llmq {
namespace {

struct PlannedRun {
  Plan plan;
  PlanCosts costs;
  CapturedOutput output;
  std::uint64_t most = 0;  // that a device held
};

Plan plan_on(const std::string& recipe, Compute compute, std::span<const std::shared_ptr<Backend>> devices,
             std::int64_t samples, std::int64_t length) {
  const Checkpoint checkpoint = stories();
  return make_plan(Recipe::parse(recipe + fmt::format("calibration: {{samples: {}, sequence_length: {}}}\n",
                                                      samples, length),
                                 "r.yaml"),
                   checkpoint, ModelSpec::read(checkpoint), compute, 1, 0, planned_devices(devices));
}

PlannedRun quantize_planned(const std::string& recipe, Compute compute, std::optional<std::uint64_t> memory,
                            std::int64_t samples = 4, std::int64_t length = 24, int count = 1,
                            std::int64_t chunk = 0, ResidualPlace place = ResidualPlace::kDevice,
                            std::int64_t scratch = 64 << 10) {
  const Checkpoint checkpoint = stories();
  std::vector<std::shared_ptr<Backend>> devices;
  for (int i = 0; i < count; ++i) devices.push_back(make_emulated_cuda_backend(1, {i, memory, {}, scratch}));
  PlannedRun run{plan_on(recipe, compute, devices, samples, length), {}, {}, 0};
  if (chunk != 0) {
    run.plan.chunk_tokens = chunk;
    run.plan.activations_on_host = place == ResidualPlace::kHost;
  }
  run.costs = costs_of(run.plan);
  PipelineOptions options;
  options.further_devices.assign(devices.begin() + 1, devices.end());
  run_pipeline(run.plan, checkpoint, ModelSpec::read(checkpoint), some_samples(samples, length),
               *devices.front(), run.output, options);
  for (const std::shared_ptr<Backend>& device : devices) run.most = std::max(run.most, device->peak_bytes());
  return run;
}

constexpr const char* kFew = "ignore: ['re:.*(layers.1|q_proj|k_proj|gate).*']\n";

// Begun is what fits with its reserve, so a device that holds more than that would end a run in the middle.
TEST(DeviceMemory, APlanKnowsWhatADeviceWillHold) {
  const struct {
    std::string recipe;
    Compute compute;
  } cases[] = {{"method: gptq\nscheme: w4a16_g32_sym\n", Compute::kBFloat16},
               {"method: gptq\nscheme: w4a16_g32_sym\n", Compute::kFloat32},
               {"method: [awq, gptq]\nscheme: w4a16_g32_sym\nawq: {grid: 2}\n", Compute::kBFloat16},
               {"method: awq\nscheme: w4a16_g32_asym\nawq: {grid: 2}\n", Compute::kBFloat16},
               {"method: smoothquant\nscheme: w8a8\n", Compute::kFloat32}};
  for (const auto& c : cases) {
    std::map<std::string, QuantizedMatrix> small;
    // what goes at once is planned, and changes no result
    for (const std::int64_t scratch : {std::int64_t{64} << 10, std::int64_t{64} << 20}) {
      const PlannedRun found =
          quantize_planned(c.recipe + kFew, c.compute, {}, 2, 16, 1, 0, ResidualPlace::kDevice, scratch);
      std::string parts;
      for (const MemoryItem& item : found.costs.device_memory)
        parts += fmt::format("\n  {}: {}", item.what, item.bytes);
      std::printf("%s, %lld of scratch: %llu held, %llu planned\n", found.plan.method.c_str(),
                  static_cast<long long>(scratch), static_cast<unsigned long long>(found.most),
                  static_cast<unsigned long long>(found.costs.device_bytes));
      EXPECT_LE(found.most, found.costs.device_bytes + found.costs.device_bytes / 20) << c.recipe << parts;
      EXPECT_GE(2 * found.most, found.costs.device_bytes) << c.recipe << parts;
      if (small.empty()) small = found.output.quantized;
      for (const auto& [name, matrix] : found.output.quantized) {
        EXPECT_EQ(matrix.codes, small.at(name).codes) << name;
        EXPECT_EQ(matrix.loss, small.at(name).loss) << name;
      }
    }
  }
}

TEST(DeviceMemory, WhatHasNoRoomThereIsComputedAgainThenHeldByTheHost) {
  const std::string recipe = "method: gptq\nscheme: w4a16_g32_sym\n";
  const auto planned = [&](std::uint64_t memory) {
    const std::shared_ptr<Backend> device = make_emulated_cuda_backend(1, {0, memory, {}});
    return plan_on(recipe, Compute::kBFloat16, {&device, 1}, 128, 512);
  };
  const auto needed = [](const Plan& plan) {
    const PlanCosts costs = costs_of(plan);
    return costs.device_bytes + costs.device_bytes / 20;
  };
  const Plan all = planned(std::uint64_t{1} << 40);
  EXPECT_TRUE(all.keep_inputs);
  const Plan again = planned(needed(all) - 1);
  EXPECT_FALSE(again.keep_inputs);
  EXPECT_FALSE(again.activations_on_host);
  // intermediate_size 384, hidden_size 128
  constexpr std::uint64_t kInputs = (128u * 512 - 4096) * 384 * 2, kResidual = (128u * 512 - 4096) * 128 * 4;
  EXPECT_EQ(costs_of(all).device_bytes - costs_of(again).device_bytes, kInputs);
  const Plan held = planned(needed(again) - 1);
  EXPECT_FALSE(held.keep_inputs);
  EXPECT_TRUE(held.activations_on_host);
  EXPECT_FALSE(held.activations_in_file);
  EXPECT_EQ(costs_of(again).device_bytes - costs_of(held).device_bytes, kResidual);
  EXPECT_GT(costs_of(held).peak_bytes, costs_of(again).peak_bytes + kResidual);
}

TEST(DeviceMemory, WhereSamplesLieChangesNoByte) {
  const std::string recipe = std::string("method: gptq\nscheme: w4a16_g32_sym\n") + kFew;
  for (const int count : {1, 2}) {
    const PlannedRun there = quantize_planned(recipe, Compute::kBFloat16, {}, 6, 8, count, 16,
                                              ResidualPlace::kDevice),
                     held = quantize_planned(recipe, Compute::kBFloat16, {}, 6, 8, count, 16,
                                             ResidualPlace::kHost);
    EXPECT_LT(held.costs.device_bytes, there.costs.device_bytes);
    EXPECT_LT(held.most, there.most);
    for (const PlannedRun* const one : {&there, &held})
      EXPECT_LE(one->most, one->costs.device_bytes + one->costs.device_bytes / 20);
    ASSERT_FALSE(there.output.quantized.empty());
    for (const auto& [name, matrix] : there.output.quantized) {
      EXPECT_EQ(matrix.codes, held.output.quantized.at(name).codes) << name;
      EXPECT_EQ(matrix.loss, held.output.quantized.at(name).loss) << name;
    }
  }
}

TEST(DeviceMemory, ARunWithoutRoomIsRefusedWithWhatWouldDo) {
  const std::string recipe = "method: gptq\nscheme: w4a16_g32_sym\n";
  const auto refusal = [&](std::uint64_t memory, std::int64_t samples, std::int64_t length) -> std::string {
    const std::shared_ptr<Backend> device = make_emulated_cuda_backend(1, {0, memory, {}});
    try {
      plan_on(recipe, Compute::kBFloat16, {&device, 1}, samples, length);
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), 2);
      return error.what();
    }
    return "it was planned";
  };
  const std::shared_ptr<Backend> endless = make_emulated_cuda_backend(1);
  const auto bytes = [&](std::int64_t samples, std::int64_t length) {
    const PlanCosts costs = costs_of(plan_on(recipe, Compute::kBFloat16, {&endless, 1}, samples, length));
    return costs.device_bytes + costs.device_bytes / 20;
  };
  EXPECT_THAT(refusal(1 << 10, 4, 64), ::testing::HasSubstr("no number of samples would do"));
  EXPECT_THAT(refusal(1 << 10, 4, 64), ::testing::HasSubstr("MB on its device, which has 1.0 kB to give"));
  EXPECT_THAT(refusal(bytes(1, 64), 4, 64), ::testing::HasSubstr("calibration.samples: 1 would do"));
  EXPECT_THAT(refusal(bytes(4, 64), 4, 64), "it was planned");
}

}  // namespace
}  // namespace llmq
