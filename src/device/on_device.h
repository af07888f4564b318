// The one check every backend makes of its arguments: tensors lie on its own device. Shapes are the caller's
// facts.
#pragma once
#include <initializer_list>

#include "base/error.h"
#include "tensor/tensor_view.h"

namespace llmq {

// Error(kInternal) naming the operation when a view (empty ones aside) belongs to another device.
inline void require_on(Device device, const char* operation, std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (view->pointer == nullptr || view->device == device) continue;
    fail(ErrorKind::kInternal, "{} was given a tensor of shape {} that is not on its device", operation,
         view->shape.text());
  }
}

}  // namespace llmq
