#include "device/cuda/cuda_peaks.h"

#include <algorithm>
#include <chrono>

#include "base/seconds_since.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPeakRuns = 5;
constexpr double kPeakSeconds = 0.01;  // long enough for the clock, whatever starting a kernel costs

// Enough for every unit of a large device, and to read more than its caches hold; few where scratch memory is
// small.
std::int64_t blocks_of(const CudaDevice& device) {
  return std::max<std::int64_t>(1, device.scratch_bytes() / (std::int64_t{32} << 10));
}

// Launches per second, the best of several runs.
template <class Arguments>
double best_rate(CudaDevice& device, const char* operation, int (*kernel)(const Arguments&, void*),
                 const std::type_identity_t<Arguments>& arguments) {
  double best = 0;
  for (int run = 0, launches = 1; run < kPeakRuns;) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < launches; ++i)
      device.check_launch(kernel(arguments, device.stream()), operation, [] { return "its measurement"; });
    device.synchronize();
    const double seconds = seconds_since(start);
    if (seconds < kPeakSeconds) {
      launches *= 2;
      continue;
    }
    best = std::max(best, launches / seconds);
    ++run;
  }
  return best;
}

}  // namespace

double measure_cuda_reading(CudaDevice& device) {
  using cuda::ReadMemory;
  const std::int64_t blocks = blocks_of(device);
  const Buffer memory(device.memory(), static_cast<std::size_t>(blocks * ReadMemory::kBlockBytes)),
      sums(device.memory(), static_cast<std::size_t>(blocks * ReadMemory::kThreads) * sizeof(std::uint32_t));
  device.zero(memory.get(), memory.bytes());
  return static_cast<double>(memory.bytes()) *
         best_rate(device, "read_memory", device.kernels().read_memory,
                   {blocks, memory.as<ReadMemory::Vector>(), sums.as<std::uint32_t>()});
}

double measure_cuda_products(CudaDevice& device, ArithmeticKind kind) {
  using BFloat16Products = cuda::PeakProducts<cuda::MatrixBFloat16>;
  using Int8Products = cuda::PeakProducts<cuda::MatrixInt8>;
  constexpr std::uint32_t kBFloat16Ones = 0x3f803f80u, kInt8Ones = 0x01010101u;
  const std::int64_t blocks = blocks_of(device), steps = std::clamp<std::int64_t>(blocks / 16, 8, 512);
  const Buffer memory(device.memory(),
                      static_cast<std::size_t>(blocks * BFloat16Products::kThreads) * sizeof(float));
  float* const sums = memory.as<float>();
  const cuda::CudaKernels& kernels = device.kernels();
  const auto all = static_cast<double>(blocks * steps);
  switch (kind) {
    case ArithmeticKind::kBF16:
      return all * BFloat16Products::kOperations *
             best_rate(device, "peak_bf16", kernels.peak_bf16, {blocks, steps, kBFloat16Ones, sums});
    case ArithmeticKind::kInt8:
      return all * Int8Products::kOperations *
             best_rate(device, "peak_int8", kernels.peak_int8, {blocks, steps, kInt8Ones, sums});
    case ArithmeticKind::kF32:
      break;
  }
  return all * cuda::PeakFloat32::kOperations *
         best_rate(device, "peak_f32", kernels.peak_f32, {blocks, steps, 1.0f, sums});
}

}  // namespace llmq
