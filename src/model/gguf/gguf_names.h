// What llama.cpp's converter calls tensors and modules, and what Hugging Face calls them: one table for all
// families that GGUF knows here, since all are named like Llama. Source: gguf-py/gguf/tensor_mapping.py.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace llmq {

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight", and modules without their suffix
// likewise; empty where GGUF has no name for it.
std::string gguf_name(std::string_view hugging_face);

// "blk.3.attn_q.weight" turned back; empty where it is no name of the first `layers` blocks.
std::string hugging_face_name(std::string_view gguf, std::int64_t layers = std::int64_t{1} << 31);

// Llama 3's scaling, as a divisor of each frequency; a tensor in GGUF only.
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";

}  // namespace llmq
