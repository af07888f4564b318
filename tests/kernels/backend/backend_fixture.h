// Every backend there could be, by name, as a test parameter; tensors to and from it; numbers to feed it.
//
// A backend that this machine or build lacks is a skip that says so.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "device/backend.h"
#include "device/cpu/cpu_backend.h"
#include "device/cuda/cuda_backend.h"
#include "support/stand_in_library.h"
#include "support/tolerance.h"

namespace llmq::testing {

// exp in FP32 is good to 4 units in the last place (2^-23 each) on every backend: the contract of
// kernels/cpu.
inline constexpr double kExpError = 4 * 0x1p-23;

struct BackendParam {
  // reference | fake | cpu_<level> | cuda_emulated | cuda_float4, which multiplies E2M1 by E2M1, too | cuda;
  // of cuda_emulated and cuda for calibration, with a library's
  // products: cuda_stand_in, which takes every shape | cuda_calibration, whose small weights are the own
  // kernels' (DenseLibrary::least_numbers()): LibraryProducts.* has shapes that are the library's
  std::string name;
  int threads = 1;
};

inline void PrintTo(const BackendParam& param, std::ostream* out) {
  *out << param.name << "/" << param.threads;
}

inline std::string param_name(const ::testing::TestParamInfo<BackendParam>& info) {
  return info.param.name + "_t" + std::to_string(info.param.threads);
}

inline const std::vector<std::string>& cpu_levels() {
  static const std::vector<std::string> levels = {"scalar", "avx2", "avx512", "amx"};
  return levels;
}

inline std::vector<BackendParam> backends(const std::vector<int>& cpu_threads) {
  std::vector<BackendParam> params = {{"reference", 1}, {"fake", 1}};
  for (const std::string& level : cpu_levels())
    for (const int threads : cpu_threads) params.push_back({"cpu_" + level, threads});
  // What "amx" computes with, on processors without the AMX units too.
  for (const int threads : cpu_threads) params.push_back({"cpu_amx_emulated", threads});
  params.push_back({"cuda_emulated", 1});
  params.push_back({"cuda", 1});
  return params;
}

// For what is multiplied: those for calibration, too.
inline std::vector<BackendParam> multiplying_backends(const std::vector<int>& cpu_threads) {
  std::vector<BackendParam> params = backends(cpu_threads);
  params.push_back({"cuda_stand_in", 1});
  params.push_back({"cuda_calibration", 1});
  return params;
}

inline std::vector<BackendParam> device_backends() { return {{"cuda_emulated", 1}, {"cuda", 1}}; }

// A device whose threads the host runs in turn.
inline bool is_emulated(const BackendParam& param) {
  return param.name == "cuda_emulated" || param.name == "cuda_stand_in" || param.name == "cuda_float4" ||
         param.name == "cuda_float4_tensor";
}

// Null with `why` when it is not here.
inline std::shared_ptr<Backend> open_backend(const BackendParam& param, std::string* why) {
  if (param.name == "reference") return make_reference_backend();
  if (param.name == "fake") return make_fake_backend();
  if (param.name == "cuda_emulated") return make_emulated_cuda_backend(param.threads);
  if (param.name == "cuda_stand_in") return stand_in_backend();
  if (param.name == "cuda_float4" || param.name == "cuda_float4_tensor") {
    EmulatedDeviceSpec spec;
    spec.float4_linear = param.name == "cuda_float4" ? cuda::emulate_float4 : cuda::emulate_float4_tensor;
    return make_emulated_cuda_backend(param.threads, spec);
  }
  if (param.name == "cuda" || param.name == "cuda_calibration") {
    try {
      return make_cuda_backend(0, param.threads,
                               param.name == "cuda" ? DeviceUse::kServing : DeviceUse::kCalibration);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      *why = error.what();
      return nullptr;
    }
  }
  const std::string level = param.name.substr(4);
  try {
    return make_cpu_backend_at(param.threads, level);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    *why = error.what();
    return nullptr;
  }
}

class BackendTest : public ::testing::TestWithParam<BackendParam> {
 protected:
  void SetUp() override {
    std::string why;
    backend_ = open_backend(GetParam(), &why);
    if (backend_ == nullptr) GTEST_SKIP() << why;
  }
  Backend& backend() { return *backend_; }
  Backend& oracle() { return *oracle_; }

