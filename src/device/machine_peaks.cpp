#include "device/machine_peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/seconds_since.h"
#include "device/cpu/cpu_backend.h"
#include "device/device_peaks.h"
#include "kernels/cpu/amx/peak.h"
#include "kernels/cpu/level.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;
using Loop = double (*)(std::int64_t steps);

constexpr ArithmeticKind kKinds[] = {ArithmeticKind::kF32, ArithmeticKind::kBF16, ArithmeticKind::kInt8};
constexpr std::size_t kReadBytes = std::size_t{256} << 20;
constexpr int kRuns = 10;
constexpr double kRunSeconds =
    1e-3;  // short enough to fall between a neighbour's turns, long enough to start together

Loop loop_of(const CpuKernels& kernels, ArithmeticKind kind) {
  return kind == ArithmeticKind::kInt8 ? kernels.peak_int8 : kernels.peak[static_cast<int>(kind)];
}

// FP32 of "amx" is AVX-512's. Null where the level has no instruction for it.
Loop loop_of(const std::string& level, ArithmeticKind kind) {
  if (level == "amx" && kind == ArithmeticKind::kBF16) return amx_peak_bf16;
  if (level == "amx" && kind == ArithmeticKind::kInt8) return amx_peak_int8;
  const CpuKernels* const kernels = level == "scalar"         ? scalar_level()
                                    : level == "avx2"         ? avx2_level()
                                    : level == "avx512_plain" ? avx512_plain_level()
                                                              : avx512_level();
  return loop_of(*kernels, kind);
}

Peak best_of(ThreadPool& pool, Loop loop) {
  std::int64_t steps = 256;
  for (double took = 0; took < kRunSeconds; steps *= 2) {
    const Clock::time_point start = Clock::now();
    loop(steps);
    took = seconds_since(start);
  }
  Peak best;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> done(static_cast<std::size_t>(pool.size()));
    const std::clock_t processor = std::clock();
    const Clock::time_point start = Clock::now();
    const auto work = [&](std::size_t item, int) { done[item] = loop(steps); };
    pool.parallel_for(done.size(), std::cref(work));
    const double took = seconds_since(start),
                 spent = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
    double all = 0;
    for (const double one : done) all += one;
    best.by_clock = std::max(best.by_clock, all / took);
    if (spent > 0) best.by_processor_time = std::max(best.by_processor_time, all / spent);
  }
  return best;
}

// Anonymous memory in huge pages where the system gives them.
class HugePages {
 public:
  explicit HugePages(std::size_t bytes)
      : bytes_(bytes),
        pointer_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (pointer_ == MAP_FAILED)
      fail(ErrorKind::kResource, "there is no room for the {} bytes that the read bandwidth is measured over",
           bytes);
    ::madvise(pointer_, bytes, MADV_HUGEPAGE);  // advice: without it the figure is lower, not wrong
  }
  ~HugePages() { ::munmap(pointer_, bytes_); }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  unsigned char* get() const { return static_cast<unsigned char*>(pointer_); }

 private:
  std::size_t bytes_;
  void* pointer_;
};

std::string processor_name() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);)
    if (line.starts_with("model name"))
      if (const std::size_t colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown";
}

const CpuKernels& widest() {
  if (const CpuKernels* const kernels = avx512_level()) return *kernels;
  if (const CpuKernels* const kernels = avx2_level()) return *kernels;
  return *scalar_level();
}

}  // namespace

const char* arithmetic_name(ArithmeticKind kind) {
  constexpr const char* kNames[] = {"f32", "bf16", "int8"};
  return kNames[static_cast<int>(kind)];
}

Peak measure_peak(ThreadPool& pool, ArithmeticKind kind) {
  const Loop loop = loop_of(chosen_cpu_level(), kind);
  return best_of(pool, loop != nullptr ? loop : loop_of(chosen_cpu_level(), ArithmeticKind::kF32));
}

double measure_read_bandwidth(ThreadPool& pool) {
  const HugePages memory(kReadBytes);
  const CpuKernels& kernels = widest();
  const auto workers = static_cast<std::size_t>(pool.size());
  const std::size_t part = kReadBytes / workers / 4096 * 4096;
  std::vector<std::int32_t> sums(workers);
  const auto fill = [&](std::size_t worker, int) { std::memset(memory.get() + worker * part, 1, part); };
  const auto read = [&](std::size_t worker, int) {
    sums[worker] = kernels.read_memory(memory.get() + worker * part, part);
  };
  pool.parallel_for(workers, std::cref(fill));
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const Clock::time_point start = Clock::now();
    pool.parallel_for(workers, std::cref(read));
    best = std::max(best, static_cast<double>(part * workers) / seconds_since(start));
  }
  return best;
}

MachinePeaks measure_machine(int threads) {
  ThreadPool pool(threads);
  MachinePeaks peaks;
  peaks.cpu = processor_name();
  peaks.threads = pool.size();
  for (const std::string& level : cpu_levels_present())
    for (const ArithmeticKind kind : kKinds)
      if (const Loop loop = loop_of(level, kind);
          loop != nullptr && (level != "amx" || kind != ArithmeticKind::kF32))
        peaks.arithmetic.push_back({level, kind, best_of(pool, loop)});
  peaks.read_bytes_per_second = measure_read_bandwidth(pool);
  return peaks;
}

MachinePeaks measure_machine(Backend& backend) {
  DevicePeaks* const device = backend.extensions().device_peaks;
  if (device == nullptr) return measure_machine(backend.threads());
  MachinePeaks peaks;
  peaks.cpu = processor_name();
  peaks.gpu = backend.name();
  peaks.threads = backend.threads();
  peaks.read_bytes_per_second = device->measure_reading();
  for (const ArithmeticKind kind : kKinds) {
    const double rate = device->measure_products(kind);
    peaks.arithmetic.push_back({backend.arithmetic(), kind, {rate, rate}});
  }
  return peaks;
}

}  // namespace llmq
