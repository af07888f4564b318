#include "job/changed_weights.h"

#include "base/error.h"
#include "job/recorded_job.h"
#include "job/run_adapter.h"
#include "quant/rotation/value_rotation.h"

namespace llmq {

void change_weights(Io& io, const Recipe& recipe, bool allow_nonfinite, LoadedModel& model) {
  fold_adapter(io, recipe.adapter, model);
  if (!recipe.rotates_values) return;
  const auto refuse = [&](const char* message, const char* hint) {
    fail(ErrorKind::kUsage, {message, recipe.source, "rotate.value", hint});
  };
  if (allow_nonfinite)
    refuse("one number that is not finite would become those of a whole head",
           "leave out one of it and --allow-nonfinite");
  if (has_rotated_values(model.checkpoint))
    refuse("the model's values are rotated already, and a second rotation would take that back",
           "leave it out, or name the model that was quantized");
  model.rotated_values = true;
  model.checkpoint = with_rotated_values(model.checkpoint, model.spec, recipe.source);
}

}  // namespace llmq
