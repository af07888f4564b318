// A comparison for the eye, and as a specification for Vega-Lite.
#include <fmt/core.h>

#include <algorithm>

#include "base/amount_text.h"
#include "export/report/chart.h"
#include "export/report/comparison.h"
#include "export/report/page_template.h"
#include "export/report/templates.h"

namespace llmq {
namespace {

constexpr const char* kBitsName = "bits per weight, whole model";
constexpr const char* kKlName = "KL divergence from the original, nats (log)";

// Null, for "not measured" in the template, where there is none.
Json shown(const std::optional<double>& value, const char* form) {
  return value ? Json(fmt::format(fmt::runtime(form), *value)) : Json();
}
Json shown_bytes(const std::optional<double>& value) {
  return value ? Json(figure_bytes_text(*value)) : Json();
}
Json shown_kl(const ComparedOutput& o) {
  return o.kl && o.kl_stderr ? Json(fmt::format("{:.5f} ± {:.5f}", *o.kl, *o.kl_stderr))
                             : shown(o.kl, "{:.5f}");
}

std::vector<const ComparedOutput*> pareto_line(const Comparison& comparison) {
  std::vector<const ComparedOutput*> line;
  for (const ComparedOutput& output : comparison.outputs)
    if (output.on_pareto_line) line.push_back(&output);
  std::stable_sort(line.begin(), line.end(), [](const ComparedOutput* a, const ComparedOutput* b) {
    return *a->bits_total < *b->bits_total;
  });
  return line;
}

// The span of bits, with a margin: it need not begin at zero.
ChartAxis bits_axis(const std::vector<double>& bits) {
  ChartAxis axis{kBitsName, 0, 16, false, {}};
  if (bits.empty()) return axis;
  const auto [least, most] = std::minmax_element(bits.begin(), bits.end());
  const double margin = std::max(0.08 * (*most - *least), 0.1);
  axis.first = std::max(0.0, *least - margin);
  axis.last = *most + margin;
  return axis;
}

Chart kl_chart(const Comparison& comparison) {
  Chart chart;
  chart.id = "kl";
  chart.title = "KL divergence against bits per weight";
  std::vector<double> bits, divergences;
  for (std::size_t i = 0; i < comparison.outputs.size(); ++i) {
    const ComparedOutput& o = comparison.outputs[i];
    if (!o.placed()) continue;
    ChartMark mark{o.on_pareto_line ? "best" : "", std::to_string(i + 1), {}, *o.bits_total, *o.kl, {}, {}};
    mark.words = fmt::format("{} {}: {:.3f} bits per weight, KL {:.5f}", i + 1, o.name, *o.bits_total, *o.kl);
    if (o.kl_stderr) {
      mark.words += fmt::format(" ± {:.5f}", *o.kl_stderr);
      mark.low = *o.kl - *o.kl_stderr;
      mark.high = *o.kl + *o.kl_stderr;
      divergences.push_back(*mark.low);
      divergences.push_back(*mark.high);
    }
    bits.push_back(mark.x);
    divergences.push_back(mark.y);
    chart.words += (chart.words.empty() ? "" : "; ") + mark.words;
    chart.marks.push_back(std::move(mark));
  }
  chart.x = bits_axis(bits);
  chart.y = logarithmic_axis(kKlName, divergences);
  ChartLine line{"pareto", "Pareto line: fewer bits cost divergence", {}};
  for (const ComparedOutput* output : pareto_line(comparison))
    line.points.emplace_back(*output->bits_total, *output->kl);
  chart.lines.push_back(std::move(line));
  return chart;
}

Json table_rows(const Comparison& comparison) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < comparison.outputs.size(); ++i) {
    const ComparedOutput& o = comparison.outputs[i];
    rows.push_back(Json::object(
        {{"number", std::to_string(i + 1)},
         {"name", o.name},
         {"method", o.method},
         {"scheme", o.scheme},
         {"format", o.format},
         {"best", o.on_pareto_line},
         {"figures",
          Json::array({shown_bytes(o.bytes), shown(o.bits_per_weight, "{:.3f}"),
                       shown(o.bits_total, "{:.3f}"), shown(o.ppl, "{:.4f}"), shown(o.delta_ppl, "{:+.4f}"),
                       shown_kl(o), o.top1 ? Json(fmt::format("{:.2f} %", 100 * *o.top1)) : Json(),
                       o.quantize_seconds ? Json(seconds_text(*o.quantize_seconds)) : Json(),
                       shown_bytes(o.quantize_peak_bytes), shown(o.decode_tokens_per_second, "{:.1f}"),
                       shown_bytes(o.run_peak_bytes)})}}));
  }
  return rows;
}