 private:
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<Backend> oracle_ = make_reference_backend();
};

// A fixed stream of numbers (SplitMix64).
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
  }
  // Uniform in [-1, 1) times 2^e, e in [-spread, spread]: magnitudes mixed within one sum.
  std::vector<float> values(std::int64_t count, int spread = 0, double scale = 1) {
    std::vector<float> numbers(static_cast<std::size_t>(count));
    for (float& number : numbers) {
      const int exponent = spread == 0 ? 0 : static_cast<int>(below(2 * spread + 1)) - spread;
      number = static_cast<float>(std::ldexp((2 * uniform() - 1) * scale, exponent));
    }
    return numbers;
  }

 private:
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

// Bytes of `values` as F32, BF16 or F16.
inline std::vector<char> encode(DType dtype, const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * static_cast<std::size_t>(element_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t bits =
          dtype == DType::kBF16 ? to_bfloat16(values[i]).bits : to_float16(values[i]).bits;
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

inline std::vector<float> decode(DType dtype, const std::vector<char>& bytes) {
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(element_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    if (dtype == DType::kF32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    } else {
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      values[i] = dtype == DType::kBF16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
    }
  }
  return values;
}

// `values` as the dtype holds them.
inline std::vector<float> rounded(DType dtype, const std::vector<float>& values) {
  return decode(dtype, encode(dtype, values));
}

inline std::vector<float> absolute(std::vector<float> values) {
  for (float& value : values) value = std::fabs(value);
  return values;
}

// A tensor on a backend and the memory it lives in.
struct Placed {
  Buffer buffer;
  TensorView view;
};

inline Placed put(Backend& backend, DType dtype, const Shape& shape, const std::vector<float>& values) {
  Placed placed;
  const std::vector<char> bytes = encode(dtype, values);
  placed.buffer = backend.allocate(bytes.size());
  placed.view = placed.buffer.view(dtype, shape);
  backend.upload(placed.view, bytes.data());
  return placed;
}

// Filled with NaN: what an operation does not write, or reads before, shows.
inline Placed poisoned(Backend& backend, DType dtype, const Shape& shape) {
  return put(backend, dtype, shape,
             std::vector<float>(static_cast<std::size_t>(shape.elements()), std::nanf("")));
}

inline std::vector<float> get(Backend& backend, const TensorView& view) {
  std::vector<char> bytes(static_cast<std::size_t>(view.shape.elements()) *
                          static_cast<std::size_t>(element_bytes(view.dtype)));
  backend.download(bytes.data(), view);
  return decode(view.dtype, bytes);
}

// x w^T + bias of m rows, FP32; without a bias where none is given.
inline std::vector<float> linear_on(Backend& backend, const PreparedWeight& weight, std::int64_t m,
                                    const std::vector<float>& x, const std::vector<float>& bias = {}) {
  const Placed input = put(backend, activation_dtype(weight.compute), {m, weight.in_features}, x);
  const Placed output = poisoned(backend, DType::kF32, {m, weight.out_features});
  const Placed bias_vector = bias.empty() ? Placed{} : put(backend, DType::kF32, {weight.out_features}, bias);
  backend.linear(output.view, input.view, weight, bias_vector.view);
  return get(backend, output.view);
}

// Rows [first, first + count) of rows of `width`.
inline std::vector<float> rows_of(const std::vector<float>& values, std::int64_t first, std::int64_t count,
                                  std::int64_t width) {
  return {values.begin() + first * width, values.begin() + (first + count) * width};
}

// Columns [first, first + count) of rows of `width`.
inline std::vector<float> columns_of(const std::vector<float>& rows, std::int64_t width, std::int64_t first,
                                     std::int64_t count) {
  std::vector<float> some;
  for (auto row = rows.begin(); row != rows.end(); row += width)
    some.insert(some.end(), row + first, row + first + count);
  return some;
}

inline std::vector<double> widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// Equal bit for bit; NaN equals itself.
inline ::testing::AssertionResult same_bits(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " and " << want.size() << " values";
  for (std::size_t i = 0; i < got.size(); ++i)
    if (bits_from_float(got[i]) != bits_from_float(want[i]))
      return ::testing::AssertionFailure() << "[" << i << "] " << got[i] << " and " << want[i];
  return ::testing::AssertionSuccess();
}

}  // namespace llmq::testing
