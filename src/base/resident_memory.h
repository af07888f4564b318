// How much of this process has been in memory at a time.
#pragma once
#include <cstdint>

namespace llmq {

// The largest resident set this process ever had (VmHWM), in bytes; 0 where the system does not say.
std::uint64_t peak_resident_bytes();
// The resident set now, in bytes; 0 where the system does not say.
std::uint64_t resident_bytes();
void forget_peak_resident();  // "ever" begins now, where the system lets it

}  // namespace llmq
