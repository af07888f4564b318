// What a GGUF file says once its metadata are understood: config.json and what its tensors are called there.
//
// Files and tables of tensors are known here, architectures are not: who opens a checkpoint that may be a
// GGUF brings the reader (model/open_checkpoint.h).
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace llmq {

class GgufHeader;

struct NamedGgufTensor {
  std::string name;        // as Hugging Face names it
  std::size_t index = 0;   // in GgufHeader::tensors
  int permuted_heads = 0;  // > 0: rows lie in llama.cpp's rope order (io/gguf_rows.h), within so many heads
};

struct GgufReading {
  Json config;  // as Transformers writes config.json
  std::vector<NamedGgufTensor> tensors;
};

// `bytes` is the file that `header` was parsed from. Errors: kBadInput, kUnsupported.
using ReadGguf = GgufReading (*)(const GgufHeader& header, std::span<const std::byte> bytes);

}  // namespace llmq
