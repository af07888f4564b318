// The fake device notices what a GPU would not forgive: a host pointer, a missing copy, a look from the host.
#include <functional>

#include "backend_fixture.h"

namespace llmq::testing {
namespace {

ErrorKind kind_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was refused";
  return ErrorKind::kUsage;
}

TEST(FakeDevice, RefusesHostPointers) {
  const auto fake = make_fake_backend();
  std::vector<float> host(8);
  const Placed device = put(*fake, DType::kF32, {8}, host);
  EXPECT_EQ(kind_of([&] { fake->add(device.view, TensorView(host.data(), DType::kF32, Shape{8}), 1); }),
            ErrorKind::kInternal);
  // A host pointer that claims to be on the device.
  EXPECT_EQ(kind_of([&] {
              fake->add(device.view, TensorView(host.data(), DType::kF32, Shape{8}, fake->device()), 1);
            }),
            ErrorKind::kInternal);
  // More than the allocation holds.
  EXPECT_EQ(kind_of([&] {
              fake->add(TensorView(device.view.pointer, DType::kF32, Shape{5000}, fake->device()),
                        device.view, 1);
            }),
            ErrorKind::kInternal);
  // Device memory where the host's belongs.
  EXPECT_EQ(kind_of([&] { fake->download(device.view.pointer, device.view); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { fake->upload(device.view, device.view.pointer); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { fake->prepare(device.view, Compute::kFloat32); }), ErrorKind::kInternal);
}

TEST(FakeDevice, OtherBackendsRefuseItsTensors) {
  const auto fake = make_fake_backend();
  const Placed device = put(*fake, DType::kF32, {8}, std::vector<float>(8));
  EXPECT_EQ(kind_of([&] { make_reference_backend()->add(device.view, device.view, 1); }),
            ErrorKind::kInternal);
  for (const std::string& level : cpu_levels_present())
    EXPECT_EQ(kind_of([&] { make_cpu_backend_at(1, level)->add(device.view, device.view, 1); }),
              ErrorKind::kInternal)
        << level;
}

TEST(FakeDevice, WeightsOfAnotherBackendAreRefused) {
  const auto fake = make_fake_backend(), reference = make_reference_backend();
  const std::vector<float> w(8);
  const auto weight = reference->prepare(TensorView(w.data(), DType::kF32, Shape{2, 4}), Compute::kFloat32);
  const Placed x = put(*fake, DType::kF32, {1, 4}, std::vector<float>(4)),
               y = put(*fake, DType::kF32, {1, 2}, std::vector<float>(2));
  EXPECT_EQ(kind_of([&] { fake->linear(y.view, x.view, *weight, {}); }), ErrorKind::kInternal);
}

TEST(FakeDeviceDeathTest, IsClosedToTheHost) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto fake = make_fake_backend();
  const Placed device = put(*fake, DType::kF32, {8}, std::vector<float>(8, 1.0f));
  fake->add(device.view, device.view, 1);  // opened, and closed again
  EXPECT_DEATH(
      {
        volatile float seen = device.view.as<float>()[0];
        static_cast<void>(seen);
      },
      "");
  EXPECT_EQ(get(*fake, device.view)[0], 2.0f);
}

TEST(MakeBackend, NamesAndRefusals) {
  EXPECT_EQ(make_backend({"reference", 0})->name(), "reference");
  EXPECT_EQ(make_backend({"fake", 0})->name(), "fake");
  for (const char* unknown : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "CPU"})
    EXPECT_EQ(kind_of([&] { make_backend({unknown, 0}); }), ErrorKind::kUsage) << unknown;
  EXPECT_EQ(kind_of([] { make_backend({"cpu", -1}); }), ErrorKind::kUsage);
}

}  // namespace
}  // namespace llmq::testing
