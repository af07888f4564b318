// NVIDIA's dense solvers, opened when they are first asked for: a program that does not factorize on a device
// neither needs nor loads them.
#pragma once
#include <memory>
#include <string>

#include "device/cuda/square_cholesky.h"
#include "tensor/buffer.h"

namespace llmq {

struct CusolverFound {
  std::string version;  // "12.0.4", which decides bits; empty where there is none
  std::string path;     // the file that was opened
  std::string missing;  // why there is none
};
const CusolverFound& find_cusolver();  // looks once in a process

// On a stream of the memory's device, and only where it was found. Error(kDevice) naming the call.
std::unique_ptr<SquareCholesky> make_cusolver(std::shared_ptr<MemoryResource> memory, void* stream);

}  // namespace llmq
