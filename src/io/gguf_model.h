// A GGUF file as the Hugging Face model it was made from: config.json, tensor names, and what is to be undone
// in the weights.
//
// llama.cpp's converter renames tensors and, for architecture "llama" (Llama 1-3, Mistral), reorders the rows
// of q and k within each head from [2, head_dim/2] to [head_dim/2, 2], because its rope turns neighbours.
// source_row() undoes that. Llama 3's frequency scaling arrives as a tensor of factors, rope_freqs.weight,
// and is turned back into rope_scaling. Whatever cannot be said in a config is refused by name. Source:
// llama.cpp's convert_hf_to_gguf.py and gguf-py/gguf/tensor_mapping.py; formats.md 2.4.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "io/gguf.h"

namespace llmq {

struct GgufModelTensor {
  std::string name;        // as Hugging Face names it
  std::size_t index = 0;   // in GgufHeader::tensors
  int permuted_heads = 0;  // > 0: rows lie in llama.cpp's rope order, within each of this many heads
};

struct GgufModel {
  Json config;  // as Transformers writes config.json; vocab_size is that of the embedding
  std::vector<GgufModelTensor> tensors;
};

// `bytes` is the file that `header` was parsed from. Architectures llama, qwen2, qwen3. Errors: kBadInput,
// kUnsupported.
GgufModel read_gguf_model(const GgufHeader& header, std::span<const std::byte> bytes);

// Where row `row` of a q or k projection of `heads` heads and `rows` rows lies in the GGUF.
constexpr std::int64_t source_row(std::int64_t row, std::int64_t rows, int heads) {
  const std::int64_t head_dim = rows / heads, half = head_dim / 2;
  const std::int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + (within % half) * 2 + within / half;
}

// Where row `row` of the GGUF lies in the projection as Hugging Face stores it: the inverse of source_row().
constexpr std::int64_t permuted_row(std::int64_t row, std::int64_t rows, int heads) {
  const std::int64_t head_dim = rows / heads, half = head_dim / 2;
  const std::int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + (within % 2) * half + within / 2;
}

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight", and modules without their suffix
// likewise; empty where GGUF has no name for it. hugging_face_name() turns "blk.3.attn_q.weight" back.
std::string gguf_name(std::string_view hugging_face);
std::string hugging_face_name(std::string_view gguf);
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";

// Small files that stand beside config.json and come from metadata alone: generation_config.json, and
// chat_template.jinja when there is one.
std::vector<std::pair<std::string, std::string>> gguf_companion_texts(const GgufHeader& header);

}  // namespace llmq
