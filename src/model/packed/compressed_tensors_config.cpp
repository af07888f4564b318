// Sources: compressed_tensors.quantization (quant_config.py, quant_args.py, lifecycle/apply.py,
// utils/match.py, 0.19-0.20).
#include <algorithm>
#include <cctype>
#include <map>

#include "base/error.h"
#include "model/packed/quantization_readers.h"

namespace llmq {
namespace {

QuantizationTarget make_target(const ConfigFields& at, const std::string& key, const Json& item,
                               PatternBudget& patterns) {
  if (!item.is_string()) at.bad(key, fmt::format("expected strings, found {}", item.kind()));
  QuantizationTarget target;
  target.text = item.as_string();
  if (target.text.rfind("re:", 0) != 0) return target;
  try {
    target.pattern = patterns.make(target.text);
  } catch (const Error& error) {
    at.bad(key, error.detail().message);
  }
  return target;
}

// Exact names first, then regular expressions in the order of their text, then the class: match_targets of
// compressed-tensors.
int precedence(const QuantizationTarget& target) {
  return target.pattern ? 1 : target.text == "Linear" ? 2 : 0;
}

bool says_nothing(const Json* value) {
  return value == nullptr || (value->is_object() && value->members().empty()) ||
         (value->is_array() && value->items().empty());
}

// Floats in groups have scales of two levels, or exponents, which show in their type.
void read_float_groups(ConfigFields& weights, const QuantScheme& scheme, const std::string& strategy) {
  if (scheme.weight_type == WeightType::kFloat4 && scheme.granularity != Granularity::kGroup)
    weights.unsupported("strategy", fmt::format("floats of 4 bits by {} are not supported", strategy),
                        "tensor_group and group are");
  if (scheme.weight_type == WeightType::kInteger || strategy != "group") return;
  if (scheme.group_size != kMxGroup)
    weights.unsupported("group_size",
                        fmt::format("is {}; floats in groups of {} are supported, and of 4 bits "
                                    "by tensor_group in groups of {}",
                                    scheme.group_size, kMxGroup, kNvfp4Group));
  const std::string type = weights.text("scale_dtype", "");
  const bool may_be_open = scheme.weight_type == WeightType::kFloat4;  // as compressed-tensors 0.13 left it
  if (type != "torch.uint8" && !(type.empty() && may_be_open))
    weights.unsupported("scale_dtype", fmt::format("is \"{}\"; floats in groups of {} have exponents, "
                                                   "torch.uint8",
                                                   type, kMxGroup));
}

void read_strategy(ConfigFields& weights, QuantScheme& scheme) {
  const std::int64_t group = weights.integer("group_size", {-1, kMostGroup}, 0);
  // Absent strategies are inferred from the group size, as QuantizationArgs does.
  const char* inferred = group > 0 ? "group" : group == -1 ? "channel" : "tensor";
  const std::string strategy = weights.text("strategy", inferred);
  if (strategy == "tensor_group") {
    scheme.granularity = Granularity::kGroup;
    scheme.group_size = static_cast<int>(group);
    if (scheme.weight_type != WeightType::kFloat4 || group != kNvfp4Group)
      weights.unsupported(
          "strategy",
          fmt::format("\"tensor_group\" is read of floats of {} bits in groups of {}", 4, kNvfp4Group));
  } else if (strategy == "group") {
    if (group <= 0)
      weights.bad("group_size", fmt::format("is {}; the strategy \"group\" needs a size above 0", group));
    scheme.granularity = Granularity::kGroup;
    scheme.group_size = static_cast<int>(group);
  } else if (strategy == "channel") {
    scheme.granularity = Granularity::kChannel;
  } else if (strategy == "tensor") {
    scheme.granularity = Granularity::kTensor;
  } else if (strategy == "block" && scheme.weight_type == WeightType::kFloat8) {
    scheme.granularity = Granularity::kBlock;
    weights.require_neutral("block_structure", Json::array({kFloat8Block, kFloat8Block}));
    if (weights.find("block_structure") == nullptr)
      weights.bad("block_structure", "is missing; the strategy \"block\" needs it");
  } else {
    weights.unsupported("strategy", fmt::format("the strategy \"{}\" is not known here", strategy),
                        "group, channel and tensor are, and block for float8");
  }
  read_float_groups(weights, scheme, strategy);
  if (strategy != "block") weights.require_neutral("block_structure", nullptr);
  if (strategy != "group" && strategy != "tensor_group" && group > 0)
    weights.bad("group_size", fmt::format("is {}, but the strategy is \"{}\"", group, strategy));
  if (strategy == "tensor" && !scheme.symmetric)
    weights.unsupported("symmetric", "is false with the strategy \"tensor\", which is not supported");
}

QuantScheme read_weights(ConfigFields& weights) {
  QuantScheme scheme;
  scheme.bits = static_cast<int>(weights.integer("num_bits", {1, 64}, 8));
  const std::string type = weights.text("type", "int");
  if (type != "int" && type != "float")
    weights.unsupported("type", fmt::format("weights of type \"{}\" are not supported", type),
                        "int and float are");
  if (type == "float") scheme.weight_type = scheme.bits == 4 ? WeightType::kFloat4 : WeightType::kFloat8;
  if (type == "float" && scheme.bits != 8 && scheme.bits != 4)
    weights.unsupported("num_bits", fmt::format("is {}; floats of 4 and 8 bits are supported", scheme.bits));
  if (scheme.bits < 2 || scheme.bits > 8)
    weights.unsupported("num_bits", fmt::format("is {}; 2 to 8 are supported", scheme.bits));
  scheme.symmetric = weights.flag("symmetric", true);
  if (type == "float" && !scheme.symmetric)
    weights.unsupported("symmetric", "is false, and floats have no zero point");
  read_strategy(weights, scheme);
  if (const Json* order = weights.find("actorder")) {
    const bool known =
        (order->is_bool() && !order->as_bool()) ||
        (order->is_string() &&
         (order->as_string() == "weight" || order->as_string() == "static" || order->as_string() == "group"));
    if (!known)
      weights.unsupported("actorder", fmt::format("is {}, which is not known here", order->dump()),
                          "group, weight and static are");
  }
  weights.require_neutral("dynamic", false);
  // How the scales were found, and types that the stored tensors carry themselves.
  weights.refuse_unread({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
  return scheme;
}

// What is passed over, as no number depends on it.
void finish_inputs(ConfigFields& inputs) {
  inputs.require_neutral("actorder", nullptr);
  inputs.require_neutral("block_structure", nullptr);
  inputs.refuse_unread({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
}

// input_activations beside floats in groups: the same floats in groups of as many, with scales that come as
// the numbers do.
void read_float_inputs(ConfigFields& inputs, QuantScheme& scheme) {
  const bool two_levels = scheme.scale_form() == ScaleForm::kTwoLevel;
  const std::string weights = scheme.text();
  const auto want = [&](const char* key, const Json& wanted) {
    const Json* const found = inputs.find(key);
    if (found == nullptr || !(*found == wanted))
      inputs.unsupported(key,
                         fmt::format("is {}, and inputs beside {} have {}",
                                     found == nullptr ? "missing" : found->dump(), weights, wanted.dump()));
  };
  want("num_bits", scheme.bits);
  want("type", "float");
  want("strategy", two_levels ? "tensor_group" : "group");
  want("group_size", scheme.group_size);
  want("dynamic", two_levels ? Json("local") : Json(true));
  if (!inputs.flag("symmetric", true))
    inputs.unsupported("symmetric", "is false; symmetric inputs are supported");
  scheme.activation_bits = scheme.bits;
  scheme.activation_scale = ActivationScale::kTokenGroup;
  finish_inputs(inputs);
}

// input_activations: 8 bits of the weights' type, symmetric; a scale per token, one per tensor that the
// checkpoint holds, or with float8 blocks one per group of a token.
void read_inputs(ConfigFields& inputs, QuantScheme& scheme) {
  if (scheme.scale_form() != ScaleForm::kNumber) return read_float_inputs(inputs, scheme);
  const std::int64_t bits = inputs.integer("num_bits", {1, 64}, 8);
  if (bits != 8) inputs.unsupported("num_bits", fmt::format("is {}; 8 bits are supported", bits));
  const std::string type = inputs.text("type", "int");
  const bool float8 = scheme.weight_type == WeightType::kFloat8;
  if (type != (float8 ? "float" : "int"))
    inputs.unsupported(
        "type", fmt::format("inputs of type \"{}\" beside weights of type \"{}\" are not supported", type,
                            float8 ? "float" : "int"));
  if (!inputs.flag("symmetric", true))
    inputs.unsupported("symmetric", "is false; symmetric inputs are supported");
  if (const Json* dynamic = inputs.find("dynamic"); dynamic != nullptr && !dynamic->is_bool())
    inputs.unsupported("dynamic", fmt::format("is {}; true and false are supported", dynamic->dump()));
  const bool dynamic = inputs.flag("dynamic", false);
  const std::int64_t group = inputs.integer("group_size", {-1, kMostGroup}, 0);
  const std::string strategy = inputs.text("strategy", group > 0 ? "group" : "tensor");
  const bool blocks = scheme.granularity == Granularity::kBlock;
  if (strategy == "token" && dynamic)
    scheme.activation_scale = ActivationScale::kToken;
  else if (strategy == "tensor" && !dynamic)
    scheme.activation_scale = ActivationScale::kTensor;
  else if (strategy == "group" && dynamic && blocks && group == kFloat8Block)
    scheme.activation_scale = ActivationScale::kTokenGroup;
  else
    inputs.unsupported("strategy",
                       fmt::format("the strategy \"{}\", {}, is not supported", strategy,
                                   dynamic ? "dynamic" : "not dynamic"),
                       "dynamic per token and static per tensor are, and groups of 128 beside float8 blocks");
  scheme.activation_bits = 8;
  finish_inputs(inputs);
}

// Which of them a module's weights are stored in shows in their tensors.
bool known_format(const std::string& format) {
  return format == "pack-quantized" || format == "int-quantized" || format == "float-quantized" ||
         format == "naive-quantized" || format == "nvfp4-pack-quantized" ||
         format == "mxfp4-pack-quantized" || format == "mxfp8-quantized";
}
constexpr const char* kKnownFormats =
    "pack-quantized, int-quantized, float-quantized, naive-quantized, nvfp4-pack-quantized, "
    "mxfp4-pack-quantized and mxfp8-quantized are";

// Targets of one entry of config_groups with their scheme; none where the group quantizes no weights.
std::vector<QuantizationTarget> read_group(const std::string& name, const Json& value,
                                           const std::string& file, PatternBudget& patterns) {
  const std::string where = "quantization_config.config_groups." + name;
  if (value.is_array())
    fail(ErrorKind::kUnsupported, {"names a preset scheme instead of spelling it out", file, where,
                                   "write the group's weights and targets"});
  ConfigFields group(value, file, where);
  refuse_unless_empty(group, "output_activations", "quantization of activations");
  const std::string format = group.text("format", "pack-quantized");
  if (!known_format(format))
    group.unsupported("format", fmt::format("the format \"{}\" is not known here", format), kKnownFormats);
  std::vector<QuantizationTarget> targets = read_targets(group, "targets", patterns);
  const Json* weights_json = group.find("weights");
  const Json* inputs_json = group.find("input_activations");
  group.refuse_unread({});
  if (weights_json == nullptr) return {};
  ConfigFields weights(*weights_json, file, where + ".weights");
  QuantScheme scheme = read_weights(weights);
  if (!says_nothing(inputs_json)) {
    ConfigFields inputs(*inputs_json, file, where + ".input_activations");
    read_inputs(inputs, scheme);
  }
  for (QuantizationTarget& target : targets) target.scheme = scheme;
  return targets;
}

}  // namespace

void refuse_unless_empty(ConfigFields& at, const char* key, const char* what) {
  if (!says_nothing(at.find(key))) at.unsupported(key, fmt::format("{} is not supported", what));
}

std::vector<QuantizationTarget> read_targets(ConfigFields& at, const std::string& key,
                                             PatternBudget& patterns) {
  std::vector<QuantizationTarget> targets;
  const Json* list = at.find(key);
  if (list == nullptr) return targets;
  if (!list->is_array()) at.bad(key, fmt::format("expected an array, found {}", list->kind()));
  for (const Json& item : list->items()) targets.push_back(make_target(at, key, item, patterns));
  return targets;
}

std::vector<QuantizationTarget> read_groups(ConfigFields& quantization, PatternBudget& patterns) {
  const Json* groups = quantization.find("config_groups");
  if (groups == nullptr || !groups->is_object())
    quantization.bad("config_groups", "expected an object of groups");
  std::map<std::string, QuantizationTarget>
      by_text;  // a later group's target replaces an equal one of an earlier group
  for (const auto& [name, value] : groups->members())
    for (QuantizationTarget& target : read_group(name, value, quantization.file(), patterns))
      by_text.insert_or_assign(target.text, std::move(target));
  std::vector<QuantizationTarget> targets;
  targets.reserve(by_text.size());
  for (auto& [text, target] : by_text) targets.push_back(std::move(target));
  std::stable_sort(targets.begin(), targets.end(),
                   [](const auto& a, const auto& b) { return precedence(a) < precedence(b); });
  return targets;
}

// Keys and values with one static symmetric scale per layer; anything else is not known here.
std::optional<KvCacheType> read_kv_cache(ConfigFields& quantization) {
  const Json* json = quantization.find("kv_cache_scheme");
  if (says_nothing(json)) return std::nullopt;
  ConfigFields scheme(*json, quantization.file(), "quantization_config.kv_cache_scheme");
  scheme.require_neutral("num_bits", 8);
  scheme.require_neutral("strategy", "tensor");
  scheme.require_neutral("dynamic", false);
  scheme.require_neutral("symmetric", true);
  scheme.require_neutral("group_size", nullptr);
  scheme.require_neutral("block_structure", nullptr);
  const std::string type = scheme.text("type", "int");
  if (type != "float" && type != "int")
    scheme.unsupported("type", fmt::format("a KV cache of type \"{}\" is not known here", type),
                       "float and int are");
  scheme.refuse_unread({"actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
  return type == "float" ? KvCacheType::kFloat8 : KvCacheType::kInt8;
}

namespace {

constexpr const char* kTransforms = "transform_config";

// What was multiplied into the weights is a note for people; anything else is a step of the forward pass.
void check_transform(ConfigFields& quantization, const std::string& name, const Json& scheme) {
  const std::string key = fmt::format("{}.config_groups.{}", kTransforms, name);
  const Json* const apply = scheme.is_object() ? scheme.find("apply") : nullptr;
  if (apply == nullptr || !apply->is_array()) quantization.bad(key, "has no list `apply` of where it is");
  for (const Json& one : apply->items()) {
    const Json* const location = one.is_object() ? one.find("location") : nullptr;
    if (location == nullptr || !location->is_string())
      quantization.bad(key + ".apply", "names no location", "weight_input and weight_output are read");
    if (*location != Json("weight_input") && *location != Json("weight_output"))
      quantization.unsupported(key + ".apply",
                               fmt::format("a transform at \"{}\" is not in the weights already, and is not "
                                           "supported",
                                           location->as_string()),
                               "weight_input and weight_output are read");
  }
}

void check_transforms(ConfigFields& quantization) {
  const Json* const json = quantization.find(kTransforms);
  if (says_nothing(json)) return;
  const Json* const groups = json->is_object() ? json->find("config_groups") : nullptr;
  if (groups == nullptr || !groups->is_object())
    quantization.bad(kTransforms, "is no object with `config_groups`, an object of transforms");
  for (const auto& [key, value] : json->members())
    if (key != "config_groups")
      quantization.unsupported(fmt::format("{}.{}", kTransforms, key), "is not known here",
                               "config_groups is read");
  for (const auto& [name, scheme] : groups->members()) check_transform(quantization, name, scheme);
}

}  // namespace

const Json* told_transforms(const Json& config) {
  const auto member = [](const Json* of, const char* key) {
    const Json* const found = of != nullptr ? of->find(key) : nullptr;
    return found != nullptr && found->is_object() && !found->members().empty() ? found : nullptr;
  };
  const Json* const told = member(member(&config, "quantization_config"), kTransforms);
  return member(told, "config_groups") != nullptr ? told : nullptr;
}

void check_compressed_tensors(ConfigFields& quantization) {
  const std::string format = quantization.text("format", "pack-quantized");
  if (!known_format(format) && format != "mixed-precision")
    quantization.unsupported("format", fmt::format("the format \"{}\" is not known here", format),
                             kKnownFormats);
  const std::string status = quantization.text("quantization_status", "compressed");
  if (status != "compressed" && status != "frozen")
    quantization.unsupported("quantization_status",
                             fmt::format("the status \"{}\" is not known here", status), "compressed is");
  check_transforms(quantization);
  refuse_unless_empty(quantization, "moe_sparsity_config", "expert sparsity");
  if (const Json* sparsity = quantization.find("sparsity_config"); !says_nothing(sparsity)) {
    ConfigFields fields(*sparsity, quantization.file(), "quantization_config.sparsity_config");
    if (fields.text("format", "dense") != "dense")
      fields.unsupported("format", "sparse weights are not supported");
  }
  // Where it came from; compressed-tensors ignores what it does not know at this level.
  quantization.refuse_unread(
      {"version", "global_compression_ratio", "provider", "provenance", "llmq", "run_compressed"});
}

}  // namespace llmq
