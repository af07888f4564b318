#include "job/forms/output_form.h"

#include "export/formats/output_format.h"
#include "job/forms/gguf_form.h"
#include "job/forms/packed_form.h"

namespace llmq {

std::unique_ptr<OutputForm> make_form(const JobInputs& inputs) {
  if (is_one_file(inputs.recipe.format)) return std::make_unique<GgufForm>(inputs);
  return std::make_unique<PackedForm>(inputs);
}

}  // namespace llmq
