#include "export/formats/loader_constraints.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
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

// Which group sizes a kernel takes; -1 is one scale per output channel, which `nest_in` and `multiple` let
// pass. Nothing set: any.
struct Groups {
  std::span<const int> listed = {};
  int nest_in = 0;   // 16 and above, and divides this or is a multiple of it
  int multiple = 0;  // of this
};

// What one kernel of a loader wants of every quantized linear that it is about.
struct LoaderRow {
  std::string_view loader, format;
  std::string_view kernel;  // as named in reasons
  std::string_view label;   // the loader with its version, as verdicts name it
  std::int64_t out_multiple = 1;
  Groups groups = {};
  std::span<const int> symmetric_bits = {}, asymmetric_bits = {};
  std::string_view no_column_groups =
      {};                          // who does not take columns that carry their own group; empty: taken
  bool fuses = false;              // q/k/v and gate/up become one linear each, so they must share a scheme
  bool uniform = false;            // one scheme for every quantized linear
  bool uniform_experts = false;    // one scheme for the experts of all layers
  bool whole_words = false;        // the zeros of all outputs fill 32-bit words
  bool outputs_in_groups = false;  // the outputs are a multiple of the group size, too
  bool pads = false;               // shapes that are not whole tiles of Marlin are padded with zeros
  bool silent = false;             // another row of this loader says why none fits
  std::string_view command;        // {} is the directory
  std::optional<Inputs> inputs = Inputs::kAsTheyAre;  // of the linears it is about; none: of all
};

constexpr std::array kMarlinGroups = {-1, 32, 64, 128};
constexpr std::array kChannel = {-1};
constexpr std::array kGptqModelAwqGroups = {-1, 16, 32, 64, 128};
constexpr std::array kGptqModelGroups = {-1, 16, 32, 64, 128, 256, 512, 1024};
constexpr std::array kFour = {4};
constexpr std::array kEight = {8};
constexpr std::array kFourAndEight = {4, 8};
constexpr std::array kGptqBits = {2, 3, 4, 8};
constexpr std::array kTwoToEight = {2, 3, 4, 5, 6, 7, 8};

constexpr std::string_view kServe = "vllm serve {}";
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
          .command = command};
}

// gpt-oss as it was published: by kernels for it, or widened where there are none.
constexpr LoaderRow published(std::string_view label, std::string_view command) {
  return {.loader = label,
          .format = "mxfp4",
          .kernel = label,
          .label = label,
          .symmetric_bits = kFour,
          .command = command};
}

constexpr std::string_view kTransformers = "Transformers 5.23 with compressed-tensors 0.20";
constexpr std::string_view kTransformersGptq = "Transformers 5.23 with GPTQModel 7.7";
constexpr std::string_view kGptqModel = "GPTQModel 7.7";

// Rows of one loader and format stand together, and the first that fits answers for it. Transformers 5.23
// with compressed-tensors 0.20 keeps symmetric codes packed; asymmetric ones load only with dequantize=True,
// which applies one scheme to all linears. Codes beside 8-bit inputs are not packed, and all load there; vLLM
// takes 8-bit weights per channel or tensor alone, since Humming, which would take W4A8, reads packed words.
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
              .inputs = Inputs::kInt8},
    LoaderRow{.loader = "vLLM, FP8",
              .format = "compressed-tensors",
              .kernel = "the FP8 kernel",
              .label = "vLLM 0.33 (FP8 kernels)",
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
              .uniform_experts = true,
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
              .uniform_experts = true,
              .command = kDequantizingCommand,
              .inputs = std::nullopt},
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
    dense("Transformers 5.23", kTransformersCommand),
    dense("vLLM 0.33", kServeInFloat32),
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

std::string group_complaint(const LoaderRow& row, const PlannedModule& m) {
  const int group = group_size_of(m.scheme);
  const Groups& groups = row.groups;
  if (!groups.listed.empty() && !contains(groups.listed, group))
    return fmt::format("{} has group size {}, and {} wants one of {}", m.module, group, row.kernel,
                       joined(groups.listed));
  if (group <= 0) return "";
  const bool nests =
      groups.nest_in == 0 || group % groups.nest_in == 0 || (group >= 16 && groups.nest_in % group == 0);
  if (!nests)
    return fmt::format("{} has group size {}, and {} wants 16, 32 or a multiple of {}", m.module, group,
                       row.kernel, groups.nest_in);
  if (groups.multiple != 0 && group % groups.multiple != 0)
    return fmt::format("{} has group size {}, and {} wants a multiple of {}", m.module, group, row.kernel,
                       groups.multiple);
  if (row.outputs_in_groups && m.out_features % group != 0)
    return fmt::format("{} has {} output features, and {} wants a multiple of the group size, {}", m.module,
                       m.out_features, row.kernel, group);
  return "";
}

