#include "export/formats/loader_rows.h"

#include <array>

namespace llmq {
namespace {

constexpr std::array kMarlinGroups = {-1, 32, 64, 128};
constexpr std::array kChannel = {-1};
constexpr std::array kGptqModelAwqGroups = {-1, 16, 32, 64, 128};
constexpr std::array kGptqModelGroups = {-1, 16, 32, 64, 128, 256, 512, 1024};
constexpr std::array kFour = {4};
constexpr std::array kEight = {8};
constexpr std::array kFourAndEight = {4, 8};
constexpr std::array kGptqBits = {2, 3, 4, 8};
constexpr std::array kMlxGroups = {32, 64, 128};
constexpr std::array kMlxBits = {2, 3, 4, 5, 6, 8};
constexpr std::array kTwoToEight = {2, 3, 4, 5, 6, 7, 8};

constexpr std::string_view kServe = "vllm serve {}";
constexpr std::string_view kFp4Marlin = "vLLM 0.33 (FP4 Marlin kernels)";
constexpr std::string_view kServeInFloat16 = "vllm serve {} --dtype float16";
constexpr std::string_view kServeInFloat32 = "vllm serve {} --dtype float32";
constexpr std::string_view kTransformersCommand =
    "python -c \"from transformers import AutoModelForCausalLM; "
    "AutoModelForCausalLM.from_pretrained('{}')\"";
constexpr std::string_view kDequantizingCommand =
    "python -c \"from transformers import AutoModelForCausalLM, CompressedTensorsConfig; "
    "AutoModelForCausalLM.from_pretrained('{}', "
    "quantization_config=CompressedTensorsConfig(dequantize=True))\"";
constexpr std::string_view kGptqModelCommand =
    "python -c \"from gptqmodel import GPTQModel; GPTQModel.load('{}')\"";

// actorder "group" and weight_g_idx were taken out of the library that all loaders of the format read it
// with, and vLLM raises on them before that.
constexpr std::string_view kNoActOrder = "vLLM 0.33 and compressed-tensors 0.19 and later do not read";

// Hopper GPUs multiply by Machete where a shape fits, else by Humming, and refuse nothing that Marlin takes.
constexpr LoaderRow marlin(std::string_view format, std::string_view kernel, std::span<const int> symmetric,
                           std::span<const int> asymmetric, std::string_view no_column_groups, bool silent) {
  return {.loader = "vLLM",
          .format = format,
          .kernel = kernel,
          .label = "vLLM 0.33 (Marlin kernels; on Hopper Machete or Humming)",
          .groups = {.listed = kMarlinGroups},
          .symmetric_bits = symmetric,
          .asymmetric_bits = asymmetric,
          .no_column_groups = no_column_groups,
          .fuses = true,
          .whole_words = true,
          .pads = true,
          .silent = silent,
          .command = kServe};
}

constexpr LoaderRow gptqmodel(std::string_view label, std::string_view format, std::span<const int> groups,
                              std::span<const int> bits, std::int64_t out_multiple,
                              std::string_view command) {
  return {.loader = label,
          .format = format,
          .kernel = "GPTQModel",
          .label = label,
          .out_multiple = out_multiple,
          .groups = {.listed = groups},
          .symmetric_bits = bits,
          .asymmetric_bits = bits,
          .command = command};
}

constexpr LoaderRow dense(std::string_view label, std::string_view command) {
  return {.loader = label,
          .format = "safetensors",
          .kernel = label,
          .label = label,
          .symmetric_bits = kTwoToEight,
          .asymmetric_bits = kTwoToEight,
          .command = command,
          .kind = std::nullopt};
}

// gpt-oss as it was published: by kernels for it, or widened where there are none.
constexpr LoaderRow published(std::string_view label, std::string_view command) {
  return {.loader = label,
          .format = "mxfp4",
          .kernel = label,
          .label = label,
          .symmetric_bits = kFour,
          .command = command,
          .kind = LinearKind::kMxfp4};
}

// Floats of 4 bits beside inputs as they are: decoded by Marlin on every GPU from Turing on.
constexpr LoaderRow float4_marlin(std::string_view loader, std::string_view format, std::string_view label,
                                  LinearKind kind) {
  return {.loader = loader,
          .format = format,
          .kernel = "Marlin",
          .label = label,
          .symmetric_bits = kFour,
          .fuses = true,
          .pads = true,
          .command = kServe,
          .kind = kind};
}

// Floats of 8 bits beside inputs of 8 bits.
constexpr LoaderRow float8(std::string_view format, std::string_view label) {
  return {.loader = "vLLM, FP8",
          .format = format,
          .kernel = "the FP8 kernel",
          .label = label,
          .symmetric_bits = kEight,
          .fuses = true,
          .command = kServe,
          .kind = LinearKind::kFloat8Inputs};
}

constexpr std::string_view kTransformers = "Transformers 5.23 with compressed-tensors 0.20";
constexpr std::string_view kTransformersGptq = "Transformers 5.23 with GPTQModel 7.7";
constexpr std::string_view kGptqModel = "GPTQModel 7.7";

// Transformers 5.23 with compressed-tensors 0.20 keeps symmetric codes packed; asymmetric ones load only with
// dequantize=True, which applies one scheme to all linears. Codes beside 8-bit inputs are not packed, and all
// load there, as do floats in groups, widened to BF16. vLLM takes 8-bit weights per channel or tensor alone,
// since Humming, which would take W4A8, reads packed words.
constexpr std::array kLoaders = {
    marlin("compressed-tensors", "Marlin", kFourAndEight, kFour, kNoActOrder, true),
    LoaderRow{.loader = "vLLM",
              .format = "compressed-tensors",
              .kernel = "Humming",
              .label = "vLLM 0.33 (Humming, Triton or Marlin kernels)",
              .groups = {.nest_in = 64},
              .symmetric_bits = kTwoToEight,
              .asymmetric_bits = kTwoToEight,
              .no_column_groups = kNoActOrder,
              .fuses = true,
              .whole_words = true,
              .command = kServe},
    LoaderRow{.loader = "vLLM, INT8",
              .format = "compressed-tensors",
              .kernel = "the INT8 kernel",
              .label = "vLLM 0.33 (INT8 kernels)",
              .groups = {.listed = kChannel},
              .symmetric_bits = kEight,
              .fuses = true,
              .command = kServe,
              .kind = LinearKind::kInt8Inputs},
    float8("compressed-tensors", "vLLM 0.33 (FP8 kernels)"),
    float4_marlin("vLLM, NVFP4", "compressed-tensors", kFp4Marlin, LinearKind::kNvfp4),
    float4_marlin("vLLM, MXFP4", "compressed-tensors", "vLLM 0.33 (MXFP4 Marlin kernels, from Ampere on)",
                  LinearKind::kMxfp4),
    LoaderRow{.loader = "vLLM, MXFP8",
              .format = "compressed-tensors",
              .kernel = "the MXFP8 kernel",
              .label = "vLLM 0.33 (MXFP8 kernels)",
              .symmetric_bits = kEight,
              .fuses = true,
              .command = kServe,
              .kind = LinearKind::kMxfp8Inputs},
    float8("modelopt", "vLLM 0.33 (FP8 kernels, from Ada on)"),
    float4_marlin("vLLM, NVFP4", "modelopt", kFp4Marlin, LinearKind::kNvfp4),
    LoaderRow{.loader = kTransformers,
              .format = "compressed-tensors",
              .kernel = "Transformers",
              .label = kTransformers,
              .symmetric_bits = kTwoToEight,
              .no_column_groups = kNoActOrder,
              .uniform_experts = true,
              .silent = true,
              .command = kTransformersCommand,
              .kind = std::nullopt},
    LoaderRow{.loader = kTransformers,
              .format = "compressed-tensors",
              .kernel = "Transformers",
              .label = kTransformers,
              .symmetric_bits = kTwoToEight,
              .asymmetric_bits = kTwoToEight,
              .no_column_groups = kNoActOrder,
              .uniform = true,
              .uniform_experts = true,
              .command = kDequantizingCommand,
              .kind = std::nullopt},
    marlin("awq", "Marlin", kFour, kFour, {}, true),
    LoaderRow{.loader = "vLLM",
              .format = "awq",
              .kernel = "vLLM's AWQ kernel",
              .label = "vLLM 0.33 (its AWQ kernel: FP16, slower)",
              .out_multiple = 64,
              .groups = {.multiple = 32},
              .symmetric_bits = kFour,
              .asymmetric_bits = kFour,
              .fuses = true,
              .outputs_in_groups = true,
              .command = kServeInFloat16},
    gptqmodel(kTransformersGptq, "awq", kGptqModelAwqGroups, kFour, 8, kTransformersCommand),
    gptqmodel(kGptqModel, "awq", kGptqModelAwqGroups, kFour, 8, kGptqModelCommand),
    marlin("gptq", "vLLM's GPTQ", kFourAndEight, {}, "vLLM 0.33 does not read", false),
    gptqmodel(kTransformersGptq, "gptq", kGptqModelGroups, kGptqBits, 1, kTransformersCommand),
    gptqmodel(kGptqModel, "gptq", kGptqModelGroups, kGptqBits, 1, kGptqModelCommand),
    published("Transformers 5.23 (MXFP4)", kTransformersCommand),
    published("vLLM 0.33 (MXFP4)", kServe),
    LoaderRow{.loader = "mlx-lm",
              .format = "mlx",
              .kernel = "mlx-lm",
              .label = "mlx-lm 0.32",
              .groups = {.listed = kMlxGroups},
              .symmetric_bits = kMlxBits,
              .asymmetric_bits = kMlxBits,
              .command = "mlx_lm.generate --model {}"},
    dense("Transformers 5.23", kTransformersCommand),
    dense("vLLM 0.33", kServeInFloat32),
};

}  // namespace

std::span<const LoaderRow> loader_rows() { return kLoaders; }

}  // namespace llmq
