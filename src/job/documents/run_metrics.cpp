#include "job/documents/run_metrics.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "base/prometheus_text.h"

namespace llmq {
namespace {

// One figure: its place in the outcome ("evaluation/ppl"), its name, what it is.
struct Figure {
  const char* path;
  const char* name;
  const char* help;
};
constexpr Figure kFigures[] = {
    {"seconds", "quantize_seconds", "Time from the start of the run to the published output"},
    {"peak_rss_bytes", "quantize_peak_rss_bytes", "Largest resident set of the quantization"},
    {"peak_device_bytes", "quantize_peak_device_bytes",
     "Largest sum of a device's memory in use; 0 on the processor"},
    {"planned_peak_bytes", "quantize_planned_peak_bytes", "What the plan said the peak would be"},
    {"bytes_in", "quantize_input_bytes", "Bytes of the original's tensors"},
    {"bytes_out", "quantize_output_bytes", "Bytes of the weights written"},
    {"bits_per_weight", "quantize_bits_per_weight", "Stored bits per weight of the quantized linears"},
    {"bits_per_weight_total", "quantize_model_bits_per_weight", "Stored bits per weight of the whole model"},
    {"modules", "quantize_modules", "Linears or tensors quantized"},
    {"calibration/tokens", "quantize_calibration_tokens", "Tokens of the calibration text that were used"},
    {"evaluation/ppl", "quantize_perplexity", "Perplexity of the output"},
    {"evaluation/ppl_stderr", "quantize_perplexity_stderr", "Its standard error"},
    {"evaluation/against/ppl", "quantize_original_perplexity", "Perplexity of the original"},
    {"evaluation/against/kl_mean", "quantize_kl_nats", "Mean KL divergence of the output from the original"},
    {"evaluation/against/top1_agreement", "quantize_top1_agreement",
     "Share of positions with equal likeliest token"},
};

// The number at "a/b/c"; null where there is none.
Json number_at(const Json& document, std::string_view path) {
  const Json* at = &document;
  while (at != nullptr && !path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    at = at->find(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return at != nullptr && at->is_number() ? *at : Json();
}

std::int64_t count_at(const Json& document, const char* key) {
  const Json* value = document.find(key);
  return value != nullptr && value->is_array() ? static_cast<std::int64_t>(value->items().size()) : 0;
}

const Json::Array& gates(const Json& outcome) {
  static const Json::Array kNone;
  const Json* evaluation = outcome.find("evaluation");
  const Json* list = evaluation == nullptr ? nullptr : evaluation->find("gates");
  return list != nullptr && list->is_array() ? list->items() : kNone;
}

// A metric with its help and one value, or one for each of several labels.
void metric(std::string& text, const std::string& name, const std::string& help,
            const std::vector<std::pair<std::string, Json>>& values) {
  text += prometheus_head("llmq_" + name, "gauge", help);
  for (const auto& [labels, value] : values) text += prometheus_sample("llmq_" + name, labels, value.dump());
}

}  // namespace

Json metrics_json(const Json& outcome, int exit_code, const Program& program) {
  Json numbers = Json::object(), words = Json::object();
  for (const Figure& figure : kFigures)
    if (const Json value = number_at(outcome, figure.path); !value.is_null()) numbers[figure.name] = value;
  numbers["quantize_fallbacks"] = count_at(outcome, "fallbacks");
  numbers["quantize_warnings"] = count_at(outcome, "warnings");
  numbers["quantize_exit_code"] = exit_code;
  for (const char* key : {"status", "output", "version", "method", "scheme", "format", "digest"})
    if (const std::string word = text_at(outcome, key); !word.empty()) words[key] = word;
  words["llmq_version"] = program.version;
  words["llmq_commit"] = program.commit;
  return Json::object({{"schema", "llmq.metrics/1"}, {"params", words}, {"metrics", numbers}});
}

std::string prometheus_text(const Json& outcome, int exit_code, const Program& program, double unix_seconds) {
  const std::string output = prometheus_label("output", text_at(outcome, "output"));
  std::string text;
  for (const Figure& figure : kFigures)
    if (const Json value = number_at(outcome, figure.path); !value.is_null())
      metric(text, figure.name, figure.help, {{output, value}});
  metric(text, "quantize_fallbacks", "Modules that fell back to another method",
         {{output, Json(count_at(outcome, "fallbacks"))}});
  std::vector<std::pair<std::string, Json>> met;
  for (const Json& gate : gates(outcome))
    met.emplace_back(output + "," + prometheus_label("gate", text_at(gate, "name")),
                     Json(gate.at("met").as_bool() ? 1 : 0));
  if (!met.empty()) metric(text, "quantize_gate_met", "1 where the gate of the recipe was met", met);
  metric(text, "quantize_exit_code", "0: done, 3: a gate was not met", {{output, Json(exit_code)}});
  metric(text, "quantize_finished_timestamp_seconds", "When the run finished",
         {{output, Json(unix_seconds)}});
  std::string labels = output;
  for (const char* key : {"status", "method", "scheme", "format", "digest"})
    labels += "," + prometheus_label(key, text_at(outcome, key));
  labels +=
      "," + prometheus_label("version", program.version) + "," + prometheus_label("commit", program.commit);
  metric(text, "quantize_run", "What was run", {{labels, Json(1)}});
  return text;
}

void write_metrics(Io& io, const std::string& directory, const Json& outcome, int exit_code,
                   const Program& program) {
  if (directory.empty()) return;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  io.make_directory(directory);
  write_text_atomically(io, Path(directory) / "metrics.json",
                        metrics_json(outcome, exit_code, program).dump(1) + "\n");
  write_text_atomically(io, Path(directory) / "llmq.prom", prometheus_text(outcome, exit_code, program, now));
}

}  // namespace llmq
