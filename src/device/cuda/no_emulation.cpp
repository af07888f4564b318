// What stands in for emulated_device.cpp in a build without what tests alone need (LLMQ_EMULATION=OFF).
#include "base/error.h"
#include "device/cuda/cuda_backend.h"

namespace llmq {

std::unique_ptr<CudaDevice> make_emulated_device(const EmulatedDeviceSpec&) {
  fail(ErrorKind::kUnsupported,
       {"an emulated device is asked for, and this llmq was built without them",
        {},
        "--device",
        "use --device cpu, or build it with -DLLMQ_EMULATION=ON, as `make test` does"});
}

}  // namespace llmq
