#include "device/cuda/device_factor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::int64_t kBandBytes = std::int64_t{16} << 20;

// Error where the library was called wrongly; else what it found.
int checked(int answer, const char* call, std::int64_t size) {
  if (answer < 0)
    fail(ErrorKind::kInternal, "argument {} of {} of {} by {} numbers is at fault", -answer, call, size,
         size);
  return answer;
}

class FactorOnDevice final : public DeviceFactor {
 public:
  FactorOnDevice(CudaDevice& device, const LowerTriangle& matrix, ThreadPool& pool)
      : device_(device),
        pool_(pool),
        size_(matrix.size()),
        padded_(matrix.padded()),
        square_(room_for_factor(device, static_cast<std::uint64_t>(size_ * size_) * sizeof(double), size_)) {}

  // False where a number is not finite, which the library need not notice.
  bool put(const LowerTriangle& matrix) {
    std::atomic<bool> finite = true;
    each_band([&](double* rows, std::vector<double>& band, std::int64_t first) {
      each_row(band, [&](double* to, std::int64_t i) {
        const double* const from = matrix.row(first + i);
        const std::int64_t count = first + i + 1;
        std::copy_n(from, count, to);
        if (!std::all_of(from, from + count, [](double v) { return std::isfinite(v); })) finite = false;
      });
      device_.copy_in(rows, band.data(), band.size() * sizeof(double));
    });
    return finite;
  }

  bool factor() { return factor_square(device_, square_.as<double>(), size_); }

  void read(LowerTriangle& factor) const override {
    each_band([&](double* rows, std::vector<double>& band, std::int64_t first) {
      device_.copy_out(band.data(), rows, band.size() * sizeof(double));
      each_row(band, [&](const double* from, std::int64_t i) {
        std::copy_n(from, first + i + 1, factor.row(first + i));
      });
    });
    factor.pad();
  }

  void solve(std::span<double> rows) const override {
    const std::int64_t most =
        std::max<std::int64_t>(1, device_.scratch_bytes() / (padded_ * std::int64_t{sizeof(double)}));
    const auto at_once = static_cast<std::size_t>(most * padded_);
    const Buffer part = room_for_factor(device_, std::min(at_once, rows.size()) * sizeof(double), size_);
    for (std::size_t begin = 0; begin < rows.size(); begin += at_once) {
      const std::span<double> here = rows.subspan(begin, std::min(at_once, rows.size() - begin));
      device_.copy_in(part.get(), here.data(), here.size_bytes());
      checked(device_.cholesky()->solve(square_.as<double>(), size_, part.as<double>(), padded_,
                                        static_cast<std::int64_t>(here.size()) / padded_),
              "the solution by the Cholesky factor", size_);
      device_.copy_out(here.data(), part.get(), here.size_bytes());
    }
  }

 private:
  // work(the band's place on the device, its numbers on the host, its first row). What lies above the
  // diagonal is left as it came.
  template <class Work>
  void each_band(const Work& work) const {
    const std::int64_t most = std::max<std::int64_t>(
        1, std::min(kBandBytes, device_.scratch_bytes()) / (size_ * std::int64_t{sizeof(double)}));
    std::vector<double> band;
    for (std::int64_t first = 0; first < size_; first += most) {
      band.resize(static_cast<std::size_t>(std::min(most, size_ - first) * size_));
      work(square_.as<double>() + first * size_, band, first);
    }
  }
  template <class Work>
  void each_row(std::vector<double>& band, const Work& work) const {
    pool_.parallel_for(band.size() / static_cast<std::size_t>(size_), [&](std::size_t i, int) {
      work(band.data() + i * static_cast<std::size_t>(size_), static_cast<std::int64_t>(i));
    });
  }

  CudaDevice& device_;
  ThreadPool& pool_;
  std::int64_t size_, padded_;
  Buffer square_;  // [size, size], by rows; what lies above the diagonal is not read
};

}  // namespace

Buffer room_for_factor(CudaDevice& device, std::uint64_t bytes, std::int64_t channels) {
  try {
    return Buffer(device.memory(), static_cast<std::size_t>(bytes));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    fail(ErrorKind::kResource,
         {fmt::format("the Cholesky factor of {} channels needs {} bytes of the device: {}", channels, bytes,
                      error.what()),
          {},
          "--device",
          "leave it more memory, or use --device cpu"});
  }
}

bool factor_square(CudaDevice& device, double* square, std::int64_t size) {
  return checked(device.cholesky()->factor(square, size), "the Cholesky factor", size) == 0;
}

std::unique_ptr<DeviceFactor> factorize_on(CudaDevice& device, const LowerTriangle& matrix,
                                           ThreadPool& pool) {
  auto factor = std::make_unique<FactorOnDevice>(device, matrix, pool);
  if (!factor->put(matrix) || !factor->factor()) return nullptr;
  return factor;
}

}  // namespace llmq
