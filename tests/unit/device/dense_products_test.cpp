// A library's products for calibration, over a stand-in: what is tried, what is padded, and what happens
// where the library has other bits than the own kernels.
#include "device/cuda/dense/dense_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "device/gram_total.h"
#include "support/short_device.h"
#include "support/stand_in_library.h"

namespace llmq {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::stand_in_backend;
using testing::StandInAlgorithm;
using testing::StandInCalls;

constexpr std::int64_t kFeatures = 24, kColumns = 40;
constexpr std::int64_t kScratch = 512 * kFeatures * 4;  // results of 512 rows

std::vector<BFloat16> bfloat16_numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<BFloat16> values(static_cast<std::size_t>(count));
  for (BFloat16& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = to_bfloat16(static_cast<float>(static_cast<int>(seed >> 8)) * 0x1p-23f - 1.0f);
  }
  return values;
}

struct Strides {
  std::int64_t x = kColumns, y = kFeatures;
};

std::vector<float> product(Backend& backend, const std::vector<BFloat16>& x, const std::vector<BFloat16>& w,
                           std::int64_t rows, Strides strides = {}, const std::vector<float>& bias = {}) {
  const auto weight =
      backend.prepare(TensorView(w.data(), DType::kBF16, {kFeatures, kColumns}), Compute::kBFloat16);
  const Buffer in = backend.allocate(static_cast<std::size_t>(rows * strides.x) * 2),
               out = backend.allocate(static_cast<std::size_t>(rows * strides.y) * 4),
               added = backend.allocate(kFeatures * 4);
  TensorView from = in.view(DType::kBF16, {rows, kColumns}), to = out.view(DType::kF32, {rows, kFeatures}),
             all = added.view(DType::kF32, {kFeatures});
  from.row_stride = strides.x, to.row_stride = strides.y;
  backend.upload(from, x.data());
  if (!bias.empty()) backend.upload(all, bias.data());
  backend.linear(to, from, *weight, bias.empty() ? TensorView{} : all);
  std::vector<float> y(static_cast<std::size_t>(rows * kFeatures));
  backend.download(y.data(), to);
  return y;
}

class DenseProducts : public ::testing::Test {
 protected:
  const std::vector<BFloat16> x_ = bfloat16_numbers(1300 * kColumns, 1),
                              w_ = bfloat16_numbers(kFeatures * kColumns, 2);
  const std::shared_ptr<Backend> own_ = make_emulated_cuda_backend(1);
};

TEST_F(DenseProducts, AnyNumberOfRowsHasTheOwnKernelsBitsByProductsThatWereTried) {
  StandInCalls calls;
  const auto backend = stand_in_backend({{}}, &calls, kScratch);
  for (const std::int64_t rows : {1, 255, 256, 257, 511, 512, 700, 1300})
    EXPECT_EQ(product(*backend, x_, w_, rows), product(*own_, x_, w_, rows)) << rows;
  EXPECT_EQ(std::set<std::int64_t>(calls.rows.begin(), calls.rows.end()), (std::set<std::int64_t>{256, 512}));
}

TEST_F(DenseProducts, RowsNeedNotLieTogetherAndMayHaveABias) {
  const auto backend = stand_in_backend({{}}, nullptr, kScratch);
  std::vector<float> bias;
  for (std::int64_t n = 0; n < kFeatures; ++n) bias.push_back(0.37f * static_cast<float>(n) - 5);
  for (const std::int64_t rows : {3, 256, 300})
    for (const Strides& strides : {Strides{}, Strides{kColumns + 3, kFeatures + 5}})
      EXPECT_EQ(product(*backend, x_, w_, rows, strides, bias), product(*own_, x_, w_, rows, strides, bias));
}

