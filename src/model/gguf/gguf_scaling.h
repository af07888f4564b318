// Reads a GGUF's rope scaling as config.json's rope_scaling: from <architecture>.rope.scaling.*, Llama 3's
// from the factors that it left in rope_freqs.weight, longrope's from rope_factors_long and _short.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "io/gguf.h"
#include "model/gguf/gguf_family.h"

namespace llmq {

// What the rest of the metadata says about the rope.
struct GgufRopeSizes {
  std::int64_t dims = 0;  // channels of a head that turn
  double theta = 0;
  std::int64_t context = 0;
};

// An object, or null where nothing is scaled. What no config can say is refused by name.
Json gguf_rope_scaling(const GgufHeader& header, const GgufFamily& family, const GgufRopeSizes& sizes);

}  // namespace llmq
