// A GGUF file as the Hugging Face model it was made from: config.json, tensor names, and what is to be undone
// in the weights.
//
// llama.cpp's converter renames tensors (model/gguf/gguf_names.h) and, for families whose rope turns
// neighbours there, reorders the rows of q and k within each head (io/gguf_rows.h). What else tells one
// architecture from another its family says (GgufFamily in model/gguf/gguf_family.h). Whatever cannot be said
// in a config is refused by name. Source: llama.cpp's convert_hf_to_gguf.py; docs/reference/formats.md.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/gguf.h"
#include "io/gguf_reading.h"

namespace llmq {

// What `header` was parsed from is there still. vocab_size is that of the embedding. Errors: kBadInput,
// kUnsupported.
GgufReading read_gguf_model(const GgufHeader& header);

// Small files that stand beside config.json and come from metadata alone: generation_config.json, and
// chat_template.jinja when there is one.
std::vector<std::pair<std::string, std::string>> gguf_companion_texts(const GgufHeader& header);

}  // namespace llmq
