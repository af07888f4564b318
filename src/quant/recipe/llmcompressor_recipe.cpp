// llm-compressor recipes as they are: stages of modifiers, turned into llmq's Recipe.
//
//   [<name>_stage:] [<name>_modifiers:] {<Name>Modifier: {...}, ...}       order = order of application
//
// Every key is one that llm-compressor 0.14 has; keys that change nothing here are listed in Recipe::notes,
// keys that would change the result and cannot be honoured are refused. Sources: llmcompressor modifiers'
// fields, compressed_tensors quant_scheme.py and quant_args.py.
#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "base/error.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq {
namespace {

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

bool any_of(const std::string& key, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* k) { return key == k; });
}

// These recipes are read by PyYAML elsewhere, where True is as good as true.
bool read_flag(const Yaml& node) {
  if (node.kind() == Yaml::Kind::kScalar && node.is_plain()) {
    if (any_of(node.as_string(), {"True", "TRUE"})) return true;
    if (any_of(node.as_string(), {"False", "FALSE"})) return false;
  }
  return node.as_bool();
}

[[noreturn]] void refuse(const Yaml& node, const std::string& message, const std::string& hint = {}) {
  fail(ErrorKind::kUnsupported, {message, node.file(), place_of(node), hint});
}

class Reader {
 public:
  explicit Reader(Recipe& recipe) : recipe_(recipe) { recipe_.ignore.clear(); }

  void root(const Yaml& node) {
    for (const Yaml::Member& m : node.members()) {
      if (ends_with(m.key, "_stage") || ends_with(m.key, "_modifiers"))
        root(m.value);
      else if (ends_with(m.key, "Modifier"))
        modifier(m);
      else if (m.key == "run_type")
        note(m);
      else
        fail_unknown_key(node, m, m.key, {"<name>_stage", "<name>_modifiers", "<Name>Modifier"});
    }
  }

  void finish(const Yaml& node) {
    if (recipe_.methods.empty()) node.fail_here("the recipe holds no modifier");
    // In 0.14 AWQModifier is a transform in front of a quantizer; with plain rounding behind it the pair is
    // llmq's awq.
    std::vector<std::string>& methods = recipe_.methods;
    if (methods.size() == 2 && methods[0] == "awq" && methods[1] == "rtn") methods.pop_back();
  }

 private:
  void note(const Yaml::Member& m) {
    if (is_null(m.value)) return;
    recipe_.notes.push_back(std::to_string(m.line) + ":" + std::to_string(m.column) + ": '" + m.key +
                            "' has no effect here");
  }

  void modifier(const Yaml::Member& m) {
    if (m.key == "AWQModifier")
      recipe_.methods.push_back("awq");
    else if (m.key == "GPTQModifier")
      recipe_.methods.push_back("gptq");
    else if (m.key == "SmoothQuantModifier") {
      recipe_.methods.push_back("smoothquant");
      recipe_.smoothquant.alpha = 0.5;  // where it says nothing
    } else if (m.key == "QuantizationModifier")
      recipe_.methods.push_back("rtn");
    else
      fail(ErrorKind::kUnsupported,
           {"modifier '" + m.key + "' is not in this version", m.value.file(),
            std::to_string(m.line) + ":" + std::to_string(m.column),
            "known are AWQModifier, GPTQModifier, SmoothQuantModifier and QuantizationModifier"});
    if (is_null(m.value)) return;
    for (const Yaml::Member& key : m.value.members()) {
      const bool taken = common(key) ||
                         (m.key == "SmoothQuantModifier" ? smoothquant(key) : quantization(key)) ||
                         (m.key == "AWQModifier" && awq(key)) || (m.key == "GPTQModifier" && gptq(key));
      if (!taken) fail_unknown_key(m.value, key, m.key + "." + key.key, known(m.key));
    }
    if (m.key != "SmoothQuantModifier") settle_targets(m.value);
  }

  static std::vector<std::string> known(const std::string& modifier) {
    if (modifier == "SmoothQuantModifier")
      return {"smoothing_strength", "mappings", "ignore", "algorithm", "num_calibration_steps"};
    std::vector<std::string> keys = {"targets", "ignore", "scheme", "config_groups", "kv_cache_scheme"};
    if (modifier == "AWQModifier") keys.insert(keys.end(), {"n_grid", "duo_scaling", "mappings"});
    if (modifier == "GPTQModifier") keys.insert(keys.end(), {"dampening_frac", "block_size", "actorder"});
    return keys;
  }

  bool common(const Yaml::Member& m) {
    if (!any_of(m.key, {"index", "group", "start", "end", "update", "requires_calibration_data",
                        "sequential_targets"}))
      return false;
    note(m);
    return true;
  }

  bool smoothquant(const Yaml::Member& m) {
    if (m.key == "smoothing_strength")
      recipe_.smoothquant.alpha = read_number(m.value, 0, 1);
    else if (m.key == "algorithm")
      read_word(m.value, {"smoothquant", "log_equalization"});
    else if (any_of(m.key, {"mappings", "ignore", "num_calibration_steps", "calibration_function"}))
      note(m);
    else
      return false;
    return true;
  }

