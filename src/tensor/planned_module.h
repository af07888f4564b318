// One linear of a model as it is to be packed: what a plan decides and what a format declares tensors from.
#pragma once
#include <cstdint>
#include <string>

#include "tensor/quant_scheme.h"

namespace llmq {

struct PlannedModule {
  std::string module;
  QuantScheme scheme;
  std::int64_t out_features = 0, in_features = 0;
  bool column_groups = false;  // columns carry the index of their group (QuantizedMatrix::column_group)
};

}  // namespace llmq
