// How a job is run and by what: of this only the arithmetic and the program's version can change a byte.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/backend.h"
#include "ranks/ranks.h"

namespace llmq {

// What made an output, for its report and its manifest.
struct Program {
  std::string version, commit;  // of llmq
  std::string command_line;     // as typed
};

struct JobSettings {
  std::vector<std::shared_ptr<Backend>> devices;  // the first is the job's own, the others share its work
  Compute compute = Compute::kBFloat16;
  Compute evaluation_compute = Compute::kFloat32;
  std::uint64_t memory_limit = 0;  // 0: none
  Program program;
  std::function<void()> on_step = [] {};  // between two steps; may throw to stop
  Ranks* shared_by = nullptr;             // who share a job of rounding; null: this process alone

  Ranks& ranks() const { return or_alone(shared_by); }
  Backend& backend() const { return *devices.front(); }
};

}  // namespace llmq
