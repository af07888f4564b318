#include "export/formats/loader_constraints.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "export/formats/fused_linears.h"
#include "export/formats/listed_names.h"
#include "export/formats/loader_rows.h"
#include "export/formats/packed_formats.h"

namespace llmq {
namespace {

LinearKind kind_of(const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  if (scheme.scale_form() == ScaleForm::kTwoLevel) return LinearKind::kNvfp4;
  if (scheme.weight_type == WeightType::kFloat4) return LinearKind::kMxfp4;
  if (scheme.scale_form() == ScaleForm::kExponent)
    return scheme.rounds_inputs() ? LinearKind::kMxfp8Inputs : LinearKind::kMxfp8;
  if (scheme.activation_bits == 16) return LinearKind::kIntegers;
  return scheme.weight_type == WeightType::kFloat8 ? LinearKind::kFloat8Inputs : LinearKind::kInt8Inputs;
}

std::string_view loader_of(const LoaderVerdict& verdict) {
  const auto row = std::find_if(loader_rows().begin(), loader_rows().end(),
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
  const LoaderGroups& groups = row.groups;
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
  const bool packed = kind_of(m) == LinearKind::kIntegers;
  const std::span<const int> bits =
      scheme.symmetric || (!row.kind && !packed) ? row.symmetric_bits : row.asymmetric_bits;
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

// Of the parts that the model has: where keys are the values (Gemma 4) there is no v_proj, and blocks that
// read other blocks' keys have q_proj alone.
std::string fusion_complaint(std::span<const PlannedModule> modules, std::span<const std::string> dense) {
  std::map<std::string, const PlannedModule*> fused;  // the first of each set
  std::set<std::string> names(dense.begin(), dense.end());
  for (const PlannedModule& m : modules) names.insert(m.module);
  for (const PlannedModule& m : modules) {
    const PlannedModule& first = *fused.try_emplace(fused_linear(m.module, names).module, &m).first->second;
    if (!(first.scheme == m.scheme))
      return fmt::format("{} and {} become one linear there and have different schemes", first.module,
                         m.module);
  }
  for (const std::string& module : dense)
    if (const auto found = fused.find(fused_linear(module, names).module); found != fused.end())
      return fmt::format("{} becomes part of {} there, and {} is not quantized", found->second->module,
                         found->first, module);
  std::map<std::string, const PlannedModule*> mixtures;  // the first of each layer's experts
  for (const PlannedModule& m : modules) {
    const std::string experts = experts_of(m.module);
    if (experts.empty()) continue;
    const PlannedModule& first = *mixtures.try_emplace(experts, &m).first->second;
    if (!(first.scheme == m.scheme))
      return fmt::format("{} and {} are of experts that run as one there and have different schemes",
                         first.module, m.module);
  }
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

std::string scales_complaint(const UnlikeScales& scales) {
  return fmt::format(
      "{} and {} become one linear there and have different global scales ({} and {}), of which one would "
      "decode both: the weights would be wrong",
      scales.first, scales.second, scales.of_first, scales.of_second);
}

std::string inputs_note(const UnlikeScales& scales) {
  return fmt::format(
      "{} and {} become one linear there, whose inputs are rounded by one of their scales ({} and {}), and "
      "evaluations here round them by each",
      scales.first, scales.second, scales.of_first, scales.of_second);
}

// Marlin's tiles are 64 outputs x 128 inputs or 128 x 64, of whole groups (marlin_padded_nk).
std::string padding_note(std::span<const PlannedModule> modules) {
  std::map<std::string, PlannedModule> fused;  // the linears that an engine runs, with all their outputs
  std::set<std::string> names;
  for (const PlannedModule& m : modules) names.insert(m.module);
  for (const PlannedModule& m : modules) {
    if (const LinearKind kind = kind_of(m);
        kind != LinearKind::kIntegers && kind != LinearKind::kNvfp4 && kind != LinearKind::kMxfp4)
      continue;
    PlannedModule one = m;
    const std::optional<std::string> values = values_beside(m.module);
    if (values && !names.contains(*values))
      one.out_features *= 2;  // keys that are the values lie there as both
    const auto [entry, fresh] = fused.try_emplace(fused_linear(m.module).module, one);
    if (!fresh) entry->second.out_features += one.out_features;
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

std::string note_of(const LoaderRow& row, std::span<const PlannedModule> modules, const FusedScales& scales) {
  const bool rounds = row.kind == LinearKind::kNvfp4 || row.kind == LinearKind::kFloat8Inputs;
  std::string note = row.fuses && rounds && scales.inputs ? inputs_note(*scales.inputs) : "";
  if (const std::string padding = row.pads ? padding_note(modules) : ""; !padding.empty())
    note += (note.empty() ? "" : "; ") + padding;
  return note;
}

std::string with_directory(std::string_view command, const std::string& directory) {
  const std::size_t hole = command.find("{}");
  return std::string(command.substr(0, hole)) + directory + std::string(command.substr(hole + 2));
}

}  // namespace

std::vector<LoaderVerdict> loader_verdicts(const std::string& format, std::span<const PlannedModule> modules,
                                           const std::string& directory, const BesidePacked& beside) {
  std::vector<LoaderVerdict> verdicts;
  std::string_view answered;  // the loader that has its verdict
  for (const LoaderRow& row : loader_rows()) {
    const auto concerned = [&](const PlannedModule& m) { return !row.kind || *row.kind == kind_of(m); };
    if (row.format != table_format(format) || row.loader == answered) continue;
    if (std::none_of(modules.begin(), modules.end(), concerned)) continue;
    std::string reason;
    for (const PlannedModule& m : modules) {
      if (!concerned(m)) continue;
      reason = complaint(row, m);
      if (!reason.empty()) break;
    }
    if (reason.empty() && row.fuses) reason = fusion_complaint(modules, beside.dense);
    if (reason.empty() && row.fuses && row.kind == LinearKind::kNvfp4 && beside.scales.weights)
      reason = scales_complaint(*beside.scales.weights);
    if (reason.empty() && row.uniform_experts) reason = uniformity_complaint(row, modules, true);
    if (reason.empty() && row.uniform) reason = uniformity_complaint(row, modules, false);
    const bool fits = reason.empty();
    const bool reasoned = !verdicts.empty() && loader_of(verdicts.back()) == row.loader;
    if (fits) answered = row.loader;
    if (fits && reasoned) verdicts.pop_back();
    if (fits || !row.silent)
      verdicts.push_back({std::string(row.label), fits, reason, with_directory(row.command, directory),
                          fits ? note_of(row, modules, beside.scales) : ""});
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
