// Operations of AMX per call, where amx_present(): 4 tile products a step, no memory touched.
#pragma once
#include <stdint.h>

namespace llmq {

double amx_peak_bf16(int64_t steps);
double amx_peak_int8(int64_t steps);

}  // namespace llmq
