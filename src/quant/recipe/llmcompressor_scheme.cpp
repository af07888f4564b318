#include "quant/recipe/llmcompressor_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq::llmcompressor {
namespace {

// Presets that are no W<bits>A<bits>; an empty scheme: llmq has none such.
struct Preset {
  std::string_view name, scheme, words;
};
constexpr std::array<Preset, 14> kPresets = {{
    {"FP8", "fp8_static", {}},
    {"FP8_DYNAMIC", "fp8", {}},
    {"FP8_BLOCK", "fp8_block", {}},
    {"W4A16_ASYM", "w4a16_g128_asym", {}},
    {"W8A8", "w8a8_channel_sym", {}},
    {"INT8", "w8a8_channel_sym", {}},
    {"UNQUANTIZED", {}, "it quantizes nothing; name the linears under ignore"},
    {"W4AFP8", {}, "integer codes go with integer inputs: W4A8, or FP8_DYNAMIC for both"},
    {"NVFP4", "nvfp4", {}},
    {"NVFP4A16", "nvfp4a16", {}},
    {"MXFP4", "mxfp4a4", {}},
    {"MXFP4A16", "mxfp4", {}},
    {"MXFP8", "mxfp8", {}},
    {"MXFP8A16", "mxfp8a16", {}},
}};

// Rows of 128 by 128, inputs in groups of as many (kFloat8Block).
const std::vector<int> kFloat8Blocks = {kFloat8Block, kFloat8Block};

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// How the weights' scales lie: what strategy says, or what compressed_tensors infers.
std::string strategy_of(const QuantArgs& args) {
  if (!args.strategy.empty()) return args.strategy;
  if (!args.group_size) return "tensor";
  return *args.group_size > 0 ? "group" : "channel";
}

void check_group(const QuantArgs& args) {
  const bool grouped = args.group_size && *args.group_size > 0, by_group = strategy_of(args) == "group";
  if (args.group_size && *args.group_size == 0)
    args.refuse("group_size", "0 means nothing", "write a positive size, or strategy: channel");
  if (by_group && !grouped) args.refuse("strategy", "'group' needs a group_size", "write group_size: 128");
  if (grouped && !by_group)
    args.refuse("group_size", fmt::format("strategy {} has no groups", strategy_of(args)), "leave it out");
}

// Inputs that integer codes go with: per token as the model runs, or per tensor by calibration.
void add_integer_inputs(const QuantArgs& inputs, SchemeRequest& scheme) {
  const std::string strategy = strategy_of(inputs);
  if (inputs.is_float)
    inputs.refuse("type", "'float' inputs do not go with integer weights",
                  "write type: int for both, or float for both");
  if (inputs.bits != 8)
    inputs.refuse("num_bits", fmt::format("{}-bit inputs are not written", inputs.bits), "write num_bits: 8");
  if (!inputs.is_symmetric)
    inputs.refuse("symmetric", "asymmetric inputs are not written", "write symmetric: true");
  const bool per_token = inputs.is_dynamic && strategy == "token",
             per_tensor = !inputs.is_dynamic && strategy == "tensor";
  if (!per_token && !per_tensor)
    inputs.refuse(inputs.later_of("strategy", "dynamic"),
                  fmt::format("{} inputs with strategy {} are not written",
                              inputs.is_dynamic ? "dynamic" : "static", strategy),
                  "write {strategy: token, dynamic: true} or {strategy: tensor, dynamic: false}");
  check_group(inputs);
  scheme.activation_bits = 8;
  scheme.static_activations = per_tensor;
}

SchemeRequest integer_scheme(const QuantArgs& weights, const QuantArgs* inputs) {
  const std::string strategy = strategy_of(weights);
  SchemeRequest scheme;
  scheme.bits = weights.bits;
  scheme.symmetric = weights.is_symmetric;
  if (weights.bits > 8)
    weights.refuse("num_bits", fmt::format("codes of {} bits are not written", weights.bits), "write 2 to 8");
  if (strategy == "group")
    scheme.granularity = Granularity::kGroup, scheme.group_size = weights.group_size;
  else if (strategy == "channel")
    scheme.granularity = Granularity::kChannel;
  else if (strategy == "tensor")
    scheme.granularity = Granularity::kTensor;
  else
    weights.refuse("strategy", fmt::format("integer weights by '{}' are not written", strategy),
                   "write group, channel or tensor");
  check_group(weights);
  if (inputs != nullptr) add_integer_inputs(*inputs, scheme);
  return scheme;
}

// Floats in groups, whose inputs stay or become the same floats.
SchemeRequest float_group_scheme(const QuantArgs& weights, const QuantArgs* inputs) {
  const bool two_levels = strategy_of(weights) == "tensor_group", of_4 = weights.bits == 4;
  const int group = two_levels ? kNvfp4Group : kMxGroup;
  if (!of_4 && (two_levels || weights.bits != 8))
    weights.refuse("num_bits", fmt::format("floats of {} bits are not written so", weights.bits),
                   two_levels ? "write num_bits: 4" : "write num_bits: 4 or 8");
  if (weights.group_size != group)
    weights.refuse("group_size", fmt::format("such floats come in groups of {} here", group),
                   fmt::format("write group_size: {}", group));
  if (inputs == nullptr) return parse_scheme(two_levels ? "nvfp4a16" : of_4 ? "mxfp4" : "mxfp8a16");
  const auto want = [&](bool holds, std::string_view key) {
    if (holds) return;
    inputs->refuse(
        key, "inputs beside floats in groups are rounded to the same floats",
        fmt::format("write {{num_bits: {}, type: float, strategy: {}, group_size: {}, dynamic: {}}}",
                    weights.bits, strategy_of(weights), group, two_levels ? "local" : "true"));
  };
  want(inputs->is_float, "type");
  want(inputs->bits == weights.bits, "num_bits");
  want(inputs->is_symmetric, "symmetric");
  want(strategy_of(*inputs) == strategy_of(weights), "strategy");
  want(inputs->group_size == group, "group_size");
  want(inputs->is_dynamic && inputs->is_local == two_levels, "dynamic");
  return parse_scheme(two_levels ? "nvfp4" : of_4 ? "mxfp4a4" : "mxfp8");
}

// One of the three schemes of E4M3 with plain scales that there are.
SchemeRequest float_scheme(const QuantArgs& weights, const QuantArgs* inputs) {
  struct Row {
    std::string_view weights, inputs;
    bool is_dynamic;
    std::string_view scheme, words;
  };
  static constexpr std::array<Row, 3> kFloatRows = {{
      {"channel", "token", true, "fp8", "{num_bits: 8, type: float, strategy: token, dynamic: true}"},
      {"tensor", "tensor", false, "fp8_static",
       "{num_bits: 8, type: float, strategy: tensor, dynamic: false}"},
      {"block", "group", true, "fp8_block",
       "{num_bits: 8, type: float, strategy: group, group_size: 128, dynamic: true}"},
  }};
  if (weights.bits != 8)
    weights.refuse("num_bits", fmt::format("floats of {} bits are not written", weights.bits),
                   "write num_bits: 8, or type: int");
  if (!weights.is_symmetric)
    weights.refuse("symmetric", "floats have no zero points", "write symmetric: true");
  const std::string strategy = strategy_of(weights);
  const auto row = std::find_if(kFloatRows.begin(), kFloatRows.end(),
                                [&](const Row& one) { return one.weights == strategy; });
  if (row == kFloatRows.end())
    weights.refuse("strategy", fmt::format("floats by '{}' are not written", strategy),
                   "write channel, tensor or block");
  check_group(weights);
  if (strategy == "block" && weights.block != kFloat8Blocks)
    weights.refuse("block_structure", "blocks of floats are 128 x 128 here",
                   "write block_structure: [128, 128]");
  const std::string hint = fmt::format("write input_activations: {}", row->words);
  if (inputs == nullptr)
    weights.refuse("type",
                   "'float' weights go with inputs of 8-bit floats here, and input_activations is not given",
                   hint);
  const std::string of_inputs = strategy_of(*inputs);
  if (!inputs->is_float || inputs->bits != 8 || !inputs->is_symmetric)
    inputs->refuse(!inputs->is_float   ? "type"
                   : inputs->bits != 8 ? "num_bits"
                                       : "symmetric",
                   "float weights go with symmetric inputs of 8-bit floats", hint);
  if (of_inputs != row->inputs || inputs->is_dynamic != row->is_dynamic)
    inputs->refuse(of_inputs != row->inputs ? "strategy" : "dynamic",
                   fmt::format("float weights by {} go with {} inputs by {} here", row->weights,
                               row->is_dynamic ? "dynamic" : "static", row->inputs),
                   hint);
  check_group(*inputs);
  if (of_inputs == "group" && inputs->group_size != kFloat8Block)
    inputs->refuse("group_size", "inputs beside blocks of 128 come in groups of 128", hint);
  return parse_scheme(row->scheme);
}

}  // namespace

