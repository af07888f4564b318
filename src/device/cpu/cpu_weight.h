// A weight of the CPU backend: laid out for one table of kernels, whichever backend holds that table.
#pragma once
#include <string>

#include "device/cpu/cpu_work.h"

namespace llmq {

class CpuWeight : public PreparedWeight {
 public:
  // The class that derives from it, each of which is a kKind.
  enum class Kind : unsigned char { kPacked, kCodes, kNarrow };

  std::string prepared_by() const override { return std::string("cpu ") + kernels->name; }

  const Kind kind;
  const CpuKernels* const kernels;

 protected:
  CpuWeight(Kind of, const CpuWork& work) : kind(of), kernels(work.kernels) {}
};

}  // namespace llmq
