// What the processor can do with operands in registers: the denominator of every fraction printed here.
#pragma once
#include "base/threads.h"

namespace llmq::bench {

enum class PeakKind { kF32, kBF16 };

// GFLOP/s of fused multiply-adds (F32) or pairs of BF16 products of the widest kind this processor has: of
// every worker at once by the clock, and of one worker by its processor time (which a busy neighbour spoils
// less). 0 where it has none. The best of several short runs, about 60 ms in all.
struct Peak {
  double by_clock = 0, by_processor_time = 0;
};
Peak peak_gflops(ThreadPool& pool, PeakKind kind);

}  // namespace llmq::bench