void QuantArgs::refuse(std::string_view key, const std::string& message, const std::string& hint) const {
  const Yaml* const at = node->find(key);
  llmcompressor::refuse(at != nullptr ? *at : *node, fmt::format("{}.{}: {}", name, key, message), hint);
}

std::string_view QuantArgs::later_of(std::string_view a, std::string_view b) const {
  const Yaml *const first = node->find(a), *const second = node->find(b);
  if (first == nullptr || second == nullptr) return first == nullptr ? b : a;
  return std::pair(first->line(), first->column()) < std::pair(second->line(), second->column()) ? b : a;
}

SchemeRequest preset(const std::string& name, const Yaml& at) {
  const std::string asked = upper(name);
  for (const Preset& one : kPresets) {
    if (one.name != asked) continue;
    if (one.scheme.empty())
      refuse(at, fmt::format("preset '{}' is not written by llmq", asked), std::string(one.words));
    return parse_scheme(one.scheme);
  }
  const bool integer =
      asked.size() >= 4 && asked[0] == 'W' && asked[1] >= '2' && asked[1] <= '8' && asked[2] == 'A';
  const std::string inputs = integer ? asked.substr(3) : "";
  if (inputs == "4")
    refuse(at, fmt::format("preset '{}' is not written by llmq, which has inputs of 8 and of 16 bits", asked),
           "write A8 or A16");
  if (inputs != "16" && inputs != "8")
    at.fail_here("'" + name + "' is no preset of llm-compressor 0.14",
                 "such are W4A16, W4A16_ASYM, W8A8, FP8, FP8_DYNAMIC and FP8_BLOCK");
  return parse_scheme(fmt::format("w{}a{}_g128_sym", asked[1], inputs));
}

