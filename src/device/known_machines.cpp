// Dense rates, without sparsity. Sources: NVIDIA's data sheets "H100 Tensor Core GPU", "H200 Tensor Core
// GPU", "A100 Tensor Core GPU", "L40S", "L4 Tensor Core GPU", and "NVIDIA Ada GPU Architecture" (white paper)
// for the RTX 4090, whose BF16 rate is that with FP32 sums. Where a sheet gives rates with sparsity only,
// half of them.
#include "device/known_machines.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace llmq {
namespace {

constexpr std::uint64_t kGigabyte = 1'000'000'000;

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name)
    text += c == ' ' || c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

const std::vector<MachineRates>& known_machines() {
  static const std::vector<MachineRates> kMachines = {
      {"h200-sxm", "NVIDIA H200 data sheet", 141 * kGigabyte, 4.8e12, 989.5e12, 1979e12, 1979e12},
      {"h100-sxm", "NVIDIA H100 data sheet", 80 * kGigabyte, 3.35e12, 989.5e12, 1979e12, 1979e12},
      {"a100-80gb", "NVIDIA A100 data sheet", 80 * kGigabyte, 2.039e12, 312e12, 624e12, 0},
      {"l40s", "NVIDIA L40S data sheet", 48 * kGigabyte, 864e9, 362e12, 733e12, 733e12},
      {"l4", "NVIDIA L4 data sheet", 24 * kGigabyte, 300e9, 121e12, 242.5e12, 242.5e12},
      {"rtx-4090", "NVIDIA Ada white paper", 24 * kGigabyte, 1008e9, 165.2e12, 660.6e12, 330.3e12},
  };
  return kMachines;
}

std::optional<MachineRates> find_machine(std::string_view name) {
  for (const MachineRates& machine : known_machines())
    if (machine.name == plain(name)) return machine;
  return std::nullopt;
}

std::string machine_names() {
  std::string names;
  for (const MachineRates& machine : known_machines()) names += (names.empty() ? "" : ", ") + machine.name;
  return names;
}

std::uint64_t host_memory_bytes() {
  return static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES))) *
         static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
}

MachineRates this_machine(const MachineProbe& probe) {
  MachineRates machine;
  machine.name = probe.backend;
  machine.source = "measured now";
  machine.memory_bytes = host_memory_bytes();
  machine.bytes_per_second = probe.decode_bytes_per_second;
  machine.bfloat16_flops = probe.linear_flops;
  machine.call_seconds = probe.call_seconds;
  machine.measured = true;
  machine.on_device = probe.on_device;
  return machine;
}

}  // namespace llmq