  bool awq(const Yaml::Member& m) {
    if (m.key == "n_grid")
      recipe_.awq.grid = static_cast<int>(read_integer(m.value, 1, 1000));
    else if (m.key == "duo_scaling") {
      const bool both = m.value.kind() == Yaml::Kind::kScalar && m.value.as_string() == "both";
      recipe_.awq.duo_scaling = both                 ? AwqOptions::Duo::kBoth
                                : read_flag(m.value) ? AwqOptions::Duo::kYes
                                                     : AwqOptions::Duo::kNo;
    } else if (any_of(m.key, {"mappings", "offload_device", "model_config"}))
      note(m);
    else
      return false;
    return true;
  }

  bool gptq(const Yaml::Member& m) {
    if (m.key == "dampening_frac")
      read_number(m.value, 0, 1);
    else if (m.key == "block_size")
      read_integer(m.value, 1, 1 << 20);
    else if (m.key == "actorder") {
      if (!is_null(m.value))
        read_word(m.value, {"group", "weight", "static", "dynamic", "true", "True", "false", "False"});
    } else if (any_of(m.key, {"offload_hessians", "batched_quantization"}))
      note(m);
    else
      return false;
    return true;
  }

  // Keys of the quantization mixin.
  bool quantization(const Yaml::Member& m) {
    if (m.key == "targets")
      targets_ = read_names(m.value);
    else if (m.key == "ignore") {
      if (!is_null(m.value))
        for (std::string& name : read_names(m.value)) recipe_.ignore.push_back(std::move(name));
    } else if (m.key == "scheme")
      scheme(m.value);
    else if (m.key == "config_groups")
      config_groups(m.value);
    else if (m.key == "kv_cache_scheme") {
      if (!is_null(m.value))
        refuse(m.value, "a quantized KV cache scheme is not in this version", "write kv_cache_scheme: null");
    } else if (any_of(m.key, {"weight_observer", "input_observer", "output_observer", "observer",
                              "bypass_divisibility_checks"}))
      note(m);
    else
      return false;
    return true;
  }

  void scheme(const Yaml& node) {
    if (is_null(node)) return;
    if (node.kind() != Yaml::Kind::kMapping) {
      groups_.push_back({preset(node), {}});
      return;
    }
    for (const Yaml::Member& m : node.members())
      groups_.push_back({preset_name(m.key, m.value), read_names(m.value)});
  }

  static SchemeRequest preset(const Yaml& node) { return preset_name(node.as_string(), node); }

  static SchemeRequest preset_name(std::string name, const Yaml& at) {
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (name == "INT8") name = "W8A8";
    if (name == "FP8") return parse_scheme("fp8_static");
    if (name == "FP8_DYNAMIC") return parse_scheme("fp8");
    if (name == "FP8_BLOCK") return parse_scheme("fp8_block");
    SchemeRequest request;
    request.granularity = Granularity::kGroup;
    request.group_size = 128;
    request.symmetric = true;
    const bool asymmetric = name == "W4A16_ASYM";
    if (asymmetric) name = "W4A16", request.symmetric = false;
    const bool integer = name.size() >= 4 && name.size() <= 5 && name[0] == 'W' && name[1] >= '2' &&
                         name[1] <= '8' && name[2] == 'A' &&
                         (name.substr(3) == "16" || name.substr(3) == "8" || name.substr(3) == "4");
    if (!integer)
      refuse(at, "preset '" + name + "' is not in this version",
             "integer presets such as W4A16, W4A16_ASYM and W8A8 are, and FP8, FP8_DYNAMIC and FP8_BLOCK");
    request.bits = name[1] - '0';
    request.activation_bits = std::stoi(name.substr(3));
    if (request.bits == 8 && request.activation_bits == 8)
      request.granularity = Granularity::kChannel, request.group_size.reset();
    return request;
  }

  void config_groups(const Yaml& node) {
    for (const Yaml::Member& group : node.members()) {
      Group entry;
      for (const Yaml::Member& m : group.value.members()) {
        if (m.key == "targets")
          entry.targets = read_names(m.value);
        else if (m.key == "weights")
          weights(m.value, entry.scheme);
        else if (m.key == "input_activations")
          activations(m.value, entry.scheme);
        else if (m.key == "output_activations") {
          if (!is_null(m.value)) refuse(m.value, "quantized output activations are not in this version");
        } else if (m.key == "format")
          note(m);
        else
          fail_unknown_key(group.value, m, group.key + "." + m.key,
                           {"targets", "weights", "input_activations", "output_activations", "format"});
      }
      if (group.value.find("weights") == nullptr || is_null(*group.value.find("weights")))
        refuse(group.value, "config group '" + group.key + "' quantizes no weights");
      groups_.push_back(std::move(entry));
    }
  }

