#include "export/loader_constraints.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "base/error.h"

namespace llmq {
namespace {

// What one loader wants of every quantized linear. Group size -1 is one scale per output channel.
struct LoaderRow {
  std::string_view loader, format;
  std::string_view kernel;  // as named in reasons
  std::int64_t in_multiple, out_multiple;
  std::span<const int> groups;  // empty: any
  std::span<const int> symmetric_bits, asymmetric_bits;
  bool fuses;                // q/k/v and gate/up become one linear each, so they must share a scheme
  bool uniform;              // one scheme for every quantized linear
  std::string_view command;  // {} is the directory
};

constexpr std::array kMarlinGroups = {-1, 32, 64, 128};
constexpr std::array kGptqModelGroups = {-1, 16, 32, 64, 128};
constexpr std::array kFour = {4};
constexpr std::array kFourAndEight = {4, 8};
constexpr std::array kTwoToEight = {2, 3, 4, 5, 6, 7, 8};

constexpr std::string_view kTransformersCommand =
    "python -c \"from transformers import AutoModelForCausalLM; "
    "AutoModelForCausalLM.from_pretrained('{}')\"";
constexpr std::string_view kDequantizingCommand =
    "python -c \"from transformers import AutoModelForCausalLM, CompressedTensorsConfig; "
    "AutoModelForCausalLM.from_pretrained('{}', "
    "quantization_config=CompressedTensorsConfig(dequantize=True))\"";

// Rows of one loader stand together, and the first that fits answers for it. Transformers 5.23 with
// compressed-tensors 0.20 keeps symmetric codes packed; asymmetric ones load only with dequantize=True, which
// applies one scheme to all linears.
const std::array<LoaderRow, 6> kLoaders = {{
    {"vLLM (Marlin kernels)", "compressed-tensors", "Marlin", 128, 64, kMarlinGroups, kFourAndEight, kFour,
     true, false, "vllm serve {}"},
    {"Transformers with compressed-tensors",
     "compressed-tensors",
     "Transformers",
     1,
     1,
     {},
     kTwoToEight,
     {},
     false,
     false,
     kTransformersCommand},
    {"Transformers with compressed-tensors",
     "compressed-tensors",
     "Transformers",
     1,
     1,
     {},
     kTwoToEight,
     kTwoToEight,
     false,
     true,
     kDequantizingCommand},
    {"vLLM (Marlin kernels)", "awq", "Marlin", 128, 64, kMarlinGroups, kFour, kFour, true, false,
     "vllm serve {}"},
    {"Transformers with GPTQModel", "awq", "GPTQModel", 1, 8, kGptqModelGroups, kFour, kFour, false, false,
     kTransformersCommand},
    {"GPTQModel", "awq", "GPTQModel", 1, 8, kGptqModelGroups, kFour, kFour, false, false,
     "python -c \"from gptqmodel import GPTQModel; GPTQModel.load('{}')\""},
}};

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
  const std::span<const int> bits = scheme.symmetric ? row.symmetric_bits : row.asymmetric_bits;
  const int group = scheme.granularity == Granularity::kGroup ? scheme.group_size : -1;
  if (!contains(bits, scheme.bits))
    return fmt::format("{} has {}-bit {} codes, and {} wants {} bits", m.module, scheme.bits,
                       scheme.symmetric ? "symmetric" : "asymmetric", row.kernel, joined(bits));
  if (!row.groups.empty() && !contains(row.groups, group))
    return fmt::format("{} has group size {}, and {} wants one of {}", m.module, group, row.kernel,
                       joined(row.groups));
  if (m.in_features % row.in_multiple != 0)
    return fmt::format("{} has {} input features, and {} wants a multiple of {}", m.module, m.in_features,
                       row.kernel, row.in_multiple);
  if (m.out_features % row.out_multiple != 0)
    return fmt::format("{} has {} output features, and {} wants a multiple of {}", m.module, m.out_features,
                       row.kernel, row.out_multiple);
  return "";
}

// "model.layers.3.self_attn" + "qkv" for q_proj, k_proj and v_proj: the linear that vLLM makes of them, and
// how many parts it has.
std::pair<std::string, int> fused_name(const std::string& module) {
  const std::size_t dot = module.rfind('.');
  const std::string parent = module.substr(0, dot == std::string::npos ? 0 : dot),
                    leaf = module.substr(dot == std::string::npos ? 0 : dot + 1);
  if (leaf == "q_proj" || leaf == "k_proj" || leaf == "v_proj") return {parent + ".qkv_proj", 3};
  if (leaf == "gate_proj" || leaf == "up_proj") return {parent + ".gate_up_proj", 2};
  return {module, 1};
}

std::string fusion_complaint(std::span<const PlannedModule> modules) {
  struct Parts {
    const PlannedModule* first;
    int wanted, found;
  };
  std::map<std::string, Parts> fused;
  for (const PlannedModule& m : modules) {
    const auto [name, wanted] = fused_name(m.module);
    const auto [entry, fresh] = fused.try_emplace(name, Parts{&m, wanted, 0});
    ++entry->second.found;
    if (!fresh && !(entry->second.first->scheme == m.scheme))
      return fmt::format("{} and {} become one linear there and have different schemes",
                         entry->second.first->module, m.module);
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
  for (const LoaderRow& row : kLoaders) {
    if (row.format != format) continue;
    std::string reason;
    for (const PlannedModule& m : modules) {
      reason = complaint(row, m);
      if (!reason.empty()) break;
    }
    if (reason.empty() && row.fuses) reason = fusion_complaint(modules);
    if (reason.empty() && row.uniform) reason = uniformity_complaint(row, modules);
    const bool again = !verdicts.empty() && verdicts.back().loader == row.loader;
    if (again && verdicts.back().fits) continue;
    if (again) verdicts.pop_back();
    verdicts.push_back(
        {std::string(row.loader), reason.empty(), reason, with_directory(row.command, directory)});
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
