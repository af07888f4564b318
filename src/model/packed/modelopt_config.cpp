// What NVIDIA's ModelOpt says of a checkpoint ("unified HF"), in config.json as it has been since 0.29 and in
// hf_quant_config.json, whose words are others:
//
//   quant_algo                        FP8: E4M3, a scale for the weight and one for its inputs
//                                     FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO: scales of rows, of blocks of 128
//                                     NVFP4, W4A16_NVFP4: E2M1 in groups of 16, beside inputs that become
//                                     such floats, with a scale for these, or beside inputs as they are
//                                     MIXED_PRECISION: `quantized_layers` has one for each module it names
//   ignore, exclude_modules           wildcards as of a shell (*, ?, [...]) over whole names: left dense
//   kv_cache_scheme, kv_cache_quant_algo
//
// A module named by `quantized_layers` as a stack of experts means each of their linears. What is stored as
// numbers is read as such whatever the config says of it. Sources: Model-Optimizer 0.47
// torch/export/convert_hf_config.py, quant_utils.py; vLLM's quantization/modelopt.py.
#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "model/packed/quantization_readers.h"

namespace llmq {
namespace {

constexpr const char* kKnownAlgorithms =
    "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4 and MIXED_PRECISION are";

// A shell's wildcards as an expression for whole names, "re:" before it.
std::string wildcard_expression(std::string_view wildcard) {
  std::string text = "re:^";
  for (std::size_t i = 0; i < wildcard.size(); ++i) {
    const char c = wildcard[i];
    const std::size_t end = c == '[' ? wildcard.find(']', i + 2) : std::string_view::npos;
    if (c == '*') {
      text += ".*";
    } else if (c == '?') {
      text += '.';
    } else if (end != std::string_view::npos) {
      const bool none = wildcard[i + 1] == '!';
      text += none ? "[^" : "[";
      for (const char inside : wildcard.substr(i + (none ? 2 : 1), end - i - (none ? 2 : 1)))
        text += inside == '\\' || inside == '[' || inside == '^' ? std::string{'\\', inside}
                                                                 : std::string(1, inside);
      text += ']';
      i = end;
    } else {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
      text += plain ? std::string(1, c) : std::string{'\\', c};
    }
  }
  return text + "$";
}

QuantizationTarget expression_target(const ConfigFields& at, std::string_view key, std::string text,
                                     PatternBudget& patterns) {
  QuantizationTarget target;
  try {
    target.pattern = patterns.make(text);
  } catch (const Error& error) {
    at.bad(key, error.detail().message);
  }
  target.text = std::move(text);
  return target;
}

std::vector<QuantizationTarget> read_wildcards(ConfigFields& at, const char* key, PatternBudget& patterns) {
  std::vector<QuantizationTarget> targets;
  const Json* const list = at.find(key);
  if (list == nullptr) return targets;
  if (!list->is_array()) at.bad(key, fmt::format("expected an array of wildcards, found {}", list->kind()));
  for (const Json& item : list->items()) {
    if (!item.is_string()) at.bad(key, fmt::format("expected strings, found {}", item.kind()));
    const std::string& text = item.as_string();
    if (text.find_first_of("*?[") == std::string::npos)
      targets.push_back({text, std::nullopt, std::nullopt, InputScale::kNone});
    else
      targets.push_back(expression_target(at, key, wildcard_expression(text), patterns));
  }
  return targets;
}

// What an algorithm means, for "Linear", which is every module that nothing else names.
QuantizationTarget read_algorithm(ConfigFields& at) {
  QuantizationTarget target;
  target.text = "Linear";
  QuantScheme scheme;
  scheme.symmetric = true;
  std::string name = at.text("quant_algo");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const std::int64_t group = at.integer("group_size", {0, kMostGroup}, 0);
  if (name == "NVFP4" || name == "W4A16_NVFP4") {
    if (group != 0 && group != kNvfp4Group)
      at.unsupported("group_size",
                     fmt::format("is {}; {} is read in groups of {}", group, name, kNvfp4Group));
    scheme.weight_type = WeightType::kFloat4;
    scheme.group_size = kNvfp4Group;
    if (name == "NVFP4")
      scheme.activation_bits = 4, scheme.activation_scale = ActivationScale::kTokenGroup;
    else
      target.input_scale = InputScale::kPerhaps;
  } else {
    scheme.bits = scheme.activation_bits = 8;
    scheme.weight_type = WeightType::kFloat8;
    if (name == "FP8")
      scheme.granularity = Granularity::kTensor, scheme.activation_scale = ActivationScale::kTensor;
    else if (name == "FP8_PER_CHANNEL_PER_TOKEN")
      scheme.granularity = Granularity::kChannel, scheme.activation_scale = ActivationScale::kToken;
    else if (name == "FP8_PB_WO")
      scheme.granularity = Granularity::kBlock, scheme.activation_scale = ActivationScale::kTokenGroup;
    else
      at.unsupported("quant_algo", fmt::format("the algorithm \"{}\" is not known here", name),
                     kKnownAlgorithms);
  }
  at.require_neutral("has_zero_point", false);
  at.require_neutral("pre_quant_scale", false);
  target.scheme = scheme;
  return target;
}

// Modules by their names. The linears of a stack of experts are told by it.
std::vector<QuantizationTarget> read_layers(ConfigFields& at, PatternBudget& patterns) {
  const Json* const layers = at.find("quantized_layers");
  if (layers == nullptr || !layers->is_object() || layers->members().empty())
    at.bad("quantized_layers", "is missing or empty, and MIXED_PRECISION means what it says of each module");
  std::vector<QuantizationTarget> targets;
  for (const auto& [name, value] : layers->members()) {
    ConfigFields layer(value, at.file(), at.place("quantized_layers") + "." + name);
    QuantizationTarget target = read_algorithm(layer);
    layer.refuse_unread({});
    target.text = name;
    if (name.ends_with(".experts")) {
      QuantizationTarget each =
          expression_target(at, "quantized_layers", wildcard_expression(name + ".*"), patterns);
      target.pattern = each.pattern, target.text = each.text;
    }
    targets.push_back(std::move(target));
  }
  return targets;
}

std::optional<KvCacheType> read_cache(ConfigFields& at) {
  for (const char* key : {"kv_cache_quant_algo", "kv_cache_scheme"}) {
    const Json* const said = at.find(key);
    if (said == nullptr || !said->is_string()) continue;
    if (said->as_string() == "FP8" || said->as_string() == "fp8") return KvCacheType::kFloat8;
    at.unsupported(key, fmt::format("a KV cache of type \"{}\" is not known here", said->as_string()),
                   "FP8 is");
  }
  return read_kv_cache(at);
}

}  // namespace

std::vector<QuantizationTarget> read_modelopt(ConfigFields& quantization,
                                              std::optional<KvCacheType>& kv_cache, PatternBudget& patterns) {
  const Json* const older = quantization.find("quantization");
  std::optional<ConfigFields> fields;
  if (older != nullptr) {
    quantization.refuse_unread({"producer"});
    fields.emplace(*older, quantization.file(), "quantization");
  }
  ConfigFields& at = fields ? *fields : quantization;
  std::vector<QuantizationTarget> targets = read_wildcards(at, "exclude_modules", patterns);
  for (QuantizationTarget& target : read_wildcards(at, "ignore", patterns))
    targets.push_back(std::move(target));
  kv_cache = read_cache(at);
  if (const std::string name = at.text("quant_algo"); name == "MIXED_PRECISION") {
    for (QuantizationTarget& target : read_layers(at, patterns)) targets.push_back(std::move(target));
    at.find("group_size");
  } else {
    targets.push_back(read_algorithm(at));
    at.find("quantized_layers");
  }
  at.require_neutral("nvfp4_embed", false);
  // What repeats the algorithm in the words of compressed-tensors, and where it came from.
  at.refuse_unread({"config_groups", "producer", "llmq", "provider"});
  return targets;
}

}  // namespace llmq
