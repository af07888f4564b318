// Sources: AutoAWQ's models/_config.py, Transformers' AwqConfig, GPTQModel 7.7 quantization/config.py. What
// AutoRound adds to either: autoround_config.cpp.
#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "model/packed/quantization_readers.h"

namespace llmq {
namespace {

// How the codes were found: nothing of it changes what is stored.
const std::set<std::string_view> kGptqHarmless = {"damp_percent",
                                                  "damp_auto_increment",
                                                  "true_sequential",
                                                  "static_groups",
                                                  "meta",
                                                  "mse",
                                                  "act_group_aware",
                                                  "hyb_act",
                                                  "gptaq",
                                                  "method",
                                                  "model_name_or_path",
                                                  "model_file_base_name",
                                                  "quantizer",
                                                  "tokenizer",
                                                  "dataset",
                                                  "batch_size",
                                                  "pad_token_id",
                                                  "model_seqlen",
                                                  "block_name_to_quantize",
                                                  "modules_in_block_to_quantize",
                                                  "module_name_preceding_first_block",
                                                  "use_cuda_fp16",
                                                  "use_exllama",
                                                  "max_input_length",
                                                  "exllama_config",
                                                  "cache_block_outputs",
                                                  "backend",
                                                  "hessian",
                                                  "fallback",
                                                  "failsafe",
                                                  "foem",
                                                  "gc_mode",
                                                  "offload_to_disk",
                                                  "offload_to_disk_path",
                                                  "pack_impl",
                                                  "mock_quantization",
                                                  "wait_for_submodule_finalizers",
                                                  "desc_act",
                                                  "provider",
                                                  "provenance",
                                                  "llmq"};

// The scheme of `base` with what this object says otherwise.
QuantScheme read_gptq_scheme(ConfigFields& at, const QuantScheme& base) {
  QuantScheme scheme = base;
  scheme.bits = static_cast<int>(at.integer("bits", {1, 64}, base.bits));
  if (scheme.bits != 2 && scheme.bits != 3 && scheme.bits != 4 && scheme.bits != 8)
    at.unsupported("bits", fmt::format("is {}; 2, 3, 4 and 8 are supported", scheme.bits));
  read_group_size(at, base.granularity == Granularity::kChannel ? -1 : base.group_size, scheme);
  scheme.symmetric = at.flag("sym", base.symmetric);
  at.require_neutral("pack_dtype", "int32");
  return scheme;
}

QuantizationTarget read_dynamic(const std::string& key, const Json& value, const QuantScheme& base,
                                const ConfigFields& quantization, PatternBudget& patterns) {
  const std::string where = "quantization_config.dynamic." + key;
  const bool leave = key.starts_with("-:");
  const std::string expression = leave || key.starts_with("+:") ? key.substr(2) : key;
  QuantizationTarget target;
  target.text = key;
  try {
    target.pattern = patterns.make("re:" + expression);
  } catch (const Error& error) {
    fail(ErrorKind::kBadInput, {error.detail().message, quantization.file(), where, {}});
  }
  if (leave) return target;
  ConfigFields fields(value, quantization.file(), where);
  target.scheme = read_gptq_scheme(fields, base);
  fields.refuse_unread(kGptqHarmless);
  return target;
}

}  // namespace

void read_group_size(ConfigFields& at, std::int64_t absent, QuantScheme& scheme) {
  const std::int64_t group = at.integer("group_size", {-1, kMostGroup}, absent);
  if (group == 0) at.bad("group_size", "is 0");
  scheme.granularity = group == -1 ? Granularity::kChannel : Granularity::kGroup;
  if (group > 0) scheme.group_size = static_cast<int>(group);
}

QuantizationTarget read_awq(ConfigFields& quantization) {
  std::string version = quantization.text("version", quantization.text("format", "gemm"));
  std::transform(version.begin(), version.end(), version.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (version != "gemm")
    quantization.unsupported("version", fmt::format("the AWQ version \"{}\" is not known here", version),
                             "gemm is");
  QuantScheme scheme;
  scheme.bits = static_cast<int>(quantization.integer("bits", {1, 64}, 4));
  if (scheme.bits != 4)
    quantization.unsupported("bits", fmt::format("is {}; the gemm version is known for 4 only", scheme.bits));
  read_group_size(quantization, 128, scheme);
  scheme.symmetric = !quantization.flag("zero_point", true);
  quantization.require_neutral("desc_act", false);
  quantization.require_neutral("lm_head", false);
  refuse_unless_empty(quantization, "dynamic", "a per-module scheme");
  quantization.require_neutral("pack_dtype", "int32");
  pass_over_autoround(quantization);
  quantization.refuse_unread({"modules_to_not_convert", "backend", "do_fuse", "fuse_max_seq_len",
                              "modules_to_fuse", "exllama_config", "checkpoint_format", "method", "meta",
                              "sym", "true_sequential", "static_groups", "damp_percent",
                              "damp_auto_increment", "provider", "provenance", "llmq"});
  return {"Linear", std::nullopt, scheme};
}

PackedFormat gptq_format(ConfigFields& quantization) {
  const std::string format = quantization.text("checkpoint_format", quantization.text("format", "gptq"));
  if (quantization.text("format", format) != format)
    quantization.bad("format", fmt::format("is \"{}\", and checkpoint_format \"{}\"",
                                           quantization.text("format"), format));
  if (format == "gptq") return PackedFormat::kGptq;
  if (format == "gptq_v2") return PackedFormat::kGptqV2;
  quantization.unsupported("checkpoint_format", fmt::format("the format \"{}\" is not known here", format),
                           "gptq and gptq_v2 are");
}

// {"meta": {"quantizer": ["gptqmodel:7.7.0"]}}; a string in place of the list too.
bool names_gptqmodel(ConfigFields& quantization) {
  const Json* meta = quantization.find("meta");
  const Json* quantizer = meta == nullptr ? nullptr : meta->find("quantizer");
  if (quantizer == nullptr) return false;
  const auto named = [](const Json& name) {
    return name.is_string() && name.as_string().starts_with("gptqmodel");
  };
  return quantizer->is_array() ? std::any_of(quantizer->items().begin(), quantizer->items().end(), named)
                               : named(*quantizer);
}

std::vector<QuantizationTarget> read_gptq(ConfigFields& quantization, PatternBudget& patterns) {
  QuantScheme unsaid;  // what AutoGPTQ's config takes for granted
  unsaid.symmetric = true;
  const QuantScheme base = read_gptq_scheme(quantization, unsaid);
  std::vector<QuantizationTarget> targets;
  if (const Json* dynamic = quantization.find("dynamic")) {
    if (!dynamic->is_object())
      quantization.bad("dynamic", fmt::format("expected an object, found {}", dynamic->kind()));
    for (const auto& [key, value] : dynamic->members())
      targets.push_back(read_dynamic(key, value, base, quantization, patterns));
  }
  targets.push_back({"Linear", std::nullopt, base});
  quantization.require_neutral("lm_head", false);
  quantization.require_neutral("is_marlin_format", false);
  pass_over_autoround(quantization);
  quantization.refuse_unread(kGptqHarmless);
  return targets;
}

}  // namespace llmq
