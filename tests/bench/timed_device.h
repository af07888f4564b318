// A backend whose operations are timed and printed as lines of CSV, cuBLASLt beside it, and tensors of random
// numbers for both.
//
// A sample is a run of calls up to a wait for the device, of 20 ms or more, after a warm-up; the time of a
// call is the median of nine.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/cublas_baseline.h"
#include "bench/device_bars.h"
#include "device/backend.h"

namespace llmq {

class Bits {
 public:
  std::uint32_t next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  float number() { return static_cast<float>(next() >> 8) * 0x1p-23f - 1.0f; }  // [-1, 1)

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15u;
};

// Calls until a sample has lasted 20 ms, of nine samples the median of a call.
inline double seconds_of(const std::function<void(int)>& call, const std::function<void()>& wait) {
  using Clock = std::chrono::steady_clock;
  int number = 0, calls = 1;
  const auto sample = [&] {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call(number++);
    wait();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  sample();
  while (sample() < 0.02) calls *= 2;
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) seconds.push_back(sample() / calls);
  std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
  return seconds[4];
}

inline double rate(const Measured& line) { return line.operations / line.seconds; }

// A peer that computes something else is none. Sums in another order differ by far less than a hundredth, any
// operand out of place by far more.
inline void require_alike(const std::vector<float>& theirs, const std::vector<float>& ours,
                          const std::string& what) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double apart = static_cast<double>(theirs[i]) - static_cast<double>(ours[i]);
    difference += apart * apart, size += static_cast<double>(ours[i]) * static_cast<double>(ours[i]);
  }
  if (!(difference <= 1e-4 * size))
    fail(ErrorKind::kInternal, "{} is not ours: {:.3g} of it is different", what,
         std::sqrt(difference / size));
}

struct TimedDevice {
  Backend& backend;
  double cycled;  // bytes that are taken in turn
  Limits limits = {};
  std::unique_ptr<CublasBaseline> cublas = {};
  Bits bits = {};
  std::vector<Buffer> kept = {};
  std::vector<Measured> lines = {};

  TensorView random(DType dtype, Shape shape) {
    std::vector<float> numbers(static_cast<std::size_t>(shape.elements()));
    for (float& number : numbers) number = bits.number();
    kept.push_back(backend.allocate(numbers.size() * sizeof(float)));
    const TensorView wide = kept.back().view(DType::kF32, shape);
    backend.upload(wide, numbers.data());
    if (dtype == DType::kF32) return wide;
    kept.push_back(backend.allocate(numbers.size() * 2));
    const TensorView narrow = kept.back().view(dtype, shape);
    backend.convert(narrow, wide);
    return narrow;
  }
  template <class T>
  T* copied(const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    kept.push_back(backend.allocate(bytes));
    backend.upload(kept.back().view(DType::kU8, Shape{static_cast<std::int64_t>(bytes)}), values.data());
    return kept.back().template as<T>();
  }

  using Call = std::function<void(int)>;
  Measured time(Measured line, const Call& call) { return time_on(backend, std::move(line), call); }
  // By another backend of the same device, with tensors of this one.
  Measured time_on(Backend& other, Measured line, const Call& call) {
    backend.synchronize();
    line.seconds = seconds_of(call, [&] { other.synchronize(); });
    return line;
  }
  // By cuBLASLt, whose y must be what the backend's is. None where the library is not there or fails; then it
  // is left out from here on.
  std::optional<Measured> time_cublas(Measured line, const TensorView& y, const Call& ours,
                                      const Call& theirs) {
    if (!cublas) return {};
    ours(0);
    const std::vector<float> expected = first_rows(y);
    backend.clear(y);
    backend.synchronize();
    try {
      theirs(0);
      cublas->wait();
      require_alike(first_rows(y), expected, "its product " + line.shape);
      line.seconds = seconds_of(theirs, [&] { cublas->wait(); });
      return line;
    } catch (const std::exception& error) {
      std::printf("# cuBLASLt is left out from here on: %s\n", error.what());
      cublas.reset();
      return {};
    }
  }
  std::vector<float> first_rows(const TensorView& y) {
    const TensorView rows = y.row_slice(0, std::min<std::int64_t>(y.rows(), 16));
    std::vector<float> numbers(static_cast<std::size_t>(rows.rows() * rows.cols()));
    backend.download(numbers.data(), rows);
    return numbers;
  }
  void report(const Measured& line, const std::string& beside = {}) {
    const auto digits = [](const std::optional<double>& fraction) {
      return fraction ? fmt::format("{:.3f}", *fraction) : "";
    };
    std::printf("%s,%s,%.2f,%.1f,%.2f,%s,%s,%s\n", line.operation.c_str(), line.shape.c_str(),
                line.seconds * 1e6, line.bytes / line.seconds * 1e-9, rate(line) * 1e-12,
                digits(of_read(line, limits)).c_str(), digits(of_products(line, limits)).c_str(),
                beside.c_str());
    std::fflush(stdout);
    lines.push_back(line);
  }
};

}  // namespace llmq
