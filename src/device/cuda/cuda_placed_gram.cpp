#include "device/cuda/cuda_placed_gram.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "device/cuda/device_factor.h"

namespace llmq {
namespace {

constexpr std::size_t kCheckedAtOnce = std::size_t{1} << 16;

// Not finite is what the library need not notice.
bool all_finite(std::span<const double> values, ThreadPool& pool) {
  std::atomic<bool> finite = true;
  pool.parallel_for((values.size() + kCheckedAtOnce - 1) / kCheckedAtOnce, [&](std::size_t part, int) {
    const std::size_t first = part * kCheckedAtOnce;
    for (const double value : values.subspan(first, std::min(kCheckedAtOnce, values.size() - first)))
      if (!std::isfinite(value)) finite = false;
  });
  return finite;
}

class GramOnDevice final : public PlacedGram {
 public:
  GramOnDevice(CudaWork& work, std::span<const double> triangle, std::int64_t channels)
      : work_(work),
        size_(channels),
        finite_(all_finite(triangle, work.pool())),
        triangle_(work.copy_of(triangle)) {}

  bool factorize(PlacedOrder order, double lambda) override {
    if (!finite_) return false;
    if (square_.bytes() == 0)
      square_ =
          room_for_factor(work_.device(), static_cast<std::uint64_t>(size_ * size_) * sizeof(double), size_);
    const Buffer places = work_.copy_of(order);
    start("the square to factorize", work_.kernels().place_square,
          {size_ * size_, placed(places, lambda), square_.as<double>()});
    return factor_square(work_.device(), square_.as<double>(), size_);
  }

  Buffer unit_upper(std::span<const ColumnBlock> blocks, std::span<double> diagonal) override {
    const cuda::UpperFactor factor{square_.as<double>(), size_};
    const Buffer found = work_.scratch(diagonal.size_bytes());
    start("a factor's diagonal", work_.kernels().take_diagonal, {size_, factor, found.as<double>()});
    work_.device().copy_out(diagonal.data(), found.get(), diagonal.size_bytes());
    Buffer values = panels(blocks, [&](const ColumnBlock& block, float* to) {
      start("panels of a factor", work_.kernels().unit_upper_panel,
            {block.rows * block.width, block.begin, block.width, factor, to});
    });
    square_.reset();
    return values;
  }

  Buffer square(PlacedOrder order, double lambda, std::span<const ColumnBlock> blocks) override {
    const Buffer places = work_.copy_of(order);
    return panels(blocks, [&](const ColumnBlock& block, float* to) {
      start("panels of a Gram matrix", work_.kernels().square_panel,
            {block.rows * block.width, block.begin, block.width, placed(places, lambda), to});
    });
  }

 private:
  cuda::PlacedTriangle placed(const Buffer& places, double lambda) const {
    return {triangle_.as<double>(), places.as<std::int32_t>(), size_, lambda};
  }
  template <class Arguments>
  void start(const char* what, int (*kernel)(const Arguments&, void*),
             const std::type_identity_t<Arguments>& arguments) const {
    work_.start(what, kernel, arguments,
                TensorView(static_cast<const void*>(nullptr), DType::kF32, {size_, size_}, work_.place()));
  }
  template <class Fill>
  Buffer panels(std::span<const ColumnBlock> blocks, const Fill& fill) const {
    std::size_t numbers = 0;
    for (const ColumnBlock& block : blocks)
      numbers = std::max(numbers, block.offset + static_cast<std::size_t>(block.rows * block.width));
    Buffer values = work_.scratch(numbers * sizeof(float));
    for (const ColumnBlock& block : blocks) fill(block, values.as<float>() + block.offset);
    return values;
  }

  CudaWork& work_;
  std::int64_t size_;
  bool finite_;
  Buffer triangle_, square_;
};

}  // namespace

std::unique_ptr<PlacedGram> place_on(CudaWork& work, std::span<const double> triangle,
                                     std::int64_t channels) {
  return std::make_unique<GramOnDevice>(work, triangle, channels);
}

}  // namespace llmq
