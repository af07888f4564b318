// The Backend over a CudaDevice.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "device/backend.h"
#include "device/cuda/cuda_device.h"

namespace llmq {

// `threads` of the host stand in workers(). For calibration the device's library multiplies, where it has
// one.
std::shared_ptr<Backend> make_backend_on(std::unique_ptr<CudaDevice> device, int threads,
                                         DeviceUse use = DeviceUse::kServing);

// The same backend and the same kernels without a device: every block of threads is emulated on the host
// (kernels/cuda/block.h). For tests on machines without a GPU; hundreds of times slower than the CPU backend.
// A view of the memory of another `index` is refused as on a device.
struct EmulatedDeviceSpec {
  int index = 0;
  std::optional<std::uint64_t> memory_bytes = {};  // no more than this
  std::string why_no_cholesky = {};                // and then none
  std::int64_t scratch_bytes = 64 << 10;           // little, so that tests see operations cut
  cuda::Float4Launch float4_linear = nullptr;      // products of E2M1 by E2M1, such as cuda::emulate_float4
};
std::unique_ptr<CudaDevice> make_emulated_device(const EmulatedDeviceSpec& spec);
std::shared_ptr<Backend> make_emulated_cuda_backend(int threads, const EmulatedDeviceSpec& spec = {},
                                                    DeviceUse use = DeviceUse::kServing);

}  // namespace llmq
