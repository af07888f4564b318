// What the CUDA backend asks of a device: memory, copies, one order of work, kernels. No type of CUDA's stands here: the device of the
// CUDA runtime (runtime_device.cpp) and the emulation on the host (emulated_device.cpp) implement it.
//
// All work of a device is in one order, that of its calls: a copy sees what the kernels before it wrote.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/kernel_table.h"
#include "tensor/buffer.h"

namespace llmq {

class CudaDevice {
 public:
  virtual ~CudaDevice() = default;
  virtual std::string name() const = 0;        // "cuda:0 (NVIDIA H200, sm_90)"
  virtual std::string arithmetic() const = 0;  // what decides its bits: "cuda sm_90"
  virtual Device place() const = 0;
  virtual std::shared_ptr<MemoryResource> memory() = 0;
  virtual const cuda::CudaKernels& kernels() const = 0;
  virtual std::int64_t scratch_bytes() const = 0;  // of partial results at once, where an operation can be cut
  virtual void* stream() const = 0;  // what kernels are launched on

  // `from_host` is free again at return; the copy itself may still be under way.
  virtual void copy_in(void* to, const void* from_host, std::size_t bytes) = 0;
  virtual void copy_out(void* to_host, const void* from, std::size_t bytes) = 0;  // returns when it is done
  virtual void zero(void* at, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  // Error(kDevice) with the call, the CUDA error's name and words, and the sizes.
  [[noreturn]] virtual void fail_launch(const char* operation, int code, const std::string& sizes) = 0;
};

}  // namespace llmq