TEST_F(DenseProducts, AnAlgorithmWithOtherBitsAtOneRowIsNotTaken) {
  for (const std::int64_t row : {0, 1, 255, 256, 300, 511}) {
    const auto backend = stand_in_backend({{row}, {}}, nullptr, kScratch);
    EXPECT_EQ(product(*backend, x_, w_, 512), product(*own_, x_, w_, 512)) << row;
    const std::vector<KernelChoice> choices = backend->kernel_choices();
    ASSERT_EQ(choices.size(), 1u);
    EXPECT_EQ(choices[0].what, "weights of 24 by 40");
    EXPECT_EQ(choices[0].kernel, "stand-in 1.2.3: algorithm 1");
    EXPECT_EQ(choices[0].why, "");
  }
}

TEST_F(DenseProducts, WhereNoAlgorithmPassesTheOwnKernelsMultiply) {
  StandInCalls calls;
  const auto backend = stand_in_backend({{131}, {17}}, &calls, kScratch);
  backend->prepare(TensorView(w_.data(), DType::kBF16, {kFeatures, kColumns}), Compute::kBFloat16);
  calls.rows.clear();
  EXPECT_EQ(product(*backend, x_, w_, 300), product(*own_, x_, w_, 300));
  EXPECT_EQ(calls.rows.size(), 0u);
  const std::vector<KernelChoice> choices = backend->kernel_choices();
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].kernel, "own kernels");
  EXPECT_EQ(choices[0].why, "each of 2 algorithms of the library, such as algorithm 0, gives other bits");
}

// 256 rows that do not pass, or that the algorithm does not take, are padded to 512.
TEST_F(DenseProducts, FewerRowsThatDidNotPassArePadded) {
  for (const StandInAlgorithm& algorithm : {StandInAlgorithm{200, 256, 0}, StandInAlgorithm{{}, 0, 256}}) {
    StandInCalls calls;
    const auto backend = stand_in_backend({algorithm}, &calls, kScratch);
    EXPECT_EQ(product(*backend, x_, w_, 256), product(*own_, x_, w_, 256));
    calls.rows.clear();
    EXPECT_EQ(product(*backend, x_, w_, 900), product(*own_, x_, w_, 900));
    EXPECT_THAT(calls.rows, ElementsAre(512, 512));  // of 388 rows at once
  }
}

TEST_F(DenseProducts, AnAlgorithmThatFailsIsNotTaken) {
  for (const ErrorKind kind : {ErrorKind::kDevice, ErrorKind::kResource}) {
    const StandInAlgorithm failing{{}, 0, 0, kind};
    const auto backend = stand_in_backend({failing, {}}, nullptr, kScratch);
    EXPECT_EQ(product(*backend, x_, w_, 512), product(*own_, x_, w_, 512));
    EXPECT_EQ(backend->kernel_choices().at(0).kernel, "stand-in 1.2.3: algorithm 1");

    const auto without = stand_in_backend({failing, {131}}, nullptr, kScratch);
    EXPECT_EQ(product(*without, x_, w_, 512), product(*own_, x_, w_, 512));
    EXPECT_EQ(without->kernel_choices().at(0).kernel, "own kernels");
    EXPECT_EQ(
        without->kernel_choices().at(0).why,
        "each of 2 algorithms of the library, such as algorithm 0, gives other bits or fails: the stand-in "
        "fails at 512 rows");
  }
  const auto backend = stand_in_backend({{{}, 0, 0, ErrorKind::kInternal}}, nullptr, kScratch);
  EXPECT_THROW(product(*backend, x_, w_, 512), Error) << "a fault of ours is not the library's";
}

// It passes for 512 rows, and 256 are padded to them.
TEST_F(DenseProducts, NumbersOfRowsAtWhichTheAlgorithmFailsArePadded) {
  StandInCalls calls;
  const auto backend = stand_in_backend({{{}, 256, 0, ErrorKind::kDevice}}, &calls, kScratch);
  EXPECT_EQ(product(*backend, x_, w_, 256), product(*own_, x_, w_, 256));
  EXPECT_EQ(calls.rows.back(), 512);
}

// Memory that somebody else may have taken.
class ShortStandIn final : public testing::StandInDevice {
 public:
  ShortStandIn(StandInCalls& calls, const bool& is_short)
      : StandInDevice({{}}, &calls, kScratch),
        memory_(std::make_shared<testing::ShortMemory>(
            StandInDevice::memory(),
            [&is_short](std::size_t bytes, const std::string&) { return is_short && bytes > 40000; })) {}
  std::shared_ptr<MemoryResource> memory() override { return memory_; }

