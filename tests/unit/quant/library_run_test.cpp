// A calibrated run on a device that has a library of dense products: the bytes are those of one that has
// none, and plan and report say what multiplied.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "calibration/calibration_kernels.h"
#include "captured_output.h"
#include "quant/plan/plan_limits.h"
#include "support/stand_in_library.h"

namespace llmq {
namespace {

struct LibraryRun {
  CapturedOutput output;
  QuantizeReport report;
};

Plan library_plan(const std::shared_ptr<Backend>& device, Compute compute) {
  const Checkpoint checkpoint = stories();
  return make_plan(
      Recipe::parse("method: gptq\nscheme: w4a16_g32_sym\nignore: ['re:.*(layers.1|q_proj|k_proj|gate).*']\n"
                    "calibration: {samples: 2, sequence_length: 16}\n",
                    "r.yaml"),
      checkpoint, ModelSpec::read(checkpoint), compute, 1, 0, planned_devices({&device, 1}));
}

LibraryRun run_on(const std::shared_ptr<Backend>& device) {
  const Checkpoint checkpoint = stories();
  LibraryRun run;
  run.report = run_pipeline(library_plan(device, Compute::kBFloat16), checkpoint, ModelSpec::read(checkpoint),
                            some_samples(2, 16), *device, run.output, {});
  return run;
}

TEST(LibraryProducts, ARunHasTheBytesOfTheOwnKernelsAndSaysWhatMultiplied) {
  testing::StandInCalls calls;
  const auto device = testing::stand_in_backend({{}}, &calls);
  const std::vector<float> other(8 * 8);  // that the run does not ask for
  device->prepare(TensorView(other.data(), DType::kF32, {8, 8}), Compute::kBFloat16);
  ASSERT_EQ(device->kernel_choices().size(), 1u);
  const LibraryRun theirs = run_on(device), own = run_on(make_emulated_cuda_backend(1));
  EXPECT_FALSE(calls.rows.empty());
  ASSERT_FALSE(own.output.quantized.empty());
  for (const auto& [name, matrix] : own.output.quantized) {
    EXPECT_EQ(theirs.output.quantized.at(name).codes, matrix.codes) << name;
    EXPECT_EQ(theirs.output.quantized.at(name).loss, matrix.loss) << name;
  }
  EXPECT_EQ(own.report.to_json().find("kernels"), nullptr);
  const Json report = theirs.report.to_json();
  const Json& kernels = report.at("kernels");
  ASSERT_FALSE(kernels.items().empty());
  for (const Json& one : kernels.items()) {
    if (one.at("what").as_string().starts_with("some ")) continue;  // Gram matrices of few rows
    EXPECT_THAT(one.at("what").as_string(), ::testing::HasSubstr("weights of "));
    EXPECT_NE(one.at("what").as_string(), "weights of 8 by 8");
    EXPECT_EQ(one.at("kernel").as_string(), "stand-in 1.2.3: algorithm 0");
    EXPECT_TRUE(one.at("why").is_null());
  }
  const Json& sums = kernels.items().back();
  EXPECT_EQ(sums.at("what").as_string(), "some Gram matrices of 384 channels");
  EXPECT_EQ(sums.at("kernel").as_string(), "own kernels");
  EXPECT_EQ(sums.at("why").as_string(), "fewer than 2048 rows came at once");
}

// What all devices chose is said once, what they chose otherwise by device.
TEST(LibraryProducts, TheChoicesOfSeveralDevicesAreJoined) {
  const std::shared_ptr<Backend> first = testing::stand_in_backend(),
                                 second = testing::stand_in_backend({{3}, {}}, nullptr, 64 << 10, 1);
  const std::vector<float> weight(64 * 16), later(8 * 16);
  const auto prepare = [](Backend& on, const std::vector<float>& numbers) {
    on.prepare(TensorView(numbers.data(), DType::kF32, {static_cast<std::int64_t>(numbers.size()) / 16, 16}),
               Compute::kBFloat16);
  };
  const auto texts = [](const CalibrationKernels& kernels) {
    std::vector<std::string> all;
    for (const KernelChoice& choice : kernels.chosen()) all.push_back(choice.what + ": " + choice.kernel);
    return all;
  };
  const CalibrationKernels alone({first.get()}), both({first.get(), second.get()});
  prepare(*first, weight);
  EXPECT_THAT(texts(alone), ::testing::ElementsAre("weights of 64 by 16: stand-in 1.2.3: algorithm 0"));
  prepare(*second, weight);
  EXPECT_THAT(texts(both),
              ::testing::ElementsAre("weights of 64 by 16 on cuda (emulated): stand-in 1.2.3: algorithm 0",
                                     "weights of 64 by 16 on cuda (emulated): stand-in 1.2.3: algorithm 1"));
  const CalibrationKernels from_here({first.get(), second.get()});
  EXPECT_THAT(texts(from_here), ::testing::IsEmpty());
  prepare(*first, later);
  prepare(*second, later);
  prepare(*second, later);
  EXPECT_THAT(texts(from_here)[0], ::testing::StartsWith("weights of 8 by 16"));
}

TEST(LibraryProducts, APlanNamesTheDeviceThatHasNoLibrary) {
  const auto missing = [](int index) {
    return make_backend_on(std::make_unique<testing::DeviceWithoutLibrary>(index), 1,
                           DeviceUse::kCalibration);
  };
  const std::shared_ptr<Backend> whole = testing::stand_in_backend();
  const std::vector<float> odd(12 * 12);  // a shape that was tried before says nothing of the devices
  whole->prepare(TensorView(odd.data(), DType::kF32, {12, 12}), Compute::kBFloat16);
  const std::string why = " have the own kernels: cuBLASLt cannot be opened: it is not there";
  EXPECT_EQ(own_products(std::vector{whole}), "");
  EXPECT_EQ(own_products(std::vector{missing(0), missing(1)}), "dense products" + why);
  EXPECT_EQ(own_products(std::vector{whole, missing(1)}), "dense products on cuda (emulated)" + why);
}

TEST(LibraryProducts, APlanWarnsWhereTheLibraryIsMissing) {
  const auto planned = [&](DeviceUse use, Compute compute) {
    return library_plan(make_backend_on(std::make_unique<testing::DeviceWithoutLibrary>(), 1, use), compute)
        .warnings;
  };
  EXPECT_THAT(planned(DeviceUse::kCalibration, Compute::kBFloat16),
              ::testing::Contains("dense products have the own kernels: cuBLASLt cannot be opened: it is not "
                                  "there"));
  EXPECT_THAT(planned(DeviceUse::kCalibration, Compute::kFloat32), ::testing::IsEmpty());
  EXPECT_THAT(planned(DeviceUse::kServing, Compute::kBFloat16), ::testing::IsEmpty());
}

}  // namespace
}  // namespace llmq
