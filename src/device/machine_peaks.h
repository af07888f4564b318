// What this machine can do at most, measured in about half a second: the denominators of every "fraction of
// peak".
//
//   arithmetic   chains of each level's products with operands in registers (kernels/cpu/ops/peak.h), all
//                threads at once
//   reading      one pass of all threads over 256 MiB in huge pages, more than any cache of the machines met
//                so far
//
// Each is the best of several short runs. A busy neighbour makes every figure smaller; compare only what was
// measured within the same minute.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "base/threads.h"
#include "device/backend.h"

namespace llmq {

enum class ArithmeticKind : unsigned char { kF32, kBF16, kInt8 };
const char* arithmetic_name(ArithmeticKind kind);  // "f32", "bf16", "int8"

// Operations per second, a multiplication and an addition counted as two: of all threads by the clock, and of
// one by its processor time, which a neighbour spoils less.
struct Peak {
  double by_clock = 0, by_processor_time = 0;
};

struct LevelPeak {
  std::string level;  // "avx512_bf16"
  ArithmeticKind kind = ArithmeticKind::kF32;
  Peak peak;
};

struct MachinePeaks {
  std::string cpu;       // as the processor calls itself
  std::string gpu = {};  // that which all figures are of; empty: the processor
  int threads = 1;
  double read_bytes_per_second = 0;
  std::vector<LevelPeak> arithmetic;  // every level this machine has, the slowest first
};

// Of the level chosen; of its FP32 products where it has no instruction for this kind.
Peak measure_peak(ThreadPool& pool, ArithmeticKind kind);
double measure_read_bandwidth(ThreadPool& pool);
MachinePeaks measure_machine(int threads);
// Of a backend's device, where that has memory and units of its own, else of the processor.
MachinePeaks measure_machine(Backend& backend);

}  // namespace llmq