 private:
  const std::shared_ptr<MemoryResource> memory_;
};

TEST_F(DenseProducts, WithoutMemoryForATrialTheOwnKernelsMultiply) {
  StandInCalls calls;
  bool is_short = true;
  const auto backend =
      make_backend_on(std::make_unique<ShortStandIn>(calls, is_short), 1, DeviceUse::kCalibration);
  const TensorView w(w_.data(), DType::kBF16, {kFeatures, kColumns});
  EXPECT_EQ(backend->prepare(w, Compute::kBFloat16)->kernel, "bf16 fragments");
  EXPECT_THAT(calls.rows, ::testing::IsEmpty());
  const std::vector<KernelChoice> choices = backend->kernel_choices();
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].kernel, "own kernels");
  EXPECT_THAT(choices[0].why, HasSubstr("the trial failed: the short device has no room for"));
  is_short = false;
  EXPECT_EQ(product(*backend, x_, w_, 300), product(*own_, x_, w_, 300));
  EXPECT_EQ(backend->kernel_choices().at(0).kernel, "own kernels") << "a shape is tried once";
}

class FailingLibrary final : public testing::RecordingDevice {
 public:
  FailingLibrary(testing::DeviceNotes& notes, ErrorKind kind) : RecordingDevice(notes, 0), kind_(kind) {}
  DenseLibrary* dense_library() override {
    fail(kind_, "cublasLtCreate failed: CUBLAS_STATUS_NOT_INITIALIZED");
  }

 private:
  const ErrorKind kind_;
};

TEST_F(DenseProducts, ALibraryThatDoesNotStartLeavesTheOwnKernels) {
  testing::DeviceNotes notes;
  const auto made = [&](ErrorKind kind) {
    return make_backend_on(std::make_unique<FailingLibrary>(notes, kind), 1, DeviceUse::kCalibration);
  };
  for (const ErrorKind kind : {ErrorKind::kDevice, ErrorKind::kResource}) {
    const auto backend = made(kind);
    EXPECT_EQ(product(*backend, x_, w_, 300), product(*own_, x_, w_, 300));
    const std::vector<KernelChoice> choices = backend->kernel_choices();
    ASSERT_EQ(choices.size(), 1u);
    EXPECT_EQ(choices[0].what + ", " + choices[0].kernel, "dense products, own kernels");
    EXPECT_EQ(choices[0].why, "cublasLtCreate failed: CUBLAS_STATUS_NOT_INITIALIZED");
  }
  EXPECT_THROW(made(ErrorKind::kUsage), Error) << "LLMQ_DENSE_PRODUCTS is no word of ours";
}

TEST_F(DenseProducts, AShapeIsTriedOnce) {
  StandInCalls calls;
  const auto backend = stand_in_backend({{}}, &calls, kScratch);
  const TensorView w(w_.data(), DType::kBF16, {kFeatures, kColumns});
  backend->prepare(w, Compute::kBFloat16);
  const std::size_t trial = calls.rows.size();
  EXPECT_GT(trial, 0u);
  backend->prepare(w, Compute::kBFloat16);
  backend->prepare(w, Compute::kFloat32);
  EXPECT_EQ(calls.rows.size(), trial);
}

TEST_F(DenseProducts, ShapesThatTheLibraryIsNotAskedForHaveTheOwnKernels) {
  const auto backend = stand_in_backend();
  const std::vector<float> w(13 * 24);
  const auto weight = backend->prepare(TensorView(w.data(), DType::kF32, {13, 24}), Compute::kBFloat16);
  EXPECT_EQ(weight->kernel, "bf16 fragments");
  EXPECT_THAT(backend->kernel_choices()[0].why, HasSubstr("multiples of 8"));
}

