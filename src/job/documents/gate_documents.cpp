#include "job/documents/gate_documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/amount_text.h"
#include "base/json_text.h"
#include "export/report/html_charts.h"
#include "export/report/page_template.h"

namespace llmq {
namespace {

constexpr std::string_view kJunit = R"(<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="llmq" tests="{{ tests }}" failures="{{ failures }}" errors="{{ errors }}">
{% for suite in suites %}
<testsuite name="{{ suite.name }}" tests="{{ suite.tests }}" failures="{{ suite.failures }}" errors="{{
  suite.errors }}" skipped="0" time="{{ suite.time }}">
{% for case in suite.cases %}
<testcase classname="llmq.gates" name="{{ case.name }}" time="0">
{%- if case.error %}<error type="{{ case.type }}" message="{{ case.words }}"/>
{%- elif case.met %}<system-out>{{ case.words }}</system-out>
{%- else %}<failure type="gate" message="{{ case.words }}"/>{% endif %}</testcase>
{% endfor %}
</testsuite>
{% endfor %}
</testsuites>
)";

constexpr std::string_view kSummary = R"({% for part in parts %}
### llmq {{ part.command }}: {{ part.name }}

| figure | value |
|---|---|
{% for figure in part.figures %}
| {{ figure[0] }} | {{ figure[1] }} |
{% endfor %}

{% if part.cases %}
| gate | measured | limit | |
|---|---|---|---|
{% for case in part.cases %}
| {{ case.name }} | {{ case.value }} | {{ case.limit }} | {{ 'met' if case.met else 'NOT MET' }} |
{% endfor %}

{% endif %}
{% endfor %}
)";

// A text inside a cell of a table: no character of it is Markdown's or HTML's, and it is one line.
std::string markdown_text(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      safe += ' ';
    else if (c == '<' || c == '>' || c == '&')
      safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
    else if (std::string_view("\\`*_[]{}|#~!@").find(c) != std::string_view::npos)
      safe += std::string("\\") + c;
    else
      safe += c;
  }
  return safe;
}

const Json* member(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

bool is_quantize(const Json& document) { return text_at(document, "schema") == "llmq.quantize/1"; }

// Where the perplexity stands: in the document of an evaluation itself. Null where nothing was evaluated.
const Json* evaluation_of(const Json& document) {
  return is_quantize(document) ? member(document, "evaluation") : &document;
}

struct GateCase {
  std::string name;
  double limit = 0, value = 0;
  bool met = false;
};

std::vector<GateCase> cases_of(const Json& document, bool strict) {
  std::vector<GateCase> cases;
  if (const Json* evaluation = evaluation_of(document))
    for (const Json& gate : evaluation->at("gates").items()) {
      // A figure that is not finite is null in JSON.
      const auto number = [&gate](const char* key) {
        const Json& value = gate.at(key);
        return value.is_number() ? value.as_double() : std::numeric_limits<double>::quiet_NaN();
      };
      cases.push_back({text_at(gate, "name"), number("limit"), number("value"), gate.at("met").as_bool()});
    }
  if (strict && is_quantize(document)) {
    const double fallbacks = static_cast<double>(document.at("fallbacks").items().size());
    cases.push_back({"strict", 0, fallbacks, fallbacks == 0});
  }
  return cases;
}

std::string name_of(const Json& document) {
  return text_at(document, is_quantize(document) ? "output" : "model");
}
std::string command_of(const Json& document) { return is_quantize(document) ? "quantize" : "eval-ppl"; }

// The documents of single models.
std::vector<const Json*> parts_of(const Json& document) {
  std::vector<const Json*> parts;
  if (const Json* models = document.find("models"); models != nullptr && models->is_array())
    for (const Json& model : models->items()) parts.push_back(&model);
  else
    parts.push_back(&document);
  return parts;
}

std::string seconds_of(const Json& document) {
  const Json* seconds = member(document, "seconds");
  return fmt::format("{:.3f}", seconds != nullptr && seconds->is_number() ? seconds->as_double() : 0);
}

void add_figures(Json& figures, const Json& of,
                 std::initializer_list<std::pair<const char*, const char*>> names) {
  for (const auto& [words, key] : names) {
    const Json* value = member(of, key);
    if (value == nullptr) continue;
    const std::string_view name = key;
    std::string text = value->is_string()   ? value->as_string()
                       : value->is_number() ? fmt::format("{:.6g}", value->as_double())
                                            : value->dump();
    if (value->is_number() && (name.starts_with("bytes") || name.ends_with("bytes")))
      text = figure_bytes_text(value->as_double());
    if (value->is_number() && name == "seconds") text = seconds_text(value->as_double());
    figures.push_back(Json::array({words, text}));
  }
}

Json figures_of(const Json& document) {
  Json figures = Json::array();
  add_figures(figures, document,
              {{"status", "status"},
               {"version", "version"},
               {"method", "method"},
               {"scheme", "scheme"},
               {"format", "format"},
               {"weights before", "bytes_in"},
               {"weights written", "bytes_out"},
               {"bits per weight, quantized linears", "bits_per_weight"},
               {"bits per weight, whole model", "bits_per_weight_total"}});
  if (const Json* evaluation = evaluation_of(document)) {
    add_figures(figures, *evaluation,
                {{"perplexity", "ppl"}, {"its standard error", "ppl_stderr"}, {"protocol", "protocol"}});
    if (const Json* against = member(*evaluation, "against"))
      add_figures(figures, *against,
                  {{"original", "model"},
                   {"perplexity of the original", "ppl"},
                   {"difference", "delta_ppl"},
                   {"KL divergence, nats", "kl_mean"},
                   {"its standard error", "kl_stderr"},
                   {"equal likeliest token, share", "top1_agreement"}});
  }
  add_figures(figures, document,
              {{"time", "seconds"}, {"peak memory", "peak_rss_bytes"}, {"digest", "digest"}});
  return figures;
}

}  // namespace

