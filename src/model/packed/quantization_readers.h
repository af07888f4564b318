// How each method's part of quantization_config is read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config_fields.h"
#include "model/packed/quantization_config.h"

namespace llmq {

inline constexpr std::int64_t kMostGroup = 1 << 24;

// `what` is not supported: nothing may stand there but null, {} or [].
void refuse_unless_empty(ConfigFields& at, const char* key, const char* what);

// compressed-tensors
std::vector<QuantizationTarget> read_targets(ConfigFields& at, const std::string& key,
                                             PatternBudget& patterns);
std::vector<QuantizationTarget> read_groups(ConfigFields& quantization, PatternBudget& patterns);
std::optional<KvCacheType> read_kv_cache(ConfigFields& quantization);
void check_compressed_tensors(ConfigFields& quantization);

// AutoAWQ's and GPTQ's spelling: -1 is one scale per output channel.
void read_group_size(ConfigFields& at, std::int64_t absent, QuantScheme& scheme);

QuantizationTarget read_awq(ConfigFields& quantization);

// GPTQ
PackedFormat gptq_format(ConfigFields& quantization);
bool names_gptqmodel(ConfigFields& quantization);
std::vector<QuantizationTarget> read_gptq(ConfigFields& quantization, PatternBudget& patterns);

// modelopt: modules that it leaves alone, then those it names, then all others; and what it asks of a
// server's KV cache.
std::vector<QuantizationTarget> read_modelopt(ConfigFields& quantization,
                                              std::optional<KvCacheType>& kv_cache, PatternBudget& patterns);

// AutoRound. Fields that it writes into every container and that change no weight are passed over by name;
// of those that would change one, Error(kUnsupported) where they do.
void pass_over_autoround(ConfigFields& at);
PackedFormat autoround_format(ConfigFields& quantization);
std::vector<QuantizationTarget> read_autoround(ConfigFields& quantization, PackedFormat format,
                                               PatternBudget& patterns);

}  // namespace llmq
