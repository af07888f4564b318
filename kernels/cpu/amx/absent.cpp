// Where there is no AMX: never called, as amx_present() says no.
#include "kernels/cpu/amx/peak.h"

namespace llmq {

double amx_peak_bf16(int64_t) { return 0; }
double amx_peak_int8(int64_t) { return 0; }

}  // namespace llmq
