// What a GGUF file says once its metadata are understood: config.json and what its tensors are called there.
//
// Files and tables of tensors are known here, architectures are not: who opens a checkpoint that may be a
// GGUF brings the reader (model/open_checkpoint.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/gguf_parts.h"
#include "tensor/tensor_view.h"

namespace llmq {

class GgufHeader;

struct NamedGgufTensor {
  std::string name;        // as Hugging Face names it
  std::size_t index = 0;   // in GgufHeader::tensors
  int permuted_heads = 0;  // > 0: rows lie in llama.cpp's rope order (io/gguf_rows.h), within so many heads
  // Of what is a part of that tensor, as a matrix of a stack is: its shape and its first byte.
  std::optional<Shape> shape = {};
  std::uint64_t offset = 0;
  float shift = 0;  // StoredTensor::shift
  // Of what lies in another order, or in several tensors, of which `index` is the first: all of them.
  struct Piece {
    std::size_t index = 0;
    GgufPart part;
  };
  std::vector<Piece> pieces = {};
};

struct GgufReading {
  Json config;  // as Transformers writes config.json
  std::vector<NamedGgufTensor> tensors;
};

// What `header` was parsed from is there still. Errors: kBadInput, kUnsupported.
using ReadGguf = GgufReading (*)(const GgufHeader& header);

}  // namespace llmq
