#include "base/resident_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace llmq {

std::uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

std::uint64_t resident_bytes() {
  std::ifstream pages("/proc/self/statm");
  std::uint64_t whole = 0, resident = 0;
  return pages >> whole >> resident ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

void forget_peak_resident() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace llmq
