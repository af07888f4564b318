// "modelopt", the directories of NVIDIA's ModelOpt ("unified HF"), which vLLM, SGLang and TensorRT-LLM load.
//
//   nvfp4a16  <module>.weight          U8 [out, in/2]        byte j of a row: code 2j low, code 2j + 1 high
//             <module>.weight_scale    F8_E4M3 [out, in/16]
//             <module>.weight_scale_2  F32 []                what they are multiplied by: a power of two, as
//                                                            its reciprocal is, so that other containers
//                                                            say the same numbers
//   nvfp4     the same and
//             <module>.input_scale     F32 []                of inputs, a power of two as well
//   fp8...    <module>.weight          F8_E4M3 [out, in]
//             <module>.weight_scale    F32: [] per tensor, [out], or [out/128, 1, in/128, 1] in blocks
//             <module>.input_scale     F32 [], static inputs only
//
// config.json says it in today's words and hf_quant_config.json in the older ones. Scales of a KV cache are
// <attention>.k_proj.k_scale and v_proj.v_scale. Sources: Model-Optimizer 0.47
// torch/export/{unified_export_hf,convert_hf_config,quant_utils}.py, qtensor/nvfp4_tensor.py; vLLM's
// quantization/modelopt.py.
#include <array>
#include <set>

#include "base/error.h"
#include "export/formats/compressed_codes.h"
#include "export/formats/compressed_floats.h"
#include "export/formats/packed_formats.h"
#include "model/model_spec.h"

