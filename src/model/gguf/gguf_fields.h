// Looks into a GGUF's metadata as a model's, here and in families: sizes, tensors by name, and refusals that
// name the file.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "io/gguf.h"

namespace llmq {

[[noreturn]] void bad_gguf(const GgufHeader& header, std::string where, std::string message);
[[noreturn]] void unsupported_gguf(const GgufHeader& header, std::string where, std::string message);

// An integer, or an array that says the same for every layer; a size that a model can have.
std::int64_t gguf_size(const GgufHeader& header, const std::string& key);

// One for each of so many blocks, which may differ.
std::vector<std::int64_t> gguf_sizes_of_blocks(const GgufHeader& header, const std::string& key,
                                               std::int64_t blocks);

// <architecture>.attention.sliding_window; 0: none.
std::int64_t gguf_window(const GgufHeader& header);

// layer_types of so many blocks by attention.sliding_window_pattern: a flag for each, true where it has the
// window, or a number, `period` where the key is missing: each so many-th has none.
Json gguf_layer_types(const GgufHeader& header, std::int64_t blocks, std::int64_t period);

const GgufTensor* find_gguf_tensor(const GgufHeader& header, std::string_view name);

// expert_count and expert_used_count as config.json has them; the first under the family's own name.
void add_gguf_experts(const GgufHeader& header, const char* count, Json& config);

// Whether the linears of a kind have biases: all of these in block 0 or none.
bool has_gguf_biases(const GgufHeader& header, std::initializer_list<const char*> stems);
// Of a family like Llama that has none: Error(kUnsupported) where there are some.
void refuse_gguf_biases(const GgufHeader& header, const char* model);

}  // namespace llmq
