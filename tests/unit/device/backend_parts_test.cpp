// What backends share: which extensions they have, whose weights they take, how a list of kernels is asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_backend.h"
#include "device/product_list.h"
#include "device/upload_values.h"
#include "support/recording_device.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Extensions, ADeviceHasAllAndTheHostNone) {
  testing::DeviceNotes notes;
  const auto device = testing::recording_backend(notes);
  const Extensions& all = device->extensions();
  EXPECT_NE(all.column_rounder, nullptr);
  EXPECT_NE(all.device_peaks, nullptr);
  EXPECT_NE(all.difference_maker, nullptr);
  EXPECT_NE(all.factorizer, nullptr);
  EXPECT_NE(all.gram_totals, nullptr);
  EXPECT_NE(all.row_sums, nullptr);
  EXPECT_NE(all.token_drawer, nullptr);
  EXPECT_GT(device->scratch_bytes(), 0u);
  for (const auto& host : {make_reference_backend(), make_cpu_backend_at(1, "scalar"), make_fake_backend()}) {
    EXPECT_EQ(&host->extensions(), &kNoExtensions) << host->name();
    EXPECT_EQ(host->free_bytes() + host->scratch_bytes(), 0u) << host->name();
  }
}

// Every backend refuses the weight of every other, and names both.
TEST(OwnWeight, OfAnotherBackendIsRefused) {
  testing::DeviceNotes notes, other_notes;
  const std::shared_ptr<Backend> backends[] = {
      make_reference_backend(), make_fake_backend(), make_cpu_backend_at(1, "scalar"),
      testing::recording_backend(notes), testing::recording_backend(other_notes, 1)};
  const std::vector<float> w(8);
  for (const auto& from : backends) {
    const auto weight = from->prepare(TensorView(w.data(), DType::kF32, Shape{2, 4}), Compute::kFloat32);
    for (const auto& to : backends) {
      if (to == from) continue;
      const Buffer x = upload_values(*to, std::vector<float>(4)),
                   y = upload_values(*to, std::vector<float>(2));
      EXPECT_THAT(refusal_of([&] {
                    to->linear(y.view(DType::kF32, {1, 2}), x.view(DType::kF32, {1, 4}), *weight, {});
                  }),
                  AllOf(HasSubstr(weight->prepared_by()), HasSubstr(to->name())));
    }
  }
}

struct Divisible {
  bool (*supports)(const int& problem);
  int by;
};
constexpr Divisible kDivisible[] = {
    {[](const int& problem) { return problem % 4 == 0; }, 4},
    {[](const int& problem) { return problem % 2 == 0; }, 2},
};

TEST(ProductList, TheFirstThatSupportsRunsAndNoneIsAnErrorThatPrintsTheProblem) {
  const auto text = [](int problem) { return "of " + std::to_string(problem); };
  EXPECT_EQ(first_supporting(kDivisible, 8, text).by, 4);
  EXPECT_EQ(first_supporting(kDivisible, 6, text).by, 2);
  EXPECT_THAT(refusal_of([&] { first_supporting(kDivisible, 7, text); }), HasSubstr("of 7"));
}

TEST(UploadValues, AreOnTheDeviceAndNothingIsNoMemory) {
  const auto fake = make_fake_backend();
  const std::vector<float> numbers = {1, 2, 3};
  const std::vector<std::int32_t> places = {4, -5};
  const Buffer there = upload_values(*fake, numbers), also = upload_values(*fake, places);
  std::vector<float> back(3);
  std::vector<std::int32_t> back_places(2);
  fake->download(back.data(), there.view(DType::kF32, {3}));
  fake->download(back_places.data(), also.view(DType::kI32, {2}));
  EXPECT_EQ(back, numbers);
  EXPECT_EQ(back_places, places);
  EXPECT_EQ(upload_values(*fake, std::vector<float>{}).get(), nullptr);
}

}  // namespace
}  // namespace llmq
