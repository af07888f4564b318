#include "quant/recipe/llmcompressor_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "base/json.h"
#include "quant/recipe/llmcompressor_scheme.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq::llmcompressor {
namespace {

constexpr std::size_t kShownValue = 60;  // bytes of a value in a note

// A value as one would write it on one line; quoted where it was.
std::string flow_text(const Yaml& node) {
  if (node.kind() == Yaml::Kind::kNull) return "null";
  if (node.kind() == Yaml::Kind::kScalar)
    return node.is_plain() ? node.as_string() : Json(node.as_string()).dump();
  const bool list = node.kind() == Yaml::Kind::kSequence;
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (list)
    for (const Yaml& item : node.items()) add(flow_text(item));
  else
    for (const Yaml::Member& m : node.members()) add(m.key + ": " + flow_text(m.value));
  return list ? "[" + text + "]" : "{" + text + "}";
}

std::string shown(const Yaml& node) {
  std::string text = flow_text(node);
  if (text.size() <= kShownValue) return text;
  std::size_t end = kShownValue;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole characters
  return text.substr(0, end) + "...";
}

// Where nothing is asked: null, [] and {}.
bool is_nothing(const Yaml& node) {
  if (node.kind() == Yaml::Kind::kSequence) return node.items().empty();
  if (node.kind() == Yaml::Kind::kMapping) return node.members().empty();
  return is_null(node);
}

// Whether a scalar is `word`, which PyYAML may write as True.
bool says(const Yaml& node, std::string_view word) {
  if (word.empty() || node.kind() != Yaml::Kind::kScalar) return false;
  return std::equal(word.begin(), word.end(), node.as_string().begin(), node.as_string().end(),
                    [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

void read_targets(Draft& d, const Yaml::Member& m) { d.modifier().targets = &m; }
void read_ignore(Draft& d, const Yaml::Member& m) { d.modifier().ignore = &m; }
void read_order(Draft& d, const Yaml::Member& m) { d.modifier().order = &m; }

void read_named_scheme(Draft& d, const Yaml::Member& m) {
  d.modifier().scheme = &m;
  if (m.value.kind() != Yaml::Kind::kMapping) {
    d.modifier().groups.push_back({preset(m.value.as_string(), m.value), {}, nullptr});
    return;
  }
  for (const Yaml::Member& one : m.value.members())
    d.modifier().groups.push_back({preset(one.key, one.value), read_names(one.value), nullptr});
}

// Weights, inputs, or keys and values: the arguments below `m`.
QuantArgs read_args(Draft& d, const Yaml::Member& m, const std::string& name, Place place) {
  d.args = {};
  d.args.node = &m.value;
  d.args.name = name;
  read_keys(d, m.value, name, {&place, 1});
  return std::move(d.args);
}

void read_groups(Draft& d, const Yaml::Member& m) {
  static constexpr std::array kPlaces = {Place::kGroup};
  d.modifier().config_groups = &m;
  for (const Yaml::Member& one : m.value.members()) {
    d.weights.reset();
    d.inputs.reset();
    d.modifier().groups.emplace_back();
    read_keys(d, one.value, one.key, kPlaces);
    if (!d.weights)
      refuse(one.value, fmt::format("config group '{}' quantizes no weights", one.key), "give it weights");
    d.group().scheme = scheme_of(*d.weights, d.inputs ? &*d.inputs : nullptr);
    d.group().order = d.weights->order;
  }
}

void read_group_targets(Draft& d, const Yaml::Member& m) { d.group().targets = read_names(m.value); }
void read_weights(Draft& d, const Yaml::Member& m) {
  d.weights = read_args(d, m, "weights", Place::kWeights);
}
void read_inputs(Draft& d, const Yaml::Member& m) {
  d.inputs = read_args(d, m, "input_activations", Place::kInputs);
}

void read_kv_cache(Draft& d, const Yaml::Member& m) {
  d.modifier().kv_cache = &m;
  d.recipe.kv_cache = kv_cache_of(read_args(d, m, "kv_cache_scheme", Place::kKvCache));
}

void read_duo(Draft& d, const Yaml::Member& m) {
  d.recipe.awq.duo_scaling = is_text(m.value, {"both"}) ? AwqOptions::Duo::kBoth
                             : read_flag(m.value)       ? AwqOptions::Duo::kYes
                                                        : AwqOptions::Duo::kNo;
}

void read_grid(Draft& d, const Yaml::Member& m) {
  d.recipe.awq.grid = static_cast<int>(read_integer(m.value, 1, 1000));
}

void read_damp(Draft& d, const Yaml::Member& m) { d.recipe.gptq.damp = read_number(m.value, 0, 1); }

void read_strength(Draft& d, const Yaml::Member& m) {
  d.recipe.smoothquant.alpha = read_number(m.value, 0, 1);
}

void read_algorithm(Draft&, const Yaml::Member& m) {
  read_word(m.value, {"smoothquant", "log_equalization"});
  if (is_text(m.value, {"log_equalization"}))
    refuse(m.value, "SmoothQuantModifier.algorithm: 'log_equalization' is not an algorithm of llmq",
           "write algorithm: smoothquant");
}

constexpr auto kHonoured = Answer::kHonoured, kNoted = Answer::kNoted, kRefused = Answer::kRefused;

constexpr std::string_view kObserver = "scales are found by llmq's method, from all samples",
                           kStored = "scales are stored in the type that the format and the checkpoint have";

constexpr auto kRows = std::to_array<KeyRow>({
    {Place::kStage, "run_type", kNoted, "every stage is run once, in the order of the file", {}, "oneshot"},
    {Place::kStage, "args", kNoted, "a recipe is not a template here"},

    {Place::kModifier, "index", kNoted, "modifiers are applied in the order of the file"},
    {Place::kModifier, "group", kNoted, "modifiers are applied in the order of the file"},
    {Place::kModifier, "start", kNoted, "a run has no steps: samples are read once"},
    {Place::kModifier, "end", kNoted, "a run has no steps: samples are read once"},
    {Place::kModifier, "update", kNoted, "a run has no steps: samples are read once"},
    {Place::kModifier, "requires_calibration_data", kNoted,
     "samples are read where the method or the scheme needs them"},
    {Place::kModifier, "sequential_targets", kNoted, "one decoder block after another is quantized"},
    {Place::kModifier,
     "sequential_update",
     kNoted,
     "inputs carry the error of what was quantized before",
     {},
     "true"},

    {Place::kQuantizer, "targets", kHonoured, "linears of the scheme: `Linear`, names or `re:` patterns",
     read_targets},
    {Place::kQuantizer, "ignore", kHonoured, "linears that are left dense", read_ignore},
    {Place::kQuantizer, "scheme", kHonoured, "a preset, or presets and their targets", read_named_scheme},
    {Place::kQuantizer, "config_groups", kHonoured, "schemes and their targets", read_groups},
    {Place::kQuantizer, "kv_cache_scheme", kHonoured, "`kv_cache.dtype`", read_kv_cache},
    {Place::kQuantizer, "weight_observer", kNoted, kObserver},
    {Place::kQuantizer, "input_observer", kNoted, kObserver},
    {Place::kQuantizer, "output_observer", kNoted, kObserver},
    {Place::kQuantizer, "observer", kNoted, kObserver},
    {Place::kQuantizer,
     "bypass_divisibility_checks",
     kNoted,
     "a group has to divide the columns",
     {},
     "false"},

    {Place::kAwq, "duo_scaling", kHonoured, "`awq.duo_scaling`", read_duo},
    {Place::kAwq, "n_grid", kHonoured, "`awq.grid`", read_grid},
    {Place::kAwq, "mappings", kNoted, "scales are folded wherever the model's family allows"},
    {Place::kAwq, "offload_device", kNoted, "--memory-limit says what may be resident"},

    {Place::kGptq, "dampening_frac", kHonoured, "`gptq.damp`", read_damp},
    {Place::kGptq,
     "actorder",
     kHonoured,
     "`gptq.order`: `static`, `act` for group, `none` for null",
     read_order,
     {},
     true},
    {Place::kGptq, "block_size", kNoted,
     "columns are rounded one by one, which gives the codes of any block"},
    {Place::kGptq, "batched_quantization", kNoted, "--memory-limit says what may be resident"},
    {Place::kGptq, "offload_hessians", kNoted, "--memory-limit says what may be resident"},

    {Place::kSmoothQuant, "smoothing_strength", kHonoured, "`smoothquant.alpha`; left out: 0.5",
     read_strength},
    {Place::kSmoothQuant, "algorithm", kHonoured, "`smoothquant`", read_algorithm},
    {Place::kSmoothQuant, "mappings", kNoted, "scales are folded wherever the model's family allows"},
    {Place::kSmoothQuant, "ignore", kNoted, "scales are folded wherever the model's family allows"},
    {Place::kSmoothQuant, "num_calibration_steps", kNoted, "calibration.samples says how many are read"},
    {Place::kSmoothQuant, "calibration_function", kRefused, "leave it out: the model runs as it is"},

    {Place::kGroup, "targets", kHonoured, "`Linear`, names or `re:` patterns", read_group_targets},
    {Place::kGroup, "weights", kHonoured, "codes of weights", read_weights},
    {Place::kGroup, "input_activations", kHonoured, "inputs of the linears", read_inputs},
    {Place::kGroup, "output_activations", kRefused, "write null: outputs of linears are not quantized"},
    {Place::kGroup, "format", kNoted, "the scheme decides how codes are stored"},

    {Place::kWeights, "num_bits", kHonoured, "2 to 8", read_bits},
    {Place::kWeights, "type", kHonoured, "`int`, or `float` of 4 and 8 bits", read_type},
    {Place::kWeights, "symmetric", kHonoured, "without zero points", read_symmetric},
    {Place::kWeights, "strategy", kHonoured,
     "`group`, `channel`, `tensor`; `block` and `tensor_group` of floats", read_strategy},
    {Place::kWeights, "group_size", kHonoured, "columns that share a scale", read_group_size},
    {Place::kWeights, "block_structure", kHonoured, "[128, 128]", read_block},
    {Place::kWeights, "dynamic", kHonoured, "`false`", read_dynamic},
    {Place::kWeights, "actorder", kHonoured, "as GPTQModifier's", read_args_order},
    {Place::kWeights, "observer", kNoted, kObserver},
    {Place::kWeights, "observer_kwargs", kNoted, kObserver},
    {Place::kWeights, "scale_dtype", kNoted, kStored},
    {Place::kWeights, "zp_dtype", kNoted, kStored},

    {Place::kInputs, "num_bits", kHonoured, "8; 4 beside NVFP4 and MXFP4", read_bits},
    {Place::kInputs, "type", kHonoured, "that of the weights", read_type},
    {Place::kInputs, "symmetric", kHonoured, "`true`", read_symmetric},
    {Place::kInputs, "strategy", kHonoured,
     "`token` or `tensor`; `group` beside blocks; that of floats in groups beside those", read_strategy},
    {Place::kInputs, "group_size", kHonoured, "128, beside blocks; that of floats in groups beside those",
     read_group_size},
    {Place::kInputs, "block_structure", kRefused, "leave it out"},
    {Place::kInputs, "dynamic", kHonoured,
     "`true` with `token` or `group`, `false` with `tensor`, `local` with `tensor_group`", read_dynamic},
    {Place::kInputs, "actorder", kRefused, "leave it out"},
    {Place::kInputs, "observer", kNoted,
     "a calibrated scale covers the largest magnitude, or activations.range"},
    {Place::kInputs, "observer_kwargs", kNoted,
     "a calibrated scale covers the largest magnitude, or activations.range"},
    {Place::kInputs, "scale_dtype", kNoted, kStored},
    {Place::kInputs, "zp_dtype", kNoted, kStored},

    {Place::kKvCache, "num_bits", kHonoured, "8", read_bits},
    {Place::kKvCache, "type", kHonoured, "`float` is `fp8`, `int` is `int8`", read_type},
    {Place::kKvCache, "symmetric", kHonoured, "`true`", read_symmetric},
    {Place::kKvCache, "strategy", kHonoured, "`tensor`", read_strategy},
    {Place::kKvCache, "group_size", kRefused, "leave it out"},
    {Place::kKvCache, "block_structure", kRefused, "leave it out"},
    {Place::kKvCache, "dynamic", kHonoured, "`false`", read_dynamic},
    {Place::kKvCache, "actorder", kRefused, "leave it out"},
    {Place::kKvCache, "observer", kNoted, "a scale covers the largest magnitude of all samples"},
    {Place::kKvCache, "observer_kwargs", kNoted, "a scale covers the largest magnitude of all samples"},
    {Place::kKvCache, "scale_dtype", kNoted, "scales of keys and values are stored as FP32"},
    {Place::kKvCache, "zp_dtype", kNoted, "scales of keys and values are stored as FP32"},
});

constexpr std::array kOfAwq = {Place::kAwq, Place::kQuantizer, Place::kModifier};
constexpr std::array kOfGptq = {Place::kGptq, Place::kQuantizer, Place::kModifier};
constexpr std::array kOfSmoothQuant = {Place::kSmoothQuant, Place::kModifier};
constexpr std::array kOfQuantization = {Place::kQuantizer, Place::kModifier};

constexpr auto kModifiers = std::to_array<ModifierRow>({
    {"AWQModifier", "awq", kOfAwq, "`awq`"},
    {"GPTQModifier", "gptq", kOfGptq, "`gptq`"},
    {"QuantizationModifier", "rtn", kOfQuantization, "`rtn`, or the scheme of what stands beside it"},
    {"SmoothQuantModifier", "smoothquant", kOfSmoothQuant, "`smoothquant`"},
    {"LogarithmicEqualizationModifier", {}, {}, "SmoothQuantModifier is read"},
    {"AutoRoundModifier", {}, {}, "GPTQModifier is read"},
    {"SpinQuantModifier",
     {},
     {},
     "of its rotations llmq has R2: rotate: {value: hadamard} in a recipe of its own"},
    {"QuIPModifier", {}, {}, "llmq rotates no inputs while a model runs"},
    {"SparseGPTModifier", {}, {}, "llmq prunes nothing"},
    {"WandaPruningModifier", {}, {}, "llmq prunes nothing"},
    {"MagnitudePruningModifier", {}, {}, "llmq prunes nothing"},
    {"ConstantPruningModifier", {}, {}, "llmq prunes nothing"},
    {"REAPPruningModifier", {}, {}, "llmq prunes nothing"},
});

bool stands_in(const KeyRow& row, std::span<const Place> places) {
  return std::find(places.begin(), places.end(), row.place) != places.end();
}

}  // namespace

std::span<const KeyRow> key_rows() { return kRows; }
std::span<const ModifierRow> modifier_rows() { return kModifiers; }

std::string_view place_name(Place place) {
  switch (place) {
    case Place::kStage:
      return "a stage";
    case Place::kModifier:
      return "every modifier";
    case Place::kQuantizer:
      return "every modifier that quantizes";
    case Place::kAwq:
      return "AWQModifier";
    case Place::kGptq:
      return "GPTQModifier";
    case Place::kSmoothQuant:
      return "SmoothQuantModifier";
    case Place::kGroup:
      return "config_groups";
    case Place::kWeights:
      return "weights";
    case Place::kInputs:
      return "input_activations";
    case Place::kKvCache:
      return "kv_cache_scheme";
  }
  return {};
}

bool read_key(Draft& draft, const Yaml::Member& key, const std::string& name, std::span<const Place> places) {
  const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const KeyRow& one) {
    return one.key == key.key && stands_in(one, places);
  });
  if (row == kRows.end()) return false;
  if (row->answer == Answer::kHonoured) {
    if (!is_null(key.value) || row->null_says) row->read(draft, key);
    return true;
  }
  if (is_nothing(key.value)) return true;
  const std::string path = name.empty() ? key.key : name + "." + key.key;
  if (row->answer == Answer::kRefused)
    refuse(key, fmt::format("{} is not read by llmq", path), std::string(row->words));
  if (!says(key.value, row->same)) draft.note(key, path, row->words);
  return true;
}

void read_keys(Draft& draft, const Yaml& mapping, const std::string& name, std::span<const Place> places) {
  for (const Yaml::Member& m : mapping.members()) {
    if (read_key(draft, m, name, places)) continue;
    std::vector<std::string> known;
    for (const KeyRow& one : kRows)
      if (stands_in(one, places)) known.emplace_back(one.key);
    fail_unknown_key(mapping, m, name + "." + m.key, known);
  }
}

void Draft::note(const Yaml::Member& key, const std::string& name, std::string_view instead) {
  recipe.notes.push_back(fmt::format("{}:{}: {}: {} is not followed: {}", key.line, key.column, name,
                                     shown(key.value), instead));
}

void refuse(const Yaml& node, const std::string& message, const std::string& hint) {
  fail(ErrorKind::kUnsupported, {message, node.file(), place_of(node), hint});
}

void refuse(const Yaml::Member& key, const std::string& message, const std::string& hint) {
  fail(ErrorKind::kUnsupported,
       {message, key.value.file(), fmt::format("{}:{}", key.line, key.column), hint});
}

bool read_flag(const Yaml& node) {
  if (is_text(node, {"True", "TRUE"}) && node.is_plain()) return true;
  if (is_text(node, {"False", "FALSE"}) && node.is_plain()) return false;
  return node.as_bool();
}

bool is_text(const Yaml& node, std::initializer_list<std::string_view> words) {
  return node.kind() == Yaml::Kind::kScalar &&
         std::find(words.begin(), words.end(), node.as_string()) != words.end();
}

}  // namespace llmq::llmcompressor
