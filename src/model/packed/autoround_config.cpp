// AutoRound's own container, and what it adds to AutoAWQ's and GPTQ's. Sources: PyPI auto-round 0.16.1,
// export/export_to_{autoround,autogptq,awq}/export.py, inference/{backend,convert_model,utils}.py,
// schemes.py.
//
//   quant_method    "auto-round", in config.json's quantization_config
//   packing_format  auto_round:auto_gptq: GPTQ v1 without g_idx; auto_round:auto_awq: AutoAWQ gemm;
//                   auto_round, auto_round:gptqmodel: GPTQ v2
//   extra_config    modules with another scheme or none (bits above 8): by name, else by a regular
//                   expression found anywhere in it, the first in the file's order
#include "base/error.h"
#include "model/packed/quantization_readers.h"

namespace llmq {
namespace {

struct PackingFormat {
  std::string_view name;
  PackedFormat format;
};
constexpr PackingFormat kPackingFormats[] = {{"auto_round:auto_gptq", PackedFormat::kGptq},
                                             {"auto_round:auto_awq", PackedFormat::kAwqGemm},
                                             {"auto_round:gptqmodel", PackedFormat::kGptqV2},
                                             {"auto_round", PackedFormat::kGptqV2}};
constexpr std::int64_t kWidestCode = 8;  // more bits stand for a module that is left dense

// What a scheme needs of `at`, taking `base` for granted; none: left dense.
std::optional<QuantScheme> read_autoround_scheme(ConfigFields& at, const QuantScheme& base,
                                                 PackedFormat format) {
  const std::int64_t bits = at.integer("bits", {2, 64}, base.bits);
  if (bits > kWidestCode) return std::nullopt;
  if (format == PackedFormat::kAwqGemm && bits != 4)
    at.unsupported("bits", fmt::format("is {}; auto_round:auto_awq is known for 4 only", bits));
  QuantScheme scheme = base;
  scheme.bits = static_cast<int>(bits);
  read_group_size(at, base.granularity == Granularity::kChannel ? -1 : base.group_size, scheme);
  scheme.symmetric = at.flag("sym", base.symmetric);
  return scheme;
}

QuantizationTarget read_extra(const std::string& name, const Json& value, const QuantScheme& base,
                              PackedFormat format, const ConfigFields& quantization) {
  ConfigFields fields(value, quantization.file(), "quantization_config.extra_config." + name);
  QuantizationTarget target;
  target.text = name;
  target.scheme = read_autoround_scheme(fields, base, format);
  if (target.scheme) {
    pass_over_autoround(fields);
    fields.refuse_unread({});
  }
  return target;
}

}  // namespace

void pass_over_autoround(ConfigFields& at) {
  at.require_neutral("data_type", "int");
  if (const std::int64_t bits = at.integer("act_bits", {1, 64}, 16); bits < 16)
    at.unsupported("act_bits", fmt::format("is {}; inputs rounded by AutoRound are not supported", bits));
  // Who made it, which blocks were tuned and how: the tensors say what came of it.
  for (const char* key : {"autoround_version",
                          "provider",
                          "to_quant_block_names",
                          "block_name_to_quantize",
                          "amp",
                          "batch_size",
                          "dataset",
                          "enable_minmax_tuning",
                          "enable_norm_bias_tuning",
                          "enable_quanted_input",
                          "gradient_accumulate_steps",
                          "iters",
                          "lr",
                          "low_gpu_mem_usage",
                          "minmax_lr",
                          "nsamples",
                          "scale_dtype",
                          "seqlen",
                          "act_data_type",
                          "act_dynamic",
                          "act_group_size",
                          "act_sym"})
    at.find(key);
}

PackedFormat autoround_format(ConfigFields& quantization) {
  const std::string name = quantization.text("packing_format");
  for (const PackingFormat& known : kPackingFormats)
    if (known.name == name) return known.format;
  quantization.unsupported("packing_format", fmt::format("the format \"{}\" is not known here", name),
                           "auto_round:auto_gptq, auto_round:auto_awq and auto_round:gptqmodel are");
}

std::vector<QuantizationTarget> read_autoround(ConfigFields& quantization, PackedFormat format,
                                               PatternBudget& budget) {
  for (const char* key : {"bits", "group_size", "sym"})
    if (quantization.find(key) == nullptr) quantization.bad(key, "is missing");
  const auto base = read_autoround_scheme(quantization, QuantScheme(), format);
  if (!base) quantization.unsupported("bits", "is above 8: nothing is quantized");
  std::vector<QuantizationTarget> targets, patterns;
  if (const Json* extra = quantization.find("extra_config")) {
    if (!extra->is_object())
      quantization.bad("extra_config", fmt::format("expected an object, found {}", extra->kind()));
    for (const auto& [name, value] : extra->members()) {
      targets.push_back(read_extra(name, value, *base, format, quantization));
      if (value.members().empty()) continue;  // AutoRound passes over these where it looks for expressions
      QuantizationTarget pattern = targets.back();
      try {
        pattern.pattern = budget.make("re:.*(?:" + name + ")");
      } catch (const Error& error) {
        fail(ErrorKind::kBadInput,
             {error.detail().message, quantization.file(), "quantization_config.extra_config." + name, {}});
      }
      patterns.push_back(std::move(pattern));
    }
  }
  targets.insert(targets.end(), patterns.begin(), patterns.end());
  targets.push_back({"Linear", std::nullopt, *base});
  pass_over_autoround(quantization);
  quantization.refuse_unread({"backend"});
  return targets;
}

}  // namespace llmq
