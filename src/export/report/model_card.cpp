#include "export/report/model_card.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace llmq {
namespace {

// A YAML string that needs no thought: JSON strings are YAML.
std::string quoted(const std::string& text) { return Json(text).dump(); }

// "w4a16_g64_asym" -> "w4a16", the tag people search for.
std::string short_scheme(const std::string& scheme) { return scheme.substr(0, scheme.find('_')); }

// One value on the key's line, several as a list below it.
std::string entry(const std::string& key, const std::vector<std::string>& values,
                  bool always_a_list = false) {
  if (values.empty()) return "";
  if (values.size() == 1 && !always_a_list) return key + ": " + quoted(values.front()) + "\n";
  std::string text = key + ":\n";
  for (const std::string& value : values) text += "- " + quoted(value) + "\n";
  return text;
}

std::string entry(const std::string& key, const std::string& value) {
  return value.empty() ? "" : key + ": " + quoted(value) + "\n";
}

std::string front_matter(const RunFacts& run, const CardFacts& card) {
  std::string text = "---\nlibrary_name: transformers\npipeline_tag: text-generation\n";
  text += entry("base_model", run.card.base_model);
  if (!run.card.base_model.empty()) text += "base_model_relation: quantized\n";
  text += entry("license", run.card.licenses) + entry("license_name", run.card.license_name) +
          entry("license_link", run.card.license_link) + entry("datasets", run.card.datasets, true) +
          entry("quantized_by", run.card.quantized_by);
  text += "tags:\n";
  for (const std::string& tag : {run.method, run.format, short_scheme(run.scheme), std::string("llmq")})
    if (!tag.empty() && (tag != run.format || run.method != run.format)) text += "- " + quoted(tag) + "\n";
  if (!card.measured.empty()) {
    const MeasuredRow& row = card.measured.back();
    text += fmt::format(
        "model-index:\n- name: {}\n  results:\n  - task: {{type: text-generation}}\n    dataset: {{type: "
        "text, name: {}}}\n    metrics:\n"
        "    - {{type: perplexity, name: {}, value: {:.4f}}}\n",
        quoted(card.title), quoted(card.text), quoted("perplexity (" + card.protocol + ")"), row.ppl);
  }
  return text + "---\n";
}

std::string optional_cell(const std::optional<double>& value, double factor, const char* unit, int digits) {
  return value ? fmt::format("{:.{}f}{}", *value * factor, digits, unit) : "–";
}

std::string measured_table(const CardFacts& card) {
  if (card.measured.empty()) return "";
  std::string text =
      fmt::format("\n## Measured\n\nPerplexity of {} (protocol {}), by llmq.\n\n", card.text, card.protocol);
  text +=
      "| model | bytes | bits per weight | perplexity | KL (nats) | top-1 "
      "|\n|---|---:|---:|---:|---:|---:|\n";
  for (const MeasuredRow& row : card.measured)
    text += fmt::format("| {} | {} | {:.3f} | {:.4f} ± {:.4f} | {} | {} |\n", row.name, row.bytes,
                        row.bits_per_weight, row.ppl, row.ppl_stderr, optional_cell(row.kl_mean, 1, "", 4),
                        optional_cell(row.top1_agreement, 100, " %", 2));
  return text;
}

std::string scalar_text(const Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

std::string what_was_done(const RunFacts& run) {
  std::string text = "\n## How it was made\n\n| | |\n|---|---|\n";
  const auto row = [&](const std::string& what, const std::string& value) {
    if (!value.empty()) text += "| " + what + " | " + value + " |\n";
  };
  if (run.adapter)
    row("adapter", fmt::format("{}: rank {}, {} linears", run.adapter->directory, run.adapter->rank,
                               run.adapter->linears));
  if (const Json* const rotate = run.recipe.is_object() ? run.recipe.find("rotate") : nullptr;
      rotate != nullptr && rotate->at("value") == Json("hadamard"))
    row("rotation", "values of each head, by Hadamard matrices that are in the weights");
  row("method", run.method);
  row("scheme", run.scheme);
  row("format", run.format);
  row("bits per weight (quantized linears)", fmt::format("{:.3f}", run.bits_per_weight));
  row("bits per weight (whole model)", fmt::format("{:.3f}", run.bits_per_weight_total));
  row("bytes before, after", fmt::format("{}, {}", run.bytes_in, run.bytes_out));
  if (run.calibration.is_object())
    for (const Json::Member& member : run.calibration.members())
      row("calibration: " + member.first, scalar_text(member.second));
  row("made by", "llmq " + run.version);
  if (!run.command.empty()) text += "\n```\n" + run.command + "\n```\n";
  return text + "\nEvery module's scheme and error: `report.json`.\n";
}

std::string loading(std::span<const LoaderVerdict> loaders) {
  std::string fitting, others;
  for (const LoaderVerdict& loader : loaders) {
    if (loader.fits)
      fitting += fmt::format("\n{}:\n\n```\n{}\n```\n{}", loader.loader, loader.command,
                             loader.note.empty() ? "" : "\n" + loader.note + ".\n");
    if (!loader.fits) others += fmt::format("- {}: {}.\n", loader.loader, loader.reason);
  }
  std::string text = "\n## Loading\n" + fitting;
  if (!others.empty()) text += "\nNot loadable by:\n\n" + others;
  return text;
}

}  // namespace

std::string make_model_card(const RunFacts& run, const CardFacts& card,
                            std::span<const LoaderVerdict> loaders) {
  return front_matter(run, card) + "\n# " + card.title + "\n\n" +
         fmt::format("{} quantized with {} to {}, stored as {}.\n", run.original(), run.method, run.scheme,
                     run.format) +
         measured_table(card) + what_was_done(run) + loading(loaders);
}

}  // namespace llmq
