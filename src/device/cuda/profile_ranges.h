// Named stretches of work for NVIDIA's profilers (NVTX): nvtx_ranges.cpp where the toolkit has its header,
// else no_ranges.cpp.
#pragma once
#include <string>

namespace llmq {

void begin_profile_range(const std::string& name);  // of the calling thread; they nest
void end_profile_range() noexcept;

}  // namespace llmq
