// What every operation of the CUDA backend works with: the device, kernels started on it, scratch memory that
// lives until the work that uses it has been ordered before its release, and lists of the host in the
// device's memory.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_weight.h"
#include "device/cuda/recent_lists.h"
#include "device/on_device.h"

namespace llmq {

inline cuda::Rows rows_of(const TensorView& view) {
  return {view.pointer, view.row_stride, element_of(view.dtype)};
}

class CudaWork {
 public:
  CudaWork(std::unique_ptr<CudaDevice> device, int threads) : device_(std::move(device)), pool_(threads) {}

  CudaDevice& device() const { return *device_; }
  Device place() const { return device_->place(); }
  ThreadPool& pool() { return pool_; }
  int threads() const { return pool_.size(); }
  const cuda::CudaKernels& kernels() const { return device_->kernels(); }

  // `input` is what an error says the size of.
  template <class Arguments>
  void start(const char* operation, int (*kernel)(const Arguments&, void*),
             const std::type_identity_t<Arguments>& arguments, const TensorView& input) const {
    device_->check_launch(kernel(arguments, device_->stream()), operation,
                          [&] { return input.shape.text(); });
  }

  // Rows are what the kernels of kernels/cuda/tile_product.h and product.h sum over; either gives the same
  // bits.
  void sum_over_rows(const char* operation, const cuda::TileProductArguments& p,
                     const TensorView& input) const;

  // Backend::download.
  void copy_down(void* to_host, const TensorView& from) const;

  Buffer scratch(std::size_t bytes) const {
    return Buffer(device_->memory(), std::max<std::size_t>(bytes, 1));
  }

  template <class T>
  Buffer copy_of(std::span<const T> values) const {
    Buffer buffer = scratch(values.size_bytes());
    device_->copy_in(buffer.get(), values.data(), values.size_bytes());
    return buffer;
  }

  // As copy_of(), of what comes again and is only read.
  template <class T>
  std::shared_ptr<const Buffer> list_of(std::span<const T> values) {
    return recent_.find(std::as_bytes(values), [&](std::span<const std::byte>) { return copy_of(values); });
  }

  template <class T>
  std::vector<T> copy_back(const Buffer& from, std::size_t count) const {
    std::vector<T> values(count);
    device_->copy_out(values.data(), from.get(), count * sizeof(T));
    return values;
  }

 private:
  const std::unique_ptr<CudaDevice> device_;
  RecentLists recent_;  // goes before the device
  ThreadPool pool_;
};

}  // namespace llmq
