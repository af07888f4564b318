// What the model card of an output says for the hub to read: what the recipe gives, and else what the model's
// files say for certain.
#pragma once
#include "export/report/report.h"
#include "io/checkpoint.h"
#include "quant/recipe/recipe.h"

namespace llmq {

// The base model is the recipe's, or the one whose snapshot in a hub cache was read. Data sets are those of
// the texts that come with llmq, where samples were read. Licence: export/report/source_license.h.
CardHeader card_header(Io& io, const Recipe& recipe, const Checkpoint& checkpoint, bool calibrates);

}  // namespace llmq
