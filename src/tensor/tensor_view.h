// A tensor somebody else owns: pointer, dtype, shape, row stride, device. Looks, never owns, copies freely.
//
// Row-major; the last dimension is contiguous; `row_stride` (elements) separates rows of the last two
// dimensions and equals the last dimension unless the view is a slice of columns. Block dtypes are always
// contiguous.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace llmq {

class ThreadPool;

// Up to 8 extents, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 8;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents);  // Error(kBadInput) beyond rank 8 or below 0
  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  std::int64_t back() const { return rank_ == 0 ? 1 : extents_[static_cast<std::size_t>(rank_ - 1)]; }
  std::int64_t elements() const;  // product; checked when the shape was read
  std::string text() const;       // "[576, 1536]"
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

// Which memory a pointer belongs to. Host memory is device 0 of kind kHost; a fake or CUDA device's pointers
// are closed to the host.
enum class DeviceKind : std::uint8_t { kHost, kFake, kCuda };
struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int index = 0;
  bool operator==(const Device&) const = default;
};

struct TensorView {
  void* pointer = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  std::int64_t row_stride = 0;
  Device device;

  TensorView() = default;
  TensorView(void* p, DType d, Shape s, Device where = {})
      : pointer(p), dtype(d), shape(s), row_stride(s.back()), device(where) {}
  // Views of files are read-only by convention: their owners hand out const bytes, and no operation writes
  // its inputs.
  TensorView(const void* p, DType d, Shape s, Device where = {})
      : TensorView(const_cast<void*>(p), d, s, where) {}

  std::int64_t rows() const {
    return shape.rank() == 0 ? 1 : shape.elements() / (shape.back() == 0 ? 1 : shape.back());
  }
  std::int64_t cols() const { return shape.back(); }
  std::uint64_t bytes() const;  // of a contiguous tensor of this shape; block types by whole blocks
  template <typename T>
  T* as() const {
    return static_cast<T*>(pointer);
  }
  template <typename T>
  T* row(std::int64_t r) const {
    return static_cast<T*>(pointer) + r * row_stride;
  }
  TensorView row_slice(std::int64_t first, std::int64_t count) const;  // rank 2, plain dtype
  bool contiguous() const { return row_stride == shape.back(); }
};

// Values of a host tensor of any dtype as FP32, exactly where FP32 can hold them (block types: as ggml
// dequantizes). `into` has rows()*cols() elements. Implemented in tensor/dequantize.cpp.
void to_float32(const TensorView& from, std::span<float> into);
// rows divided over its threads
void to_float32(const TensorView& from, std::span<float> into, ThreadPool& pool);

}  // namespace llmq