TEST_F(DenseProducts, QuadraticFormsAreTheLibrarys) {
  StandInCalls calls;
  const auto backend = stand_in_backend({{}}, &calls, kScratch);
  const std::vector<float> square(static_cast<std::size_t>(kColumns * kColumns), 0.5f),
      d(static_cast<std::size_t>(3 * kColumns), 2.0f);
  const auto g =
      backend->prepare(TensorView(square.data(), DType::kF32, {kColumns, kColumns}), Compute::kBFloat16);
  calls.rows.clear();
  const Buffer rows = backend->allocate(d.size() * 4);
  backend->upload(rows.view(DType::kF32, {3, kColumns}), d.data());
  std::vector<double> loss(3);
  backend->quadratic_form(loss, rows.view(DType::kF32, {3, kColumns}), *g);
  EXPECT_THAT(loss, Each(4.0 * 0.5 * kColumns * kColumns));
  EXPECT_EQ(calls.rows, std::vector<std::int64_t>{256});
}

TEST_F(DenseProducts, ServingAndAnEmulationHaveTheOwnKernels) {
  const TensorView w(w_.data(), DType::kBF16, {kFeatures, kColumns});
  for (const auto& backend : {make_backend_on(std::make_unique<testing::StandInDevice>(), 1),
                              make_backend({"emulated", 1, {}, DeviceUse::kCalibration})}) {
    EXPECT_EQ(backend->prepare(w, Compute::kBFloat16)->kernel, "bf16 fragments");
    EXPECT_TRUE(backend->kernel_choices().empty());
  }
  EXPECT_EQ(stand_in_backend()->arithmetic(), own_->arithmetic());
}

// A square of 4,096 rows and some more, with a stride of its own; what lies above the diagonal.
std::vector<float> gram_of(Backend& backend, const std::vector<BFloat16>& x, std::int64_t rows,
                           std::int64_t channels, const std::vector<std::int64_t>& cuts) {
  const std::int64_t stride = channels + 8;
  const Buffer in = backend.allocate(x.size() * 2),
               square = backend.allocate(static_cast<std::size_t>(channels * stride) * 4);
  TensorView g = square.view(DType::kF32, {channels, channels});
  g.row_stride = stride;
  const TensorView all = in.view(DType::kBF16, {rows, channels});
  backend.upload(all, x.data());
  backend.clear(square.view(DType::kF32, {channels, stride}));
  std::int64_t first = 0;
  for (const std::int64_t count : cuts) {
    backend.gram(g, all.row_slice(first, count), first);
    first += count;
  }
  EXPECT_EQ(first, rows);
  std::vector<float> sums(static_cast<std::size_t>(channels * channels));
  backend.download(sums.data(), g);
  for (std::int64_t i = 0; i < channels; ++i)
    for (std::int64_t j = 0; j < i; ++j) sums[static_cast<std::size_t>(i * channels + j)] = 0;
  return sums;
}

TEST_F(DenseProducts, GramMatricesHaveTheOwnKernelsBitsHoweverRowsAreCut) {
  constexpr std::int64_t kRows = 4096 + 37, kChannels = 16;
  const std::vector<BFloat16> x = bfloat16_numbers(kRows * kChannels, 3);
  StandInCalls calls;
  const auto backend = stand_in_backend({{7}, {}}, &calls);
  const std::vector<float> want = gram_of(*own_, x, kRows, kChannels, {kRows});
  EXPECT_EQ(gram_of(*backend, x, kRows, kChannels, {kRows}), want);
  EXPECT_EQ(calls.panels.size(), 3u);  // two trials and a sum
  EXPECT_EQ(gram_of(*backend, x, kRows, kChannels, {4096, 37}), want);
  EXPECT_EQ(calls.panels.size(), 4u);
  EXPECT_EQ(gram_of(*backend, x, kRows, kChannels, {64, kRows - 64}), want);
  EXPECT_EQ(calls.panels.size(), 4u) << "a sum that was begun";
  EXPECT_EQ(backend->kernel_choices()[0].what, "Gram matrices of 16 channels");
  EXPECT_EQ(backend->kernel_choices()[0].kernel, "stand-in 1.2.3: algorithm 1");
}

