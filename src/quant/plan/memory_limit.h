// When a run is begun under --memory-limit. A plan says what a run will take to within some percent, the
// limit is to be kept without any: a twentieth is held in reserve.
#pragma once
#include <cstdint>
#include <string>

namespace llmq {

// What a run takes that is planned to take `peak_bytes`, with the reserve; and whether it is begun where
// `memory_bytes` are to be had.
std::uint64_t memory_needed(std::uint64_t peak_bytes);
bool fits_in_memory(std::uint64_t peak_bytes, std::uint64_t memory_bytes);
// Whether a run that is planned to take `peak_bytes` is begun; a limit of 0 is none.
bool fits_in_limit(std::uint64_t peak_bytes, std::uint64_t memory_limit);
// Error(kUsage) with the smallest limit that would do, where it does not fit; `source`: the recipe's file.
void check_memory_limit(std::uint64_t peak_bytes, std::uint64_t memory_limit, const std::string& source);

}  // namespace llmq