namespace llmq {
namespace {

bool is_nvfp4(const QuantScheme& scheme) { return scheme.scale_form() == ScaleForm::kTwoLevel; }

// Nothing where modelopt has no name for it.
std::string algorithm_of(const QuantScheme& scheme) {
  if (is_nvfp4(scheme) && scheme.weight_type == WeightType::kFloat4)
    return scheme.rounds_inputs() ? "NVFP4" : "W4A16_NVFP4";
  if (scheme.weight_type != WeightType::kFloat8 || scheme.scale_form() != ScaleForm::kNumber ||
      scheme.activation_bits != 8)
    return "";
  if (scheme.granularity == Granularity::kTensor && scheme.activation_scale == ActivationScale::kTensor)
    return "FP8";
  if (scheme.granularity == Granularity::kChannel && scheme.activation_scale == ActivationScale::kToken)
    return "FP8_PER_CHANNEL_PER_TOKEN";
  return scheme.granularity == Granularity::kBlock ? "FP8_PB_WO" : "";
}

std::vector<TensorDeclaration> modelopt_tensors(const PlannedModule& m) {
  const bool nvfp4 = is_nvfp4(m.scheme);
  std::vector<TensorDeclaration> tensors = nvfp4 ? declare_float4(m) : declare_codes(m);
  tensors[0].name = m.module + ".weight";
  if (nvfp4) {
    tensors[2] = {m.module + ".weight_scale_2", DType::kF32, {}};
    if (tensors.size() > 3) tensors[3] = {m.module + ".input_scale", DType::kF32, {}};
    return tensors;
  }
  for (std::size_t i = 1; i < tensors.size(); ++i) tensors[i].dtype = DType::kF32;
  const Shape& scales = tensors[1].shape;
  if (m.scheme.granularity == Granularity::kTensor) tensors[1].shape = {};
  if (m.scheme.granularity == Granularity::kChannel) tensors[1].shape = Shape{m.out_features};
  if (m.scheme.granularity == Granularity::kBlock) tensors[1].shape = Shape{scales[0], 1, scales[1], 1};
  if (tensors.size() > 2) tensors[2].shape = {};
  return tensors;
}

std::vector<PackedTensor> pack_modelopt(const PlannedModule& m, const QuantizedMatrix& matrix) {
  std::vector<PackedTensor> tensors;
  if (is_nvfp4(m.scheme)) {
    tensors = pack_float4(m, matrix);
    put_globals(matrix, GlobalForm::kFactor, tensors);
  } else {
    QuantizedMatrix wide = matrix;  // scales become F32, whatever they were
    PlannedModule planned = m;
    wide.scheme.scale_dtype = planned.scheme.scale_dtype = DType::kF32;
    tensors = pack_codes(planned, wide);
  }
  const std::vector<TensorDeclaration> declared = modelopt_tensors(m);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].declaration = declared[i];
  return tensors;
}

Json numbers_of(int bits, const Json& group) {
  Json numbers = Json::object({{"dynamic", false}, {"num_bits", bits}, {"type", "float"}});
  if (!group.is_null()) numbers["group_size"] = group;
  return numbers;
}

Json modelopt_config(const ListedModules& listed) {
  if (listed.wrapper != nullptr)
    fail(ErrorKind::kUnsupported, {"format modelopt is written of models without a tower alone",
                                   {},
                                   "format",
                                   "write format: compressed-tensors"});
  const std::set<std::string> linears = listed_linears(listed);
  std::set<std::string> algorithms;
  Json layers = Json::object();
  for (const PlannedModule& m : listed.packed) {
    const std::string algorithm = algorithm_of(m.scheme);
    algorithms.insert(algorithm);
    Json layer = Json::object({{"quant_algo", algorithm}});
    if (is_nvfp4(m.scheme)) layer["group_size"] = kNvfp4Group;
    if (const auto values = missing_values(m.module, linears)) layers[*values] = layer;
    layers[m.module] = std::move(layer);
  }
  Json config = Json::object({{"ignore", text_list(modelopt_ignore(listed))},
                              {"producer", Json::object({{"name", "llmq"}})},
                              {"quant_method", "modelopt"}});
  if (algorithms.size() > 1) {
    config["quant_algo"] = "MIXED_PRECISION";
    config["quantized_layers"] = std::move(layers);
    return config;
  }
  const QuantScheme& scheme = listed.packed.front().scheme;
  config["quant_algo"] = *algorithms.begin();
  Json group =
      Json::object({{"targets", Json::array({"Linear"})},
                    {"weights", numbers_of(scheme.bits, is_nvfp4(scheme) ? Json(kNvfp4Group) : Json())}});
  if (scheme.rounds_inputs())
    group["input_activations"] =
        numbers_of(scheme.activation_bits, is_nvfp4(scheme) ? Json(kNvfp4Group) : Json());
  config["config_groups"] = Json::object({{"group_0", std::move(group)}});
  return config;
}

Json modelopt_config_file(const Json& config) {
  Json said = Json::object({{"quant_algo", config.at("quant_algo")},
                            {"kv_cache_quant_algo", config.find("kv_cache_scheme") ? Json("FP8") : Json()},
                            {"group_size", Json()},
                            {"exclude_modules", config.at("ignore")}});
  for (const char* algorithm : {"NVFP4", "W4A16_NVFP4"})
    if (config.at("quant_algo") == Json(algorithm)) said["group_size"] = kNvfp4Group;
  if (const Json* layers = config.find("quantized_layers")) said["quantized_layers"] = *layers;
  return Json::object({{"producer", config.at("producer")}, {"quantization", std::move(said)}});
}

Json modelopt_kv_cache(KvCacheType type) {
  if (type != KvCacheType::kFloat8)
    fail(ErrorKind::kUnsupported,
         {"format modelopt has a KV cache of FP8 alone", {}, "kv_cache", "write kv_cache: fp8"});
  return numbers_of(8, {});
}

bool is_plain(std::string_view algorithm) {
  return algorithm == "FP8" || algorithm == "NVFP4" || algorithm == "W4A16_NVFP4";
}

std::optional<std::string> modelopt_refusal(const PlannedModule& m, const PlannedModule& first) {
  const QuantScheme& scheme = m.scheme;
  const std::string algorithm = algorithm_of(scheme), firsts = algorithm_of(first.scheme);
  if (algorithm.empty())
    return fmt::format("format modelopt stores fp8, fp8_static, fp8_block, nvfp4 and nvfp4a16, and not {}",
                       scheme.text());
  if (std::optional<std::string> reason = is_nvfp4(scheme) ? float_groups_refusal(m) : codes_refusal(m))
    return reason;
  if (m.in_features % scheme.group_of(m.in_features) != 0 ||
      (scheme.granularity == Granularity::kBlock && m.out_features % kFloat8Block != 0))
    return fmt::format("{} x {} is not made of whole groups or blocks of {}", m.out_features, m.in_features,
                       scheme.group_of(m.in_features));
  const bool plain = is_plain(algorithm);
  if (algorithm != firsts && !(plain && is_plain(firsts)))
    return fmt::format("{} is {} and {} is {}: loaders of modelopt mix fp8_static, nvfp4 and nvfp4a16 alone",
                       first.module, first.scheme.text(), m.module, scheme.text());
  if (!plain && !experts_of(m.module).empty())
    return fmt::format(
        "experts of {} are not loaded from modelopt's directories; fp8_static, nvfp4 and nvfp4a16 are",
        scheme.text());
  return std::nullopt;
}

}  // namespace

const PackedFormatRow kModeloptFormat = {.name = "modelopt",
                                         .declare = modelopt_tensors,
                                         .pack = pack_modelopt,
                                         .config = modelopt_config,
                                         .refusal = modelopt_refusal,
                                         .config_copy = "hf_quant_config.json",
                                         .config_file = modelopt_config_file,
                                         .float4 = true,
                                         .float8 = true,
                                         .packing_bytes = 3,
                                         .tower_refusal = "format modelopt is written of decoders alone",
                                         .kv_cache_scheme = modelopt_kv_cache,
                                         .kv_scales_in_projections = true,
                                         .global_form = GlobalForm::kFactor,
                                         .keeps_dtype = true};

}  // namespace llmq
