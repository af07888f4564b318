#include "model/packed/quantization_config.h"

#include <algorithm>

#include "base/error.h"
#include "model/config_fields.h"
#include "model/packed/quantization_readers.h"

namespace llmq {
namespace {

// Matrices of E4M3 with a scale for each block or for all, which are numbers from opening on
// (io/float8_blocks.cpp). Inputs, which engines round to FP8 as well, are not rounded here.
void check_float8(ConfigFields& quantization) {
  if (const std::string type = quantization.text("fmt", "e4m3"); type != "e4m3" && type != "float8_e4m3fn")
    quantization.unsupported("fmt", fmt::format("is \"{}\"", type), "e4m3 is read");
  const auto one_of = [&](const char* key, const char* usual, const char* other) {
    if (const std::string said = quantization.text(key, usual); said != usual && said != other)
      quantization.unsupported(key, fmt::format("is \"{}\"", said),
                               fmt::format("{} and {} are read", usual, other));
  };
  one_of("activation_scheme", "dynamic", "static");
  one_of("scale_fmt", "float", "ue8m0");
  quantization.require_neutral("expert_dtype", "fp8");
  const Json* const size = quantization.find("weight_block_size");
  const bool sides =
      size == nullptr || (size->is_array() && size->items().size() == 2 &&
                          std::all_of(size->items().begin(), size->items().end(), [](const Json& side) {
                            return side.is_integer() && side.as_integer() >= 1 &&
                                   side.as_integer() <= StoredTensor::BlockScales::kMostOfABlock;
                          }));
  if (!sides)
    quantization.unsupported("weight_block_size",
                             "is no pair of sizes: FP8 is read with a scale for each block, or with one for "
                             "the whole matrix",
                             "[128, 128] and null are what releases have");
  for (const char* listed : {"modules_to_not_convert", "modules_to_convert", "ignored_layers", "dequantize"})
    quantization.find(listed);
  quantization.refuse_unread({});
}

// The same with a scale for each row; its bound is of the scales of inputs.
void pass_over_fbgemm(ConfigFields& quantization) {
  for (const char* key : {"activation_scale_ub", "modules_to_not_convert"}) quantization.find(key);
  quantization.refuse_unread({});
}

// Weights that are numbers from opening on, too (io/bitsandbytes.cpp). What its keys say of products and of
// rows with outliers is of its own kernels; inputs are not rounded here.
void pass_over_bitsandbytes(ConfigFields& quantization) {
  for (const char* key : {"load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit",
                          "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_quant_type",
                          "bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload",
                          "llm_int8_has_fp16_weight", "llm_int8_skip_modules", "llm_int8_threshold"})
    quantization.find(key);
  quantization.refuse_unread({});
}

bool names(const QuantizationTarget& target, const std::string& module) {
  return target.pattern ? target.pattern->matches(module) : target.text == module || target.text == "Linear";
}

}  // namespace

QuantizationConfig QuantizationConfig::read(const Json& config, const std::string& file) {
  QuantizationConfig result;
  const Json* json = config.find("quantization_config");
  if (json == nullptr || json->is_null()) return result;
  ConfigFields quantization(*json, file, "quantization_config");
  const std::string method = quantization.text("quant_method");
  PatternBudget patterns;
  if (method == "compressed-tensors") {
    result.format_ = PackedFormat::kCompressedTensors;
    std::vector<QuantizationTarget> groups = read_groups(quantization, patterns);
    result.targets_ = read_targets(quantization, "ignore", patterns);
    result.targets_.insert(result.targets_.end(), groups.begin(), groups.end());
    result.kv_cache_ = read_kv_cache(quantization);
    check_compressed_tensors(quantization);
  } else if (method == "awq") {
    result.format_ = PackedFormat::kAwqGemm;
    result.targets_ = {read_awq(quantization)};
  } else if (method == "gptq") {
    result.format_ = gptq_format(quantization);
    result.targets_ = read_gptq(quantization, patterns);
    result.by_gptqmodel_ = names_gptqmodel(quantization);
  } else if (method == "auto-round") {
    result.format_ = autoround_format(quantization);
    result.targets_ = read_autoround(quantization, result.format_, patterns);
  } else if (method.starts_with("modelopt")) {
    result.format_ = PackedFormat::kModelopt;
    result.targets_ = read_modelopt(quantization, result.kv_cache_, patterns);
  } else if (method == "fp8") {
    check_float8(quantization);
  } else if (method == "fbgemm_fp8") {
    pass_over_fbgemm(quantization);
  } else if (method == "bitsandbytes") {
    pass_over_bitsandbytes(quantization);
  } else if (method == "mxfp4") {
    // Stacks of codes, which are told by their names (SlabNames::exponents); all of them have one form.
    quantization.find("modules_to_not_convert");
    quantization.find("dequantize");
  } else {
    quantization.unsupported(
        "quant_method", fmt::format("the method \"{}\" is not known here", method),
        "compressed-tensors, awq, gptq, auto-round, modelopt, bitsandbytes, fp8, fbgemm_fp8 and mxfp4 are");
  }
  return result;
}

const QuantizationTarget* QuantizationConfig::target_of(const std::string& module) const {
  for (const QuantizationTarget& target : targets_)
    if (names(target, module)) return &target;
  return nullptr;
}

std::optional<QuantScheme> QuantizationConfig::scheme_of(const std::string& module) const {
  const QuantizationTarget* const target = target_of(module);
  return target == nullptr ? std::nullopt : target->scheme;
}

InputScale QuantizationConfig::input_scale_of(const std::string& module) const {
  const QuantizationTarget* const target = target_of(module);
  return target == nullptr ? InputScale::kNone : target->input_scale;
}

}  // namespace llmq