std::string junit_text(const Json& document, bool strict) {
  Json suites = Json::array();
  int tests = 0, failures = 0;
  for (const Json* part : parts_of(document)) {
    Json cases = Json::array();
    int failed = 0;
    for (const GateCase& gate : cases_of(*part, strict)) {
      failed += gate.met ? 0 : 1;
      cases.push_back(
          Json::object({{"name", gate.name},
                        {"met", gate.met},
                        {"words", fmt::format("measured {:.6g}, limit {:g}", gate.value, gate.limit)}}));
    }
    const int count = static_cast<int>(cases.items().size());
    tests += count, failures += failed;
    suites.push_back(Json::object({{"name", "llmq " + command_of(*part) + " " + name_of(*part)},
                                   {"tests", count},
                                   {"failures", failed},
                                   {"errors", 0},
                                   {"time", seconds_of(*part)},
                                   {"cases", cases}}));
  }
  return render_template(
      kJunit, Json::object({{"tests", tests}, {"failures", failures}, {"errors", 0}, {"suites", suites}}),
      html_text);
}

std::string junit_of_error(const std::string& command, const Error& error) {
  const Json test = Json::object({{"name", "llmq " + command},
                                  {"error", true},
                                  {"type", kind_name(error.kind())},
                                  {"words", error.what()}});
  const Json suite = Json::object({{"name", "llmq " + command},
                                   {"tests", 1},
                                   {"failures", 0},
                                   {"errors", 1},
                                   {"time", "0"},
                                   {"cases", Json::array({test})}});
  return render_template(
      kJunit, Json::object({{"tests", 1}, {"failures", 0}, {"errors", 1}, {"suites", Json::array({suite})}}),
      html_text);
}

std::string summary_text(const Json& document, bool strict) {
  Json parts = Json::array();
  for (const Json* part : parts_of(document)) {
    Json cases = Json::array();
    for (const GateCase& gate : cases_of(*part, strict))
      cases.push_back(Json::object({{"name", gate.name},
                                    {"value", fmt::format("{:.6g}", gate.value)},
                                    {"limit", fmt::format("{:g}", gate.limit)},
                                    {"met", gate.met}}));
    parts.push_back(Json::object({{"command", command_of(*part)},
                                  {"name", name_of(*part)},
                                  {"figures", figures_of(*part)},
                                  {"cases", cases}}));
  }
  return render_template(kSummary, Json::object({{"parts", parts}}), markdown_text);
}

}  // namespace llmq
