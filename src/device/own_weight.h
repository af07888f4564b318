// A prepared weight as what the backend that prepared it made of it: the only place that looks which that
// was.
#pragma once
#include "base/error.h"
#include "device/backend.h"

namespace llmq {

// Error(kInternal) naming both backends where `weight` is no Weight, or one that does not `fit`.
template <class Weight, class Fits>
const Weight& own_weight(const PreparedWeight& weight, const Backend& backend, const Fits& fits) {
  const auto* const own = dynamic_cast<const Weight*>(&weight);
  if (own == nullptr || !fits(*own))
    fail(ErrorKind::kInternal, "a weight prepared by {} reached {}", weight.prepared_by(), backend.name());
  return *own;
}
template <class Weight>
const Weight& own_weight(const PreparedWeight& weight, const Backend& backend) {
  return own_weight<Weight>(weight, backend, [](const Weight&) { return true; });
}

}  // namespace llmq
