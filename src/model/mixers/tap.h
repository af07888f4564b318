// What looks at the inputs of linears on their way; evaluation and serving have none.
#pragma once
#include <cstdint>

#include "model/block_spec.h"
#include "tensor/tensor_view.h"

namespace llmq {

class Tap {
 public:
  virtual ~Tap() = default;
  enum class Flow : std::uint8_t { kGoOn, kStop };
  // Where the input of a site is to lie: [rows, the site's channels] of the compute dtype, valid until the
  // walk is over.
  virtual TensorView place(const SiteSpec& site, SiteId id, std::int64_t rows) = 0;
  virtual Flow at(SiteId site, const TensorView& x) = 0;
};

}  // namespace llmq
