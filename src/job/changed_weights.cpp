#include "job/changed_weights.h"

#include <algorithm>

#include "base/error.h"
#include "export/provenance/manifest.h"
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
           "leave out rotate, or --allow-nonfinite");
  if (io.exists(manifest_path(model.checkpoint.path()))) recorded_facts(io, model.checkpoint.path());
  if (std::count(model.changed_before.begin(), model.changed_before.end(), kByRotation) != 0)
    refuse("the model's weights are rotated already, and a second rotation might take that back",
           "leave it out, or name the model that was quantized");
  model.rotated_values = true;
  model.checkpoint = with_rotated_values(model.checkpoint, model.spec, recipe.source);
}

}  // namespace llmq