  void weights(const Yaml& node, SchemeRequest& scheme) {
    if (is_null(node)) return;
    scheme.symmetric = true;  // compressed-tensors' defaults
    scheme.bits = 8;
    std::string strategy;
    for (const Yaml::Member& m : node.members()) {
      if (m.key == "num_bits")
        scheme.bits = static_cast<int>(read_integer(m.value, 2, 8));
      else if (m.key == "type") {
        if (m.value.as_string() != "int")
          refuse(m.value, "weights of type '" + m.value.as_string() + "' are not in this version",
                 "write type: int");
      } else if (m.key == "symmetric")
        scheme.symmetric = read_flag(m.value);
      else if (m.key == "strategy") {
        if (!is_null(m.value)) strategy = read_word(m.value, {"group", "channel", "tensor"});
      } else if (m.key == "group_size") {
        if (!is_null(m.value)) scheme.group_size = static_cast<int>(read_integer(m.value, -1, 1 << 20));
      } else if (m.key == "dynamic") {
        if (read_flag(m.value))
          refuse(m.value, "dynamic weights are not in this version", "write dynamic: false");
      } else if (any_of(m.key, {"block_structure", "actorder", "observer", "observer_kwargs", "scale_dtype",
                                "zp_dtype"}))
        note(m);
      else
        fail_unknown_key(
            node, m, "weights." + m.key,
            {"num_bits", "type", "symmetric", "strategy", "group_size", "dynamic", "actorder", "observer"});
    }
    if (scheme.group_size && *scheme.group_size == 0)
      node.fail_here("group_size 0 means nothing", "write a positive size, or strategy: channel");
    const bool grouped = scheme.group_size && *scheme.group_size > 0;
    if (strategy.empty()) strategy = grouped ? "group" : scheme.group_size ? "channel" : "tensor";
    if (strategy == "group" && !grouped)
      node.fail_here("strategy group needs a group_size", "write group_size: 128");
    if (strategy != "group" && grouped) node.fail_here("strategy " + strategy + " has no group_size");
    if (!grouped) scheme.group_size.reset();
    scheme.granularity = strategy == "group"     ? Granularity::kGroup
                         : strategy == "channel" ? Granularity::kChannel
                                                 : Granularity::kTensor;
  }

  void activations(const Yaml& node, SchemeRequest& scheme) {
    if (is_null(node)) return;
    scheme.activation_bits = 8;
    bool dynamic = false;  // compressed-tensors' defaults
    for (const Yaml::Member& m : node.members()) {
      if (m.key == "num_bits")
        scheme.activation_bits = static_cast<int>(read_integer(m.value, 4, 16));
      else if (m.key == "type") {
        if (m.value.as_string() != "int")
          refuse(m.value, "activations of type '" + m.value.as_string() + "' are not in this version");
      } else if (m.key == "symmetric") {
        if (!read_flag(m.value))
          refuse(m.value, "asymmetric activations are not in this version", "write symmetric: true");
      } else if (m.key == "dynamic")
        dynamic = read_flag(m.value);
      else if (any_of(m.key, {"strategy", "group_size", "block_structure", "actorder", "observer",
                              "observer_kwargs", "scale_dtype", "zp_dtype"}))
        note(m);
      else
        fail_unknown_key(node, m, "input_activations." + m.key,
                         {"num_bits", "type", "symmetric", "strategy", "dynamic"});
    }
    scheme.static_activations = scheme.activation_bits != 16 && !dynamic;
  }

  // One group is the recipe's scheme; several become overrides, each for its own targets.
  void settle_targets(const Yaml& node) {
    const auto names_only = [](std::vector<std::string> targets) {
      targets.erase(std::remove(targets.begin(), targets.end(), "Linear"), targets.end());
      return targets;
    };
    if (groups_.size() == 1) {
      recipe_.scheme = groups_[0].scheme;
      recipe_.targets = names_only(groups_[0].targets.empty() ? targets_ : groups_[0].targets);
    }
    for (std::size_t g = 0; g < groups_.size() && groups_.size() > 1; ++g) {
      const std::vector<std::string> targets = groups_[g].targets;
      const std::vector<std::string> names = names_only(targets);
      if (targets.empty()) node.fail_here("with several groups each needs its targets");
      if (names.size() < targets.size()) recipe_.scheme = groups_[g].scheme, every_ = true;
      for (const std::string& name : names) {
        recipe_.overrides.push_back({name, groups_[g].scheme});
        recipe_.targets.push_back(name);
      }
    }
    if (every_) recipe_.targets.clear();
    groups_.clear();
    targets_.clear();
  }

  struct Group {
    SchemeRequest scheme;
    std::vector<std::string> targets;
  };
  Recipe& recipe_;
  std::vector<std::string> targets_;
  std::vector<Group> groups_;
  bool every_ = false;
};

}  // namespace

bool is_llmcompressor_recipe(const Yaml& root) {
  return std::any_of(root.members().begin(), root.members().end(), [](const Yaml::Member& m) {
    return ends_with(m.key, "_stage") || ends_with(m.key, "_modifiers") || ends_with(m.key, "Modifier");
  });
}

void read_llmcompressor_recipe(const Yaml& root, Recipe& recipe) {
  Reader reader(recipe);
  reader.root(root);
  reader.finish(root);
}

}  // namespace llmq
