#include "export/formats/loader_constraints.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "export/formats/fused_linears.h"
#include "export/formats/packed_formats.h"

namespace llmq {
namespace {

// What the loaders tell apart: weights alone, or inputs that are rounded too.
enum class Inputs : std::uint8_t { kAsTheyAre, kInt8, kFloat8 };

Inputs inputs_of(const PlannedModule& m) {
  if (m.scheme.activation_bits == 16) return Inputs::kAsTheyAre;
  return m.scheme.weight_type == WeightType::kFloat8 ? Inputs::kFloat8 : Inputs::kInt8;
}

// What one kernel of a loader wants of every quantized linear. Group size -1 is one scale per output channel.
struct LoaderRow {
  std::string_view loader, format;
  std::string_view kernel;  // as named in reasons
  std::string_view label;   // the loader as verdicts name it
  std::int64_t in_multiple = 1, out_multiple = 1;
  std::span<const int> groups = {};  // empty: any
  std::span<const int> symmetric_bits = {}, asymmetric_bits = {};
  std::string_view no_column_groups =
      {};                    // who does not take columns that carry their own group; empty: taken
  bool fuses = false;        // q/k/v and gate/up become one linear each, so they must share a scheme
  bool uniform = false;      // one scheme for every quantized linear
  bool silent = false;       // another row of this loader says why none fits
  std::string_view command;  // {} is the directory
  std::optional<Inputs> inputs = Inputs::kAsTheyAre;  // of the linears it is about; none: of all
};

constexpr std::array kMarlinGroups = {-1, 32, 64, 128};
constexpr std::array kMacheteGroups = {-1, 64, 128};
constexpr std::array kChannel = {-1};
constexpr std::array kGptqModelAwqGroups = {-1, 16, 32, 64, 128};
constexpr std::array kGptqModelGroups = {-1, 16, 32, 64, 128, 256, 512, 1024};
constexpr std::array kFour = {4};
constexpr std::array kEight = {8};
constexpr std::array kFourAndEight = {4, 8};
constexpr std::array kGptqBits = {2, 3, 4, 8};
constexpr std::array kTwoToEight = {2, 3, 4, 5, 6, 7, 8};

constexpr std::string_view kServe = "vllm serve {}";
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
// with.
constexpr std::string_view kNoActOrder = "compressed-tensors 0.19 and later do not read";

constexpr std::string_view act_order_refusal(std::string_view format) {
  return format == "compressed-tensors" ? kNoActOrder : std::string_view();
}

constexpr LoaderRow marlin(std::string_view format, std::span<const int> symmetric,
                           std::span<const int> asymmetric, bool silent) {
  return {.loader = "vLLM",
          .format = format,
          .kernel = "Marlin",
          .label = "vLLM (Marlin kernels)",
          .in_multiple = 128,
          .out_multiple = 64,
          .groups = kMarlinGroups,
          .symmetric_bits = symmetric,
          .asymmetric_bits = asymmetric,
          .no_column_groups = act_order_refusal(format),
          .fuses = true,
          .silent = silent,
          .command = kServe};
}

constexpr LoaderRow allspark(std::string_view format) {
  return {.loader = "vLLM",
          .format = format,
          .kernel = "AllSpark",
          .label = "vLLM (AllSpark kernels: Ampere and Ada GPUs)",
          .in_multiple = 16,
          .out_multiple = 16,
          .groups = kChannel,
          .symmetric_bits = kEight,
          .no_column_groups = "AllSpark does not take",
          .fuses = true,
          .silent = true,
          .command = kServe};
}

constexpr LoaderRow machete(std::string_view format) {
  return {.loader = "vLLM",
          .format = format,
          .kernel = "Machete",
          .label = "vLLM (Machete kernels: Hopper GPUs)",
          .in_multiple = 64,
          .out_multiple = 128,
          .groups = kMacheteGroups,
          .symmetric_bits = kFourAndEight,
          .no_column_groups = act_order_refusal(format),
          .fuses = true,
          .silent = true,
          .command = kServe};
}

// The FP16 kernel that vLLM falls back to for GPTQ.
constexpr LoaderRow exllama(std::string_view format) {
  return {.loader = "vLLM",
          .format = format,
          .kernel = "vLLM's gptq kernel",
          .label = "vLLM (gptq kernel, FP16)",
          .out_multiple = 64,
          .symmetric_bits = kGptqBits,
          .asymmetric_bits = kGptqBits,
          .fuses = true,
          .command = kServe};
}

constexpr LoaderRow gptqmodel(std::string_view loader, std::string_view format, std::span<const int> groups,
                              std::span<const int> bits, std::int64_t out_multiple,
                              std::string_view command) {
  return {.loader = loader,
          .format = format,
          .kernel = "GPTQModel",
          .label = loader,
          .out_multiple = out_multiple,
          .groups = groups,
          .symmetric_bits = bits,
          .asymmetric_bits = bits,
          .command = command};
}

constexpr LoaderRow dense(std::string_view loader, std::string_view command) {
  return {.loader = loader,
          .format = "safetensors",
          .kernel = loader,
          .label = loader,
          .symmetric_bits = kTwoToEight,
          .asymmetric_bits = kTwoToEight,
          .command = command};
}

constexpr std::string_view kTransformers = "Transformers with compressed-tensors";

// Rows of one loader and format stand together, and the first that fits answers for it. Transformers 5.23
// with compressed-tensors 0.20 keeps symmetric codes packed; asymmetric ones load only with dequantize=True,
// which applies one scheme to all linears. Codes beside 8-bit inputs are not packed, and all load.
constexpr std::array kLoaders = {
    marlin("compressed-tensors", kFourAndEight, kFour, false),
    allspark("compressed-tensors"),
    machete("compressed-tensors"),
    LoaderRow{.loader = "vLLM, INT8",
              .format = "compressed-tensors",
              .kernel = "the INT8 kernel",
              .label = "vLLM (INT8 kernels)",
              .groups = kChannel,
              .symmetric_bits = kEight,
              .fuses = true,
              .command = kServe,
              .inputs = Inputs::kInt8},
    LoaderRow{.loader = "vLLM, FP8",
              .format = "compressed-tensors",
              .kernel = "the FP8 kernel",
              .label = "vLLM (FP8 kernels)",
              .symmetric_bits = kEight,
              .fuses = true,
              .command = kServe,
              .inputs = Inputs::kFloat8},
    LoaderRow{.loader = kTransformers,
              .format = "compressed-tensors",
              .kernel = "Transformers",
              .label = kTransformers,
              .symmetric_bits = kTwoToEight,
              .no_column_groups = kNoActOrder,
              .silent = true,
              .command = kTransformersCommand,
              .inputs = std::nullopt},
    LoaderRow{.loader = kTransformers,
              .format = "compressed-tensors",
              .kernel = "Transformers",
              .label = kTransformers,
              .symmetric_bits = kTwoToEight,
              .asymmetric_bits = kTwoToEight,
              .no_column_groups = kNoActOrder,
              .uniform = true,
              .command = kDequantizingCommand,
              .inputs = std::nullopt},
    marlin("awq", kFour, kFour, false),
    gptqmodel("Transformers with GPTQModel", "awq", kGptqModelAwqGroups, kFour, 8, kTransformersCommand),
    gptqmodel("GPTQModel", "awq", kGptqModelAwqGroups, kFour, 8, kGptqModelCommand),
    marlin("gptq", kFourAndEight, {}, true),
    allspark("gptq"),
    machete("gptq"),
    exllama("gptq"),
    gptqmodel("Transformers with GPTQModel", "gptq", kGptqModelGroups, kGptqBits, 1, kTransformersCommand),
    gptqmodel("GPTQModel", "gptq", kGptqModelGroups, kGptqBits, 1, kGptqModelCommand),
    dense("Transformers", kTransformersCommand),
    dense("vLLM", kServeInFloat32),
};

std::string_view loader_of(const LoaderVerdict& verdict) {
  const auto row = std::find_if(kLoaders.begin(), kLoaders.end(),
                                [&](const LoaderRow& one) { return one.label == verdict.loader; });
  return row->loader;
}

// One table for both: v2 is gptq but for its zeros, and every loader here reads either.
std::string_view table_format(const std::string& format) {
  return format == "gptq_v2" ? "gptq" : std::string_view(format);
}

bool contains(std::span<const int> values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::string joined(std::span<const int> values) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

std::string complaint(const LoaderRow& row, const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  const bool packed = inputs_of(m) == Inputs::kAsTheyAre;
  const std::span<const int> bits =
      scheme.symmetric || (!row.inputs && !packed) ? row.symmetric_bits : row.asymmetric_bits;
  const int group = group_size_of(scheme);
  if (bits.empty())
    return fmt::format("{} has {}-bit asymmetric codes, and {} wants symmetric ones", m.module, scheme.bits,
                       row.kernel);
  if (!contains(bits, scheme.bits))
    return fmt::format("{} has {}-bit {} codes, and {} wants {} bits", m.module, scheme.bits,
                       scheme.symmetric ? "symmetric" : "asymmetric", row.kernel, joined(bits));
  if (!row.groups.empty() && !contains(row.groups, group))
    return fmt::format("{} has group size {}, and {} wants one of {}", m.module, group, row.kernel,
                       joined(row.groups));
  if (m.column_groups && !row.no_column_groups.empty())
    return fmt::format("the columns of {} carry their own group, which {}", m.module, row.no_column_groups);
  if (m.in_features % row.in_multiple != 0)
    return fmt::format("{} has {} input features, and {} wants a multiple of {}", m.module, m.in_features,
                       row.kernel, row.in_multiple);
  if (m.out_features % row.out_multiple != 0)
    return fmt::format("{} has {} output features, and {} wants a multiple of {}", m.module, m.out_features,
                       row.kernel, row.out_multiple);
  return "";
}

std::string fusion_complaint(std::span<const PlannedModule> modules) {
  struct Parts {
    const PlannedModule* first;
    int wanted, found;
  };
  std::map<std::string, Parts> fused;
  for (const PlannedModule& m : modules) {
    const auto [name, wanted] = fused_linear(m.module);
    const auto [entry, fresh] = fused.try_emplace(name, Parts{&m, wanted, 0});
    ++entry->second.found;
    const PlannedModule& first = *entry->second.first;
    if (!fresh && (!(first.scheme == m.scheme) || first.column_groups != m.column_groups))
      return fmt::format("{} and {} become one linear there and have different schemes", first.module,
                         m.module);
  }
  for (const auto& [name, parts] : fused)
    if (parts.found != parts.wanted)
      return fmt::format("{} becomes part of {} there, whose other parts are not quantized",
                         parts.first->module, name);
  return "";
}

std::string uniformity_complaint(const LoaderRow& row, std::span<const PlannedModule> modules) {
  for (const PlannedModule& m : modules)
    if (m.scheme.text() != modules.front().scheme.text())
      return fmt::format(
          "{} is {} and {} is {}, and {} takes asymmetric codes only where one scheme holds for all",
          modules.front().module, modules.front().scheme.text(), m.module, m.scheme.text(), row.kernel);
  return "";
}

std::string with_directory(std::string_view command, const std::string& directory) {
  const std::size_t hole = command.find("{}");
  return std::string(command.substr(0, hole)) + directory + std::string(command.substr(hole + 2));
}

}  // namespace

std::vector<LoaderVerdict> loader_verdicts(const std::string& format, std::span<const PlannedModule> modules,
                                           const std::string& directory) {
  std::vector<LoaderVerdict> verdicts;
  std::string_view answered;  // the loader that has its verdict
  for (const LoaderRow& row : kLoaders) {
    const auto concerned = [&](const PlannedModule& m) { return !row.inputs || *row.inputs == inputs_of(m); };
    if (row.format != table_format(format) || row.loader == answered) continue;
    if (std::none_of(modules.begin(), modules.end(), concerned)) continue;
    std::string reason;
    for (const PlannedModule& m : modules) {
      if (!concerned(m)) continue;
      reason = complaint(row, m);
      if (!reason.empty()) break;
    }
    if (reason.empty() && row.fuses) reason = fusion_complaint(modules);
    if (reason.empty() && row.uniform) reason = uniformity_complaint(row, modules);
    const bool fits = reason.empty();
    const bool reasoned = !verdicts.empty() && loader_of(verdicts.back()) == row.loader;
    if (fits) answered = row.loader;
    if (fits && reasoned) verdicts.pop_back();
    if (fits || !row.silent)
      verdicts.push_back({std::string(row.label), fits, reason, with_directory(row.command, directory)});
  }
  return verdicts;
}

Json to_json(std::span<const LoaderVerdict> verdicts) {
  Json list = Json::array();
  for (const LoaderVerdict& verdict : verdicts) {
    Json item = Json::object({{"loader", verdict.loader}, {"fits", verdict.fits}});
    if (verdict.fits)
      item["command"] = verdict.command;
    else
      item["reason"] = verdict.reason;
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace llmq
