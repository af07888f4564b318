// A stretch of work under a name, to the end of a scope: "block 3", "gptq down".
#pragma once
#include <string>

#include "device/backend.h"

namespace llmq {

class NamedRange {
 public:
  NamedRange(Backend& backend, const std::string& name) : backend_(backend) { backend_.begin_range(name); }
  ~NamedRange() { backend_.end_range(); }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  Backend& backend_;
};

}  // namespace llmq
