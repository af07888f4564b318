// A shape as documents write it: a list of its extents, outermost first.
#pragma once
#include "base/json.h"
#include "tensor/tensor_view.h"

namespace llmq {

inline Json shape_json(const Shape& shape) {
  Json extents = Json::array();
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return extents;
}

}  // namespace llmq
