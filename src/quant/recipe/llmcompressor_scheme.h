// Schemes of llm-compressor's recipes, by the name of a preset or as config_groups describe them, as llmq's.
//
// Sources: compressed_tensors 0.19, quant_scheme.py and quant_args.py.
#pragma once
#include <string>

#include "quant/recipe/llmcompressor_draft.h"

namespace llmq::llmcompressor {

// "W4A16", "fp8_dynamic". Errors at `at`: kBadInput for what is no preset, kUnsupported for one whose scheme
// llmq has not.
SchemeRequest preset(const std::string& name, const Yaml& at);

// Weights and the inputs beside them; null: inputs stay as they are. Error(kUnsupported) at the argument that
// no scheme of llmq has.
SchemeRequest scheme_of(const QuantArgs& weights, const QuantArgs* inputs);

// kv_cache_scheme.
KvCacheType kv_cache_of(const QuantArgs& args);

// Readers of single arguments, into draft.args.
void read_bits(Draft& draft, const Yaml::Member& key);
void read_type(Draft& draft, const Yaml::Member& key);
void read_symmetric(Draft& draft, const Yaml::Member& key);
void read_strategy(Draft& draft, const Yaml::Member& key);
void read_group_size(Draft& draft, const Yaml::Member& key);
void read_block(Draft& draft, const Yaml::Member& key);
void read_dynamic(Draft& draft, const Yaml::Member& key);
void read_args_order(Draft& draft, const Yaml::Member& key);

}  // namespace llmq::llmcompressor
