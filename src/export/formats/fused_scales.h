// The one number beside scales of two levels (NVFP4), and that of calibrated inputs, among linears that an
// engine runs as one. vLLM takes the largest that is stored for all of them, so that where weights have
// unlike ones it decodes all but one wrongly; llmq and Transformers decode each linear by its own.
// Cost: 4 bytes of each such linear are read.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tensor/planned_module.h"

namespace llmq {

class Checkpoint;

struct UnlikeScales {
  std::string fused;                  // "model.layers.0.self_attn.qkv_proj"
  std::string first, second;          // two of its linears
  float of_first = 0, of_second = 0;  // as they are stored
  std::int64_t sets = 0;              // how many sets there are with unlike ones; this is the first
};

// Nothing where they are alike in every set, or where there are none.
struct FusedScales {
  std::optional<UnlikeScales> weights, inputs;
};
// `modules` as read_packed_modules() has them of the checkpoint.
FusedScales read_fused_scales(const Checkpoint& checkpoint, std::span<const PlannedModule> modules);

// What whoever keeps unlike scales of weights in another container, `format`, hears: it says the same
// numbers, and vLLM reads others in it, as it does in the first.
std::string said_of_keeping(const UnlikeScales& weights, const std::string& format);

}  // namespace llmq
