// Which tensors a model has as GGUF names and shapes them, and which of the checkpoint's each is made of.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/gguf_parts.h"
#include "model/gguf/gguf_family.h"
#include "model/linear_source.h"
#include "model/model_spec.h"

namespace llmq {

struct GgufPlace {
  struct Matrix {
    std::string source;
    const LinearSpec* packed = nullptr;  // its values come from LinearSource
    bool apart = false;                  // its values do not lie as rows of numbers: all are read at once
    std::int64_t first_row = 0;          // of what is stored
  };
  std::string name;
  Shape shape;
  std::vector<Matrix> matrices;  // equally many rows of each, one behind another; none: its values are `made`
  int permuted_heads = 0;
  std::vector<float> made = {};
  float shift = 0;  // is added
  std::optional<GgufPart> part = {};

  bool in_order() const { return permuted_heads == 0 && !part; }
};

// Sorted by gguf_tensor_before(). Blocks behind the last, where any are carried along, are among them.
std::vector<GgufPlace> gguf_places(const Checkpoint& checkpoint, const LinearSource& linears,
                                   const ModelSpec& spec);

// How many such blocks there are, of which the checkpoint has tensors.
std::int64_t further_gguf_blocks(const Checkpoint& checkpoint, const ModelSpec& spec,
                                 const GgufFamily& family);

}  // namespace llmq
