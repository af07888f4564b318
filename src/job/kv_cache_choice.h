// The type in which an engine keeps keys and values, from the word that asks for it to what was made of it.
#pragma once
#include <string>

#include "base/json.h"
#include "runtime/engine.h"
#include "tensor/kv_type.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

// auto is the type of `compute`. Error(kUsage) for a word that is none.
KvType kv_type_of(const std::string& word, Compute compute);
// Into the options of an engine of these tokens: the type, and the text that INT8 and INT4 pages are fitted
// on.
void choose_kv_cache(Engine::Options& options, const std::string& word, const Tokenizer& tokenizer);
// "w4a16_g64_sym, KV int8"; the scheme alone for auto.
std::string named_with_kv_cache(const std::string& scheme, const std::string& word);
// {dtype, bytes_per_token} of an engine that was given its type.
Json kv_cache_json(const Engine& engine);

}  // namespace llmq
