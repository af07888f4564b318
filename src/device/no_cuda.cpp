// What stands in for device/cuda/ where no CUDA toolkit was found: the same functions, and a sentence.
#include "base/error.h"
#include "device/automatic_device.h"
#include "device/backend.h"

namespace llmq {

GpuSight look_for_gpu() { return {{}, "this llmq was built without CUDA"}; }

std::shared_ptr<Backend> make_cuda_backend(int index, int, DeviceUse) {
  fail(ErrorKind::kUnsupported,
       {fmt::format("device cuda:{} is asked for, and this llmq was built without CUDA", index),
        {},
        "--device",
        "use --device cpu"});
}

}  // namespace llmq
