// Numbers that a GGUF has beside its weights: NAME.scale, by which those of NAME.weight are multiplied, F32
// [1], or one for each matrix of a stack of experts; and NAME.input_scale alike, by which their inputs would
// be rounded, which nobody does here. llama.cpp's converter writes them beside NVFP4, and llama.cpp
// multiplies the products of a block's linears and of the head.
#pragma once
#include <cstdint>
#include <map>
#include <string_view>

#include "io/gguf.h"

namespace llmq {

struct GgufFamily;
struct GgufWidths;

class GgufScales {
 public:
  // All of it is there as long as this is.
  GgufScales(const GgufHeader& header, const GgufFamily& family, const GgufWidths& widths,
             std::int64_t experts);
  // Whether this is one of them, which io/codes/gguf_scales.h joins to its weight; false for what the family
  // calls so itself. Errors: kBadInput for another shape, and for what is no number above 0; kUnsupported
  // beside a weight that nobody multiplies here.
  bool has(const GgufTensor& tensor) const;

 private:
  const GgufHeader& header_;
  const GgufFamily& family_;
  const GgufWidths& widths_;
  std::int64_t experts_;
  std::map<std::string_view, const GgufTensor*> weights_;  // by their names
};

}  // namespace llmq