std::string complaint(const LoaderRow& row, const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  const bool packed = inputs_of(m) == Inputs::kAsTheyAre;
  const std::span<const int> bits =
      scheme.symmetric || (!row.inputs && !packed) ? row.symmetric_bits : row.asymmetric_bits;
  if (bits.empty())
    return fmt::format("{} has {}-bit asymmetric codes, and {} wants symmetric ones", m.module, scheme.bits,
                       row.kernel);
  if (!contains(bits, scheme.bits))
    return fmt::format("{} has {}-bit {} codes, and {} wants {} bits", m.module, scheme.bits,
                       scheme.symmetric ? "symmetric" : "asymmetric", row.kernel, joined(bits));
  if (std::string groups = group_complaint(row, m); !groups.empty()) return groups;
  if (m.column_groups && !row.no_column_groups.empty() && group_size_of(scheme) > 0)
    return fmt::format("the columns of {} carry their own group, which {}", m.module, row.no_column_groups);
  if (m.out_features % row.out_multiple != 0)
    return fmt::format("{} has {} output features, and {} wants a multiple of {}", m.module, m.out_features,
                       row.kernel, row.out_multiple);
  if (row.whole_words && !scheme.symmetric && m.out_features * scheme.bits % 32 != 0)
    return fmt::format("{} has {} output features, whose zeros of {} bits do not fill words of 32", m.module,
                       m.out_features, scheme.bits);
  const FusedLinear fused = fused_linear(m.module);
  if (row.fuses && scheme.granularity == Granularity::kBlock && !fused.last &&
      m.out_features % kFloat8Block != 0)
    return fmt::format("{} has {} output features, and inside {} a block of {} would reach over its end",
                       m.module, m.out_features, fused.module, kFloat8Block);
  return "";
}

std::string fusion_complaint(std::span<const PlannedModule> modules) {
  struct Parts {
    const PlannedModule* first;
    int wanted, found;
  };
  std::map<std::string, Parts> fused;
  std::set<std::string> names;
  for (const PlannedModule& m : modules) names.insert(m.module);
  for (const PlannedModule& m : modules) {
    const FusedLinear whole = fused_linear(m.module, names);
    const auto [entry, fresh] = fused.try_emplace(whole.module, Parts{&m, whole.parts, 0});
    ++entry->second.found;
    const PlannedModule& first = *entry->second.first;
    if (!fresh && !(first.scheme == m.scheme))
      return fmt::format("{} and {} become one linear there and have different schemes", first.module,
                         m.module);
  }
  for (const auto& [name, parts] : fused)
    if (parts.found != parts.wanted)
      return fmt::format("{} becomes part of {} there, whose other parts are not quantized",
                         parts.first->module, name);
  return "";
}

std::string uniformity_complaint(const LoaderRow& row, std::span<const PlannedModule> modules,
                                 bool of_experts) {
  const PlannedModule* first = nullptr;
  for (const PlannedModule& m : modules) {
    if (of_experts && m.module.find(".experts.") == std::string::npos) continue;
    if (first == nullptr) first = &m;
    if (m.scheme.text() != first->scheme.text())
      return fmt::format("{} is {} and {} is {}, and {} {}", first->module, first->scheme.text(), m.module,
                         m.scheme.text(), row.kernel,
                         of_experts ? "reads the experts of all layers by one scheme"
                                    : "takes asymmetric codes only where one scheme holds for all");
  }
  return "";
}

// Marlin's tiles are 64 outputs x 128 inputs or 128 x 64, of whole groups (marlin_padded_nk).
std::string padding_note(std::span<const PlannedModule> modules) {
  std::map<std::string, PlannedModule> fused;  // the linears that an engine runs, with all their outputs
  for (const PlannedModule& m : modules) {
    if (inputs_of(m) != Inputs::kAsTheyAre) continue;
    const auto [entry, fresh] = fused.try_emplace(fused_linear(m.module).module, m);
    if (!fresh) entry->second.out_features += m.out_features;
  }
  for (const auto& [name, m] : fused) {
    const std::int64_t group = std::max(group_size_of(m.scheme), 1);
    const auto tiled = [group, &one = m](std::int64_t out, std::int64_t in) {
      return one.out_features % out == 0 && one.in_features % std::lcm(in, group) == 0;
    };
    if (!tiled(64, 128) && !tiled(128, 64))
      return fmt::format(
          "{} ({} x {}) is padded with zeros to whole tiles of Marlin's there, which is slower", name,
          m.out_features, m.in_features);
  }
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
    if (reason.empty() && row.uniform_experts) reason = uniformity_complaint(row, modules, true);
    if (reason.empty() && row.uniform) reason = uniformity_complaint(row, modules, false);
    const bool fits = reason.empty();
    const bool reasoned = !verdicts.empty() && loader_of(verdicts.back()) == row.loader;
    if (fits) answered = row.loader;
    if (fits && reasoned) verdicts.pop_back();
    if (fits || !row.silent)
      verdicts.push_back({std::string(row.label), fits, reason, with_directory(row.command, directory),
                          fits && row.pads ? padding_note(modules) : ""});
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
    if (!verdict.note.empty()) item["note"] = verdict.note;
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace llmq