Json vega_field(const char* name, const char* title, bool logarithmic) {
  return Json::object(
      {{"field", name},
       {"type", "quantitative"},
       {"title", title},
       {"scale", logarithmic ? Json::object({{"type", "log"}}) : Json::object({{"zero", false}})}});
}

}  // namespace

std::string comparison_page(const Comparison& comparison) {
  const Chart chart = kl_chart(comparison);
  std::string protocol, machine;
  for (const ComparedOutput& output : comparison.outputs) {
    if (protocol.empty()) protocol = output.protocol;
    if (machine.empty()) machine = output.machine;
  }
  return render_page(kComparisonTemplate,
                     Json::object({{"count", static_cast<std::int64_t>(comparison.outputs.size())},
                                   {"chart", chart.marks.empty() ? Json() : chart_json(chart)},
                                   {"protocol", protocol},
                                   {"machine", machine},
                                   {"rows", table_rows(comparison)},
                                   {"warnings", text_list(comparison.warnings)},
                                   {"notes", text_list(comparison.notes)}}));
}

Json comparison_vega(const Comparison& comparison) {
  Json values = Json::array();
  for (std::size_t i = 0; i < comparison.outputs.size(); ++i) {
    const ComparedOutput& o = comparison.outputs[i];
    if (!o.placed()) continue;
    const double error = o.kl_stderr.value_or(0);
    values.push_back(Json::object({{"number", std::to_string(i + 1)},
                                   {"output", o.name},
                                   {"scheme", o.scheme},
                                   {"method", o.method},
                                   {"bits_per_weight_total", *o.bits_total},
                                   {"kl_mean", *o.kl},
                                   // A logarithmic axis has no place for what is not above zero.
                                   {"kl_low", *o.kl > error ? *o.kl - error : *o.kl},
                                   {"kl_high", *o.kl + error},
                                   {"pareto", o.on_pareto_line}}));
  }
  const Json x = vega_field("bits_per_weight_total", kBitsName, false);
  const auto layer = [&x](Json mark, const char* field, std::initializer_list<JsonField> more) {
    Json encoding = Json::object({{"x", x}, {"y", vega_field(field, kKlName, true)}});
    for (const JsonField& member : more) encoding[member.name] = member.value;
    return Json::object({{"mark", std::move(mark)}, {"encoding", encoding}});
  };
  const Json nominal = Json::object({{"field", "number"}, {"type", "nominal"}});
  Json line = layer("line", "kl_mean", {});
  line["transform"] = Json::array({Json::object({{"filter", "datum.pareto"}})});
  Json tooltip = Json::array();
  for (const char* name : {"output", "scheme", "method", "bits_per_weight_total", "kl_mean"})
    tooltip.push_back(Json::object({{"field", name}}));
  return Json::object(
      {{"$schema", "https://vega.github.io/schema/vega-lite/v6.json"},
       {"title", "KL divergence against bits per weight"},
       {"width", 480},
       {"height", 320},
       {"data", Json::object({{"values", values}})},
       {"layer",
        Json::array({std::move(line), layer("rule", "kl_low", {{"y2", Json::object({{"field", "kl_high"}})}}),
                     layer(Json::object({{"type", "point"}, {"filled", true}, {"size", 70}}), "kl_mean",
                           {{"tooltip", tooltip},
                            {"color", Json::object({{"field", "pareto"}, {"type", "nominal"}})}}),
                     layer(Json::object({{"type", "text"}, {"dx", 10}, {"align", "left"}}), "kl_mean",
                           {{"text", nominal}})})}});
}

}  // namespace llmq
