// What a recipe changes of a model's weights before they are rounded: an adapter goes into them, and the
// channels of values are rotated (quant/rotation/value_rotation.h), in this order.
#pragma once
#include "job/loaded_model.h"
#include "quant/recipe/recipe.h"

namespace llmq {

// Of a model that open_to_round() opened; nothing is read of its weights. Errors as fold_adapter() and
// with_rotated_values(). Where values are rotated, Error(kUsage) also if numbers that are not finite are
// allowed, of which each would become those of a head, and if the model says that they are rotated already: a
// second rotation takes the first one back. A manifest beside it that cannot be read might say so: its error.
void change_weights(Io& io, const Recipe& recipe, bool allow_nonfinite, LoadedModel& model);

}  // namespace llmq
