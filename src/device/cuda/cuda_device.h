// What the CUDA backend asks of a device: memory, copies, one order of work, kernels. No type of CUDA's
// stands here: the device of the CUDA runtime (runtime_device.cpp) and the emulation on the host
// (emulated_device.cpp) implement it.
//
// All work of a device is in one order, that of its calls: a copy sees what the kernels before it wrote. Only
// what filled() copies may run before its turn, which nobody can tell, because the memory is new.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/cuda/dense/dense_library.h"
#include "device/cuda/square_cholesky.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_float4.h"
#include "tensor/buffer.h"

namespace llmq {

class CudaDevice {
 public:
  virtual ~CudaDevice() = default;
  virtual std::string name() const = 0;        // "cuda:0 (NVIDIA H200, sm_90)"
  virtual std::string arithmetic() const = 0;  // what decides its bits: "cuda sm_90"
  virtual Device place() const = 0;
  virtual std::shared_ptr<MemoryResource> memory() = 0;
  virtual std::uint64_t peak_bytes() const = 0;  // the most that was held at once
  virtual std::uint64_t free_bytes() const = 0;  // that memory() may still give
  virtual const cuda::CudaKernels& kernels() const = 0;
  // null where the device, or the program for it, has no such products
  virtual cuda::Float4Launch float4_linear() const { return nullptr; }
  // of partial results at once, where an operation can be cut
  virtual std::int64_t scratch_bytes() const = 0;
  virtual void* stream() const = 0;        // what kernels are launched on
  virtual SquareCholesky* cholesky() = 0;  // null where there is none
  virtual std::string why_no_cholesky() const { return {}; }
  // null where there is none; Error(kDevice), or Error(kResource), where it is there and does not start
  virtual DenseLibrary* dense_library() { return nullptr; }
  // as a sentence, where there could be one
  virtual std::string why_no_dense_library() const { return {}; }

  // `from_host` is free again at return; the copy itself may still be under way.
  virtual void copy_in(void* to, const void* from_host, std::size_t bytes) = 0;
  virtual void copy_out(void* to_host, const void* from, std::size_t bytes) = 0;  // returns when it is done
  virtual void zero(void* at, std::size_t bytes) = 0;

  // New memory that holds what `fill` puts there: put(offset, from host, bytes), each byte once. The copies
  // run beside the kernels that were started before, and whatever is started after sees them. For weights: a
  // wait between two queues costs more than a short list takes to copy.
  using Put = std::function<void(std::size_t offset, const void* from_host, std::size_t bytes)>;
  virtual Buffer filled(std::size_t bytes, const std::function<void(const Put& put)>& fill) = 0;

  // `rows` rows of `bytes` each, `to_stride` and `from_stride` bytes apart, from another device, in the order
  // of the work of both; false where memory of `owner` cannot be reached from here.
  struct Strided {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t to_stride = 0, from_stride = 0, bytes = 0, rows = 0;
  };
  virtual bool copy_across(CudaDevice& owner, const Strided& copy) = 0;

  // Names in a profile; they nest.
  virtual void begin_range(const std::string& name) = 0;
  virtual void end_range() noexcept = 0;
  virtual void synchronize() = 0;
  // What a kernel's launch answered is judged here and nowhere else; `sizes()` says of what it was launched.
  template <class Sizes>
  void check_launch(int code, const char* operation, const Sizes& sizes) {
    if (code != 0) fail_launch(operation, code, sizes());
  }

  // Error(kDevice) with the call, the CUDA error's name and words, and the sizes; check_launch() calls it.
  [[noreturn]] virtual void fail_launch(const char* operation, int code, const std::string& sizes) = 0;
};

}  // namespace llmq
