#include "job/output_form.h"

#include "job/gguf_form.h"
#include "job/packed_form.h"

namespace llmq {

std::unique_ptr<OutputForm> make_form(const JobInputs& inputs) {
  if (inputs.recipe.format == "gguf") return std::make_unique<GgufForm>(inputs);
  return std::make_unique<PackedForm>(inputs);
}

}  // namespace llmq
