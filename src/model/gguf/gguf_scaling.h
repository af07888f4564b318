// Reads a GGUF's rope scaling as config.json's rope_scaling: from <architecture>.rope.scaling.*, or Llama 3's
// from the factors that it left in rope_freqs.weight.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "io/gguf.h"

namespace llmq {

// An object, or null where nothing is scaled. What no config can say is refused by name.
Json gguf_rope_scaling(const GgufHeader& header, std::span<const std::byte> bytes, std::int64_t head_dim,
                       double theta);

}  // namespace llmq