std::vector<std::uint64_t> bits_of(const ZeroedNumbers<double>& numbers) {
  std::vector<std::uint64_t> bits;
  for (const double number : numbers) bits.push_back(std::bit_cast<std::uint64_t>(number));
  return bits;
}

// Chunks of samples whose length does not divide 4,096, and x that does not lie as the library wants it.
TEST_F(DenseProducts, GramMatricesOfFewerRowsHaveZerosBehindThem) {
  constexpr std::int64_t kChannels = 16;
  StandInCalls calls;
  const auto backend = stand_in_backend({{}}, &calls);
  for (const std::int64_t rows : {2047, 2048, 3000, 4095}) {
    const std::vector<BFloat16> x = bfloat16_numbers(rows * kChannels, 3);
    calls.panels.clear();
    EXPECT_EQ(gram_of(*backend, x, rows, kChannels, {rows}), gram_of(*own_, x, rows, kChannels, {rows}))
        << rows;
    EXPECT_EQ(calls.panels.size(), rows == 2047   ? 0u
                                   : rows == 2048 ? 2u
                                                  : 1u)
        << rows;  // the first is a trial
  }
  const std::vector<KernelChoice> choices = backend->kernel_choices();
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].what, "Gram matrices of 16 channels");
  EXPECT_EQ(choices[0].asked, 3);
  EXPECT_EQ(choices[1].what, "some Gram matrices of 16 channels");
  EXPECT_EQ(choices[1].kernel, "own kernels");
  EXPECT_EQ(choices[1].why, "fewer than 2048 rows came at once");
  EXPECT_EQ(choices[1].asked, 1);

  constexpr std::int64_t kRows = 2500, kWide = kChannels + 8;
  const std::vector<BFloat16> wide = bfloat16_numbers(kRows * kWide, 4);
  const auto slice_of = [&](Backend& on) {
    const Buffer in = on.allocate(wide.size() * 2),
                 square = on.allocate(static_cast<std::size_t>(kChannels * kChannels) * 4);
    on.upload(in.view(DType::kBF16, {kRows, kWide}), wide.data());
    const TensorView g = square.view(DType::kF32, {kChannels, kChannels});
    on.clear(g);
    TensorView x = in.view(DType::kBF16, {kRows, kChannels});
    x.row_stride = kWide;
    on.gram(g, x);
    ExactSums sums(triangle_place(kChannels, kChannels));
    on.drain_gram(sums, g);
    return bits_of(std::move(sums).round());
  };
  calls.panels.clear();
  EXPECT_EQ(slice_of(*backend), slice_of(*own_));
  EXPECT_EQ(calls.panels.size(), 2u);  // another stride of the square is another trial
}

// Of products that are too small for FP32 the own kernels leave -0, which rows of zeros make +0: what the
// sums are drained into has the same bits.
TEST_F(DenseProducts, ZerosBehindTheRowsOfAGramMatrixChangeNoBitOfWhatIsDrained) {
  constexpr std::int64_t kRows = 2048, kChannels = 8;
  std::vector<BFloat16> x(static_cast<std::size_t>(kRows * kChannels));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = to_bfloat16(i % 2 == 0 ? 0x1p-100f : -0x1p-100f);
  const auto of = [&](Backend& on, std::vector<float>& square) {
    const Buffer in = on.allocate(x.size() * 2),
                 out = on.allocate(static_cast<std::size_t>(kChannels * kChannels) * 4);
    const TensorView rows = in.view(DType::kBF16, {kRows, kChannels}),
                     g = out.view(DType::kF32, {kChannels, kChannels});
    on.upload(rows, x.data());
    on.clear(g);
    on.gram(g, rows);
    square.resize(static_cast<std::size_t>(kChannels * kChannels));
    on.download(square.data(), g);
    const auto total = on.extensions().gram_totals->gram_total(kChannels);
    total->drain(g);
    ExactSums sums(triangle_place(kChannels, kChannels));
    total->read(sums);
    return bits_of(std::move(sums).round());
  };
  std::vector<float> theirs, ours;
  const auto backend = stand_in_backend();
  EXPECT_EQ(of(*backend, theirs), of(*own_, ours));
  EXPECT_EQ(backend->kernel_choices().at(0).kernel, "stand-in 1.2.3: algorithm 0");
  EXPECT_TRUE(std::signbit(ours[1]));
  EXPECT_FALSE(std::signbit(theirs[1]));
}

