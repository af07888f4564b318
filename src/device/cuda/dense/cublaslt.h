// NVIDIA's dense products, opened when they are first asked for: a program that does not calibrate on a
// device neither needs nor loads them.
#pragma once
#include <memory>
#include <string>

#include "device/cuda/dense/dense_library.h"
#include "tensor/buffer.h"

namespace llmq {

struct CublasltFound {
  std::string version;  // "13.1.0", empty where there is none
  std::string path;     // the file that was opened
  std::string missing;  // why there is none
};
const CublasltFound& find_cublaslt();  // looks once in a process

// On a stream of the memory's device, and only where it was found. It takes 32 MiB to work in.
// Error(kDevice) naming the call, Error(kResource) where there is no memory for it.
std::unique_ptr<DenseLibrary> make_cublaslt(std::shared_ptr<MemoryResource> memory, void* stream);

}  // namespace llmq
