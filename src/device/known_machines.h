// What machines can do at most, by their makers' data sheets: the named ones of `llmq estimate`.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/machine_probe.h"

namespace llmq {

// Memory that weights and KV cache live in, its bandwidth, and products (multiply and add counted as two) per
// second.
struct MachineRates {
  std::string name, source;
  std::uint64_t memory_bytes = 0;
  double bytes_per_second = 0;
  double bfloat16_flops = 0;
  double int8_flops = 0, float8_flops = 0;  // 0: not faster than BF16
  double call_seconds = 0;                  // each operation's own cost, where it is known
  bool measured = false;                    // by the probe, through llmq's own runtime
  bool on_device = false;                   // which was one with a memory of its own
};

const std::vector<MachineRates>& known_machines();
// In any case, with '-', ' ' and '_' alike; none for another name.
std::optional<MachineRates> find_machine(std::string_view name);
std::string machine_names();  // "h100-sxm, h200, ..."

std::uint64_t host_memory_bytes();  // as the kernel says; 0 where it does not

// The machine this runs on: the probe's rates, and its memory.
MachineRates this_machine(const MachineProbe& probe);

}  // namespace llmq
