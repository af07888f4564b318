// The CPU's levels by name, for tests and benchmarks that run each of them; make_cpu_backend() chooses the
// best, or LLMQ_CPU_ISA's.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/backend.h"

namespace llmq {

std::vector<std::string> cpu_levels_present();  // lowest first, of "scalar", "avx2", "avx512", "amx"
std::string chosen_cpu_level();                 // LLMQ_CPU_ISA's, as it stands there, or the best present

// Also "avx512_plain" (no BF16 instructions) and "amx_emulated" (the bits of "amx" without its units).
// Error(kUsage) for a word that is no level, Error(kUnsupported) for a level that this processor lacks.
std::shared_ptr<Backend> make_cpu_backend_at(int threads, const std::string& level);
// The level whose Backend::arithmetic() is this; Error(kUnsupported) where this processor has none.
std::shared_ptr<Backend> make_cpu_backend_of(int threads, const std::string& arithmetic);

}  // namespace llmq
