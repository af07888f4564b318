// What "auto" is as a device: CUDA where this machine's first GPU is of an architecture on which the
// backend's tests have passed on a device (scripts/device_check.sh, part `tests`), else the CPU.
#pragma once
#include <optional>
#include <string>

namespace llmq {

struct SeenGpu {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;
};
struct GpuSight {
  std::optional<SeenGpu> first;  // cuda:0, which this program is built for
  std::string why_none;          // else, as half a sentence: "this machine has no CUDA device"
};
// Asks the driver. device/cuda/runtime_device.cpp, or device/no_cuda.cpp.
GpuSight look_for_gpu();

struct AutomaticDevice {
  std::string device;    // "cuda" or "cpu"
  std::string why;       // as a sentence
  bool has_gpu = false;  // there is one, taken or not
};
// `forced_level`: LLMQ_CPU_ISA, which asks for the CPU; null or empty where it is not set.
AutomaticDevice choose_device(const GpuSight& sight, const char* forced_level);

const AutomaticDevice& automatic_device();  // of this machine; looks once in a process

}  // namespace llmq