SchemeRequest scheme_of(const QuantArgs& weights, const QuantArgs* inputs) {
  if (weights.is_dynamic) weights.refuse("dynamic", "weights are rounded once", "write dynamic: false");
  if (weights.block && strategy_of(weights) != "block")
    weights.refuse("block_structure", "only strategy block has blocks", "leave it out");
  const std::string strategy = strategy_of(weights);
  if (weights.is_float && (strategy == "tensor_group" || strategy == "group"))
    return float_group_scheme(weights, inputs);
  if (inputs != nullptr && inputs->is_local)
    inputs->refuse("dynamic", "'local' belongs to NVFP4", "write true or false");
  return weights.is_float ? float_scheme(weights, inputs) : integer_scheme(weights, inputs);
}

KvCacheType kv_cache_of(const QuantArgs& args) {
  if (args.bits != 8) args.refuse("num_bits", "keys and values are kept in 8 bits", "write num_bits: 8");
  if (!args.is_symmetric)
    args.refuse("symmetric", "keys and values have no zero points", "write symmetric: true");
  if (args.is_dynamic)
    args.refuse("dynamic", "scales of keys and values are calibrated", "write dynamic: false");
  if (strategy_of(args) != "tensor")
    args.refuse("strategy", "keys have one scale per layer, and so have values", "write strategy: tensor");
  return args.is_float ? KvCacheType::kFloat8 : KvCacheType::kInt8;
}

void read_bits(Draft& draft, const Yaml::Member& key) {
  draft.args.bits = static_cast<int>(read_integer(key.value, 2, 16));
}

void read_type(Draft& draft, const Yaml::Member& key) {
  if (!is_text(key.value, {"int", "INT", "float", "FLOAT"}))
    read_word(key.value, {"int", "float"});  // refuses
  draft.args.is_float = is_text(key.value, {"float", "FLOAT"});
}

void read_symmetric(Draft& draft, const Yaml::Member& key) { draft.args.is_symmetric = read_flag(key.value); }

void read_strategy(Draft& draft, const Yaml::Member& key) {
  draft.args.strategy =
      read_word(key.value, {"tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"});
}

void read_group_size(Draft& draft, const Yaml::Member& key) {
  draft.args.group_size = static_cast<int>(read_integer(key.value, -1, 1 << 20));
}

void read_block(Draft& draft, const Yaml::Member& key) {
  draft.args.block.emplace();
  if (is_text(key.value, {"128x128"})) {
    draft.args.block = kFloat8Blocks;
    return;
  }
  for (const Yaml& side : key.value.items())
    draft.args.block->push_back(static_cast<int>(read_integer(side, 1, 1 << 20)));
}

void read_dynamic(Draft& draft, const Yaml::Member& key) {
  draft.args.is_local = is_text(key.value, {"local", "LOCAL"});
  draft.args.is_dynamic = draft.args.is_local || read_flag(key.value);
}

void read_args_order(Draft& draft, const Yaml::Member& key) {
  if (!is_text(key.value, {"false", "False"})) draft.args.order = &key;
}

}  // namespace llmq::llmcompressor
