// A model's rope as GGUF has it: keys, and tensors of factors. Whatever it reads of the rope, it reads here.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf_writer.h"
#include "model/gguf/gguf_family.h"
#include "model/model_spec.h"

namespace llmq {

// The rope that a GGUF tells: one for the whole model.
const RopeSpec& gguf_rope(const ModelSpec& spec);

struct RopeRefusal {
  std::string where, why;
};
// What of it `family` cannot say; an empty `why`: all of it can be said.
RopeRefusal refused_gguf_rope(const RopeSpec& rope, const GgufFamily& family);

// A divisor for each frequency, which a GGUF holds as a tensor of its own: F32 [dims / 2].
struct RopeFactors {
  std::string name;
  std::vector<float> values;
};
std::vector<RopeFactors> gguf_rope_factors(const RopeSpec& rope);

// rope.scaling.attn_factor, which stands before all other keys of the architecture, where tensors of factors
// say the rest.
void add_rope_attention_factor(const RopeSpec& rope, const GgufFamily& family, GgufMetadata& metadata);
// rope.scaling.* of linear and yarn. `stated`: rope_parameters, or rope_scaling, of config.json.
void add_rope_scaling(const RopeSpec& rope, const GgufFamily& family, const Json& stated,
                      GgufMetadata& metadata);

}  // namespace llmq
