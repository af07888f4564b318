// Runs a program as a child and looks at the memory that it alone answers for: anonymous pages, and pages of
// files that it has changed (/proc/PID/smaps_rollup). Clean pages of mapped files are the kernel's to take
// back.
//
// A child that is above the limit when it is looked at, every few milliseconds (of large ones less often), is
// killed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmq::testing {

struct Watched {
  int exit_code = -1;  // 128 + signal when killed
  bool above_limit = false;
  std::uint64_t peak_bytes = 0, resident_peak_bytes = 0;  // anonymous and dirty; VmHWM
  std::uint64_t looks = 0;
  std::uint64_t disk_read = 0,
                disk_written = 0;  // /proc/PID/io at its end: what reached or will reach the disk
  // pages of mapped files (the program, its libraries) that had to come from the disk
  std::uint64_t major_faults = 0;
  double seconds = 0;
};

// limit 0: none. Output goes to this process's own, or to `output` (both streams). `environment`: NAME=VALUE
// pairs that are added.
Watched run_watched(const std::vector<std::string>& command, std::uint64_t limit,
                    const std::string& output = {}, const std::vector<std::string>& environment = {});

}  // namespace llmq::testing