TEST_F(DenseProducts, WithoutMemoryForTheZerosTheOwnKernelsSum) {
  constexpr std::int64_t kRows = 3000, kChannels = 16;
  const std::vector<BFloat16> x = bfloat16_numbers(4096 * kChannels, 3);
  StandInCalls calls;
  bool is_short = false;
  const auto backend =
      make_backend_on(std::make_unique<ShortStandIn>(calls, is_short), 1, DeviceUse::kCalibration);
  const auto sum_on = [&](Backend& on) {
    const Buffer in = on.allocate(x.size() * 2), square = on.allocate(kChannels * kChannels * 4);
    const TensorView rows = in.view(DType::kBF16, {4096, kChannels}),
                     g = square.view(DType::kF32, {kChannels, kChannels});
    on.upload(rows, x.data());
    on.clear(g);
    on.gram(g, rows);  // a shape is tried
    on.clear(g);
    is_short = true;
    on.gram(g, rows.row_slice(0, kRows));
    is_short = false;
    std::vector<float> sums(static_cast<std::size_t>(kChannels * kChannels));
    on.download(sums.data(), g);
    return sums;
  };
  const std::vector<float> theirs = sum_on(*backend), ours = sum_on(*own_);
  for (std::size_t i = 0; i < kChannels; ++i)
    for (std::size_t j = i; j < kChannels; ++j) EXPECT_EQ(theirs[i * kChannels + j], ours[i * kChannels + j]);
  EXPECT_EQ(backend->kernel_choices().at(1).why, "there was no memory for the zeros behind their rows");
}

TEST_F(DenseProducts, APanelThatFailsLeavesTheOwnKernels) {
  constexpr std::int64_t kRows = 4096, kChannels = 16;
  const std::vector<BFloat16> x = bfloat16_numbers(kRows * kChannels, 5);
  const auto backend = stand_in_backend({{{}, 0, 0, ErrorKind::kDevice}});
  EXPECT_EQ(gram_of(*backend, x, kRows, kChannels, {kRows}), gram_of(*own_, x, kRows, kChannels, {kRows}));
  EXPECT_EQ(backend->kernel_choices().at(0).kernel, "own kernels");
  EXPECT_EQ(backend->kernel_choices().at(0).why,
            "an algorithm of the library, such as algorithm 0, fails: the stand-in fails at 4096 rows");
}

// More channels than a trial has different ones of.
TEST_F(DenseProducts, GramMatricesOfManyChannelsAreTriedAtEachOfThem) {
  constexpr std::int64_t kRows = 4096, kChannels = 264;
  const std::vector<BFloat16> x = bfloat16_numbers(kRows * kChannels, 5);
  const auto backend = stand_in_backend({{263}, {}});
  EXPECT_EQ(gram_of(*backend, x, kRows, kChannels, {kRows}), gram_of(*own_, x, kRows, kChannels, {kRows}));
  EXPECT_EQ(backend->kernel_choices()[0].kernel, "stand-in 1.2.3: algorithm 1");
}

TEST_F(DenseProducts, GramMatricesWithOtherBitsAreTheOwnKernels) {
  constexpr std::int64_t kRows = 4096, kChannels = 24;
  const std::vector<BFloat16> x = bfloat16_numbers(kRows * kChannels, 5);
  const auto backend = stand_in_backend({{23}});
  EXPECT_EQ(gram_of(*backend, x, kRows, kChannels, {kRows}), gram_of(*own_, x, kRows, kChannels, {kRows}));
  EXPECT_EQ(backend->kernel_choices()[0].kernel, "own kernels");
  EXPECT_EQ(backend->kernel_choices()[0].why,
            "an algorithm of the library, such as algorithm 0, gives other bits");
}

}  // namespace
}  // namespace llmq
