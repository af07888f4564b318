#include "device/cuda/cuda_calibration.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace llmq {
namespace {

// numbers of a Gram matrix on their way to the host
constexpr std::int64_t kDrainedAtOnce = std::int64_t{1} << 22;

static_assert(sizeof(Residue) == sizeof(cuda::LeftOut));

// What a sum lacks is listed on the device; a full list comes down, and what found no room is drained again.
class TotalOnDevice final : public GramTotal {
 public:
  TotalOnDevice(CudaWork& work, std::int64_t channels)
      : device_(work.device()),
        pool_(work.pool()),
        channels_(channels),
        count_(triangle_place(channels, channels)),
        room_(ExactSums::room_for(count_)),
        sums_(device_.memory(), count_ * sizeof(double)),
        list_(device_.memory(), room_ * sizeof(Residue)),
        found_(device_.memory(), sizeof(unsigned long long)) {
    device_.zero(sums_.get(), sums_.bytes());
    device_.zero(found_.get(), found_.bytes());
  }
  void drain(const TensorView& g) override {
    require_on(device_.place(), "drain_gram", {&g});
    for (bool full = true; full;) {
      const int code = device_.kernels().drain_gram(
          {channels_ * channels_, channels_, g.as<float>(), g.row_stride, sums_.as<double>(),
           list_.as<cuda::LeftOut>(), room_, found_.as<unsigned long long>()},
          device_.stream());
      device_.check_launch(code, "drain_gram", [&] { return g.shape.text(); });
      full = listed() > room_;
      if (!full) break;
      const std::vector<Residue> list = listed_residues(room_);
      taken_.insert(taken_.end(), list.begin(), list.end());
      device_.zero(found_.get(), found_.bytes());
    }
  }
  void read(ExactSums& into) const override {
    constexpr std::size_t kPart = 1 << 15;  // of a worker
    std::vector<double> some;
    for (std::size_t first = 0; first < count_; first += some.size()) {
      some.resize(std::min<std::size_t>(kDrainedAtOnce, count_ - first));
      device_.copy_out(some.data(), sums_.as<double>() + first, some.size() * sizeof(double));
      pool_.parallel_for((some.size() + kPart - 1) / kPart, [&](std::size_t part, int) {
        const std::size_t from = part * kPart;
        into.add(first + from,
                 std::span<const double>(some).subspan(from, std::min(kPart, some.size() - from)));
      });
    }
    into.keep(taken_);
    into.keep(listed_residues(listed()));
    into.trim();
  }

 private:
  std::size_t listed() const {
    unsigned long long count = 0;
    device_.copy_out(&count, found_.get(), sizeof count);
    return count;
  }
  std::vector<Residue> listed_residues(std::size_t count) const {
    std::vector<Residue> list(count);
    if (count != 0) device_.copy_out(list.data(), list_.get(), count * sizeof(Residue));
    return list;
  }

  CudaDevice& device_;
  ThreadPool& pool_;
  std::int64_t channels_;
  std::size_t count_, room_;
  Buffer sums_, list_, found_;
  std::vector<Residue> taken_;
};

}  // namespace

void accumulate_gram(const CudaWork& work, const TensorView& g, const TensorView& x) {
  if (x.dtype == DType::kBF16)
    return work.start("gram", work.kernels().gram_bf16,
                      {g.as<float>(), g.row_stride, x.as<const BFloat16>(), x.row_stride, x.rows(), x.cols()},
                      x);
  const float* const numbers = x.as<const float>();
  work.sum_over_rows("gram",
                     {x.cols(), x.cols(), x.rows(), g.as<float>(), g.row_stride, numbers, x.row_stride,
                      numbers, x.row_stride, true, true},
                     x);
}

void add_gram(CudaWork& work, ExactSums& triangle, const TensorView& g) {
  const std::int64_t k = g.cols(),
                     most = std::max<std::int64_t>(1, kDrainedAtOnce / std::max<std::int64_t>(1, k));
  std::vector<float> numbers;
  for (std::int64_t first = 0; first < k; first += most) {
    const std::int64_t rows = std::min(most, k - first);
    numbers.resize(static_cast<std::size_t>(rows * k));
    work.copy_down(numbers.data(), g.row_slice(first, rows));
    work.pool().parallel_for(static_cast<std::size_t>(rows), [&](std::size_t at, int) {
      const std::int64_t i = first + static_cast<std::int64_t>(at);
      const float* const row = numbers.data() + static_cast<std::int64_t>(at) * k;
      triangle.add(triangle_place(i, k), std::span(row + i, static_cast<std::size_t>(k - i)));
    });
  }
}

void sum_channels(const CudaWork& work, const TensorView& x, std::span<double> absolute_sum,
                  std::span<float> absolute_max) {
  const Buffer sums = work.copy_of(std::span<const double>(absolute_sum)),
               maxima = work.copy_of(std::span<const float>(absolute_max));
  work.start("channel_stats", work.kernels().channel_stats,
             {x.cols(), x.rows(), rows_of(x), sums.as<double>(), maxima.as<float>()}, x);
  work.device().copy_out(absolute_sum.data(), sums.get(), absolute_sum.size_bytes());
  work.device().copy_out(absolute_max.data(), maxima.get(), absolute_max.size_bytes());
}

std::unique_ptr<GramTotal> CudaGramTotals::gram_total(std::int64_t channels) {
  try {
    return std::make_unique<TotalOnDevice>(work_, channels);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return nullptr;
  }
}

}  // namespace llmq
