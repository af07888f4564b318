// The linears of a vision tower, for those who round them (--vision). A tower is not computed here; what its
// linears are shows without knowing it: blocks of a transformer have no matrices but linears, and embeddings,
// patches and projectors lie beside the blocks.
#pragma once
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "model/model_spec.h"

namespace llmq {

struct Tower {
  std::vector<LinearSpec> linears;  // in the checkpoint's order; empty: the model has no tower
  // Modules beside the blocks, each with all that lies in it: "model.visual.merger".
  std::vector<std::string> beside;
};

// Of the parts that are carried along, the blocks that vision_config counts. No weight is read.
Tower find_tower(const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace llmq
