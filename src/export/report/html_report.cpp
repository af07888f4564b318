#include "export/report/html_report.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/amount_text.h"
#include "base/json_text.h"
#include "export/report/page_template.h"
#include "export/report/report_page.h"
#include "export/report/templates.h"

namespace llmq {
namespace html {
namespace {

std::string last_part(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const std::size_t slash = path.find_last_of('/', end);
  return path.substr(slash == std::string::npos ? 0 : slash + 1,
                     end - (slash == std::string::npos ? 0 : slash + 1) + 1);
}

bool holds(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  return found != nullptr && found->is_bool() && found->as_bool();
}

// The object under `key`; null where there is none.
const Json* object_of(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  return found != nullptr && found->is_object() ? found : nullptr;
}

double figure_of(const Json& object, std::string_view key) { return number_of(object, key).value_or(0); }

// Anybody may have written the report, so its bytes may be no number of bytes.
std::string bytes_of(const Json& object, std::string_view key) {
  return figure_bytes_text(figure_of(object, key));
}

Json card(const std::string& figure, const std::string& words) {
  return Json::object({{"figure", figure}, {"words", words}});
}

void add_size_cards(Json& cards, const Json& r) {
  if (const auto bits = number_of(r, "bits_per_weight"))
    cards.push_back(card(fmt::format("{:.3f}", *bits),
                         fmt::format("bits per weight in the quantized linears, {:.3f} over the whole model",
                                     figure_of(r, "bits_per_weight_total"))));
  if (const double out = figure_of(r, "bytes_out"); out > 0)
    cards.push_back(
        card(bytes_of(r, "bytes_out"), fmt::format("from {}: {:.2f} times smaller", bytes_of(r, "bytes_in"),
                                                   figure_of(r, "bytes_in") / out)));
}

void add_quality_cards(Json& cards, const Json& r) {
  if (const double rtn = figure_of(r, "rtn_loss"); rtn > 0)
    cards.push_back(card(fmt::format("{:.1f} %", 100 * figure_of(r, "loss") / rtn),
                         "of plain rounding’s loss is left, summed over all linears"));
  const Json* const evaluation = r.find("evaluation");
  if (evaluation == nullptr) return;
  if (const Json* against = object_of(*evaluation, "against"))
    cards.push_back(card(fmt::format("{:.4f}", figure_of(*against, "kl_mean")),
                         "KL divergence from the original, in nats"));
  cards.push_back(card(fmt::format("{:.5g}", figure_of(*evaluation, "ppl")), "perplexity"));
}

void add_cost_cards(Json& cards, const Json& r) {
  if (const auto seconds = number_of(r, "seconds")) {
    const Json* const time = r.find("time");
    cards.push_back(card(seconds_text(*seconds),
                         time == nullptr
                             ? std::string("to quantize")
                             : "to quantize, predicted " + seconds_text(figure_of(*time, "seconds"))));
  }
  if (const Json* memory = r.find("memory"))
    cards.push_back(card(bytes_of(*memory, "peak_rss_bytes"),
                         "peak memory, planned " + bytes_of(*memory, "planned_peak_bytes")));
  if (const Json* disk = r.find("disk"))
    cards.push_back(card(bytes_of(*disk, "bytes_read"),
                         fmt::format("read of the model, planned {}; written {}, planned {}",
                                     bytes_of(*disk, "planned_bytes_read"), bytes_of(*disk, "bytes_written"),
                                     bytes_of(*disk, "planned_bytes_written"))));
}

Json cards(const Page& page) {
  Json made = Json::array();
  add_size_cards(made, page.report);
  add_quality_cards(made, page.report);
  add_cost_cards(made, page.report);
  made.push_back(card(std::to_string(page.modules.size()),
                      page.dense.empty()
                          ? std::string("linears quantized")
                          : fmt::format("linears quantized, {} left dense", page.dense.size())));
  return made;
}

Json fallbacks(const Json& r) {
  Json list = Json::array();
  for (const Json& one : list_of(r, "fallbacks"))
    list.push_back(Json::object({{"name", text_at(one, "module")}, {"text", text_at(one, "reason")}}));
  return list;
}

Json warnings(const Json& r) {
  Json list = Json::array();
  for (const Json& one : list_of(r, "warnings"))
    if (one.is_string()) list.push_back(Json::object({{"text", one}}));
  return list;
}

Json gates(const Json& evaluation) {
  Json list = Json::array();
  for (const Json& gate : list_of(evaluation, "gates")) {
    const bool met = holds(gate, "met");
    list.push_back(Json::object({{"name", text_at(gate, "name")},
                                 {"text", fmt::format("limit {:g}, found {:.6g}", figure_of(gate, "limit"),
                                                      figure_of(gate, "value"))},
                                 {"verdict", met ? "met" : "not met"},
                                 {"good", met}}));
  }
  return list;
}

Json perplexity(const Json& r) {
  const Json* const e = object_of(r, "evaluation");
  if (e == nullptr) return Json();
  const Json* const against = object_of(*e, "against");
  const auto compared = [&](const char* key, double factor, int digits, const char* unit) {
    const auto value = against ? number_of(*against, key) : std::nullopt;
    return value ? fmt::format("{:.{}f}{}", *value * factor, digits, unit) : "–";
  };
  Json rows = Json::array();
  if (against) rows.push_back(Json::array({"original", compared("ppl", 1, 4, ""), "", "", "", "", ""}));
  rows.push_back(Json::array(
      {"quantized", fmt::format("{:.4f} ± {:.4f}", figure_of(*e, "ppl"), figure_of(*e, "ppl_stderr")),
       compared("delta_ppl", 1, 4, ""), compared("kl_mean", 1, 5, ""), compared("kl_p99", 1, 4, ""),
       compared("kl_max", 1, 4, ""), compared("top1_agreement", 100, 2, " %")}));
  const double windows = figure_of(*e, "windows");
  return Json::object({{"text", text_at(*e, "text")},
                       {"protocol", text_at(*e, "protocol")},
                       {"windows", fmt::format("{:.0f} window{}", windows, windows == 1 ? "" : "s")},
                       {"rows", rows},
                       {"gates", gates(*e)}});
}

Json task_scores(const Json& r) {
  const Json* const scores = object_of(r, "task_scores");
  if (scores == nullptr || list_of(*scores, "rows").empty()) return Json();
  const auto count = [](const Json& row, const char* key) {
    const auto value = number_of(row, key);
    return value ? fmt::format("{:.0f}", *value) : std::string("–");
  };
  Json rows = Json::array();
  for (const Json& row : list_of(*scores, "rows")) {
    const auto error = number_of(row, "standard_error"), before = number_of(row, "baseline");
    rows.push_back(Json::array(
        {text_at(row, "task"), text_at(row, "metric"), text_at(row, "filter"), count(row, "shots"),
         count(row, "asked"),
         fmt::format("{:.6g}{}", figure_of(row, "value"), error ? fmt::format(" ± {:.2g}", *error) : ""),
         before ? fmt::format("{:.6g}", *before) : std::string("–")}));
  }
  return Json::object({{"model", text_at(*scores, "model")},
                       {"harness", text_at(*scores, "harness")},
                       {"date", text_at(*scores, "date")},
                       {"baseline", text_at(*scores, "baseline")},
                       {"rows", rows},
                       {"gates", gates(*scores)}});
}

// "nvfp4a16"; "4" where numbers of bits were chosen among.
std::string candidate_name(const Json& option) {
  const std::string scheme = text_at(option, "scheme");
  return scheme.empty() ? fmt::format("{:.0f}", figure_of(option, "bits")) : scheme;
}

// Linears that share a scheme, and what each candidate was estimated to cost.
Json choice(const Json& one) {
  Json modules = Json::array(), costs = Json::array();
  for (const Json& name : list_of(one, "modules"))
    if (name.is_string()) modules.push_back(name);
  if (const double experts = figure_of(one, "experts"); experts > 0 && modules.items().size() > 3) {
    const std::size_t further = modules.items().size() - 1;
    modules.items().resize(1);
    modules.push_back(fmt::format("and {} further linears of {:.0f} experts", further, experts));
  }
  const std::string chosen = candidate_name(one);
  for (const Json& option : list_of(one, "options"))
    costs.push_back(Json::object(
        {{"text", amount(number_of(option, "kl"))}, {"chosen", candidate_name(option) == chosen}}));
  return Json::object({{"modules", modules}, {"bits", chosen}, {"costs", costs}});
}

Json mixed_precision(const Json& r) {
  const Json* const mixed = object_of(r, "mixed");
  if (mixed == nullptr || list_of(*mixed, "choices").empty()) return Json();
  Json options = Json::array(), choices = Json::array();
  for (const Json& option : list_of(list_of(*mixed, "choices").front(), "options"))
    options.push_back("KL at " + candidate_name(option));
  for (const Json& one : list_of(*mixed, "choices")) choices.push_back(choice(one));
  return Json::object({{"used", fmt::format("{:.4f}", figure_of(*mixed, "bits_per_weight"))},
                       {"target", fmt::format("{:g}", figure_of(*mixed, "target_bits"))},
                       {"kl", fmt::format("{:.4f}", figure_of(*mixed, "kl"))},
                       {"kl_at_fewest", fmt::format("{:.4f}", figure_of(*mixed, "kl_at_fewest_bits"))},
                       {"options", options},
                       {"choices", choices}});
}

// What the experts of each block were calibrated on, and what they give beside the original ones.
Json experts(const Json& r) {
  Json rows = Json::array();
  for (const Json& one : list_of(r, "mixtures")) {
    const auto figure = [&](const char* key) { return fmt::format("{:.0f}", figure_of(one, key)); };
    rows.push_back(Json::object(
        {{"block", text_at(one, "block")},
         {"figures", Json::array({figure("experts"), figure("tokens_min"), figure("tokens_median"),
                                  figure("tokens_max"), std::to_string(list_of(one, "starved").size()),
                                  std::to_string(list_of(one, "unreached").size()),
                                  amount(number_of(one, "output_error_min")),
                                  amount(number_of(one, "output_error_median")),
                                  amount(number_of(one, "output_error_max")), figure("worst_expert")})}}));
  }
  return rows;
}

Json linears(const Page& page) {
  Json list = Json::array();
  for (const Module& m : page.modules) {
    const auto judged = [&](const std::optional<double>& value) {
      return page.calibrated ? amount(value) : "–";
    };
    list.push_back(
        Json::object({{"name", m.name},
                      {"scheme", m.scheme},
                      {"method", m.method},
                      {"figures", Json::array({judged(m.loss), judged(m.rtn_loss), judged(m.relative_error),
                                               amount(m.weight_error)})}}));
  }
  return list;
}

Json dense(const Page& page) {
  Json names = Json::array();
  for (const Module& m : page.dense) names.push_back(m.name);
  return names;
}

Json calibration(const Json& r) {
  Json list = Json::array();
  if (const Json* found = object_of(r, "calibration"))
    for (const auto& [what, value] : found->members())
      list.push_back(
          Json::object({{"what", what}, {"value", value.is_string() ? value : Json(value.dump())}}));
  return list;
}

Json times(const Json& r) {
  Json list = Json::array();
  if (const Json* found = object_of(r, "seconds_by_part"))
    for (const auto& [what, seconds] : found->members())
      if (seconds.is_number())
        list.push_back(Json::object({{"what", what}, {"value", seconds_text(seconds.as_double())}}));
  return list;
}

Json loaders(const Json& r) {
  Json list = Json::array();
  for (const Json& one : list_of(r, "loaders"))
    list.push_back(Json::object({{"loader", text_at(one, "loader")},
                                 {"fits", holds(one, "fits")},
                                 {"reason", text_at(one, "reason")},
                                 {"note", text_at(one, "note")}}));
  return list;
}

Json blocks(const Page& page) {
  Json list = Json::array();
  for (const std::int64_t block : page.blocks) list.push_back(block);
  return list;
}

}  // namespace
}  // namespace html

std::string make_html_report(const Json& report) {
  using namespace html;
  const Page page = read_page(report);
  const Json *const tool = report.find("tool"), *const recipe = report.find("recipe"),
                    *const adapter = report.find("adapter");
  return render_page(
      kReportTemplate,
      Json::object({{"title", last_part(text_at(report, "model"))},
                    {"model", text_at(report, "model") +
                                  (adapter == nullptr ? "" : " with " + text_at(*adapter, "directory"))},
                    {"method", text_at(report, "method")},
                    {"scheme", text_at(report, "scheme")},
                    {"format", text_at(report, "format")},
                    {"command", text_at(report, "command")},
                    {"version", tool == nullptr ? std::string() : text_at(*tool, "version")},
                    {"recipe", recipe == nullptr || recipe->is_null() ? Json() : Json(recipe->dump(2))},
                    {"cards", cards(page)},
                    {"fallbacks", fallbacks(report)},
                    {"warnings", warnings(report)},
                    {"perplexity", perplexity(report)},
                    {"task_scores", task_scores(report)},
                    {"calibrated", page.calibrated},
                    {"losses", losses(page)},
                    {"errors", error_map(page)},
                    {"memory", memory_chart(report)},
                    {"blocks", blocks(page)},
                    {"bits", bits_by_layer(page)},
                    {"mixed", mixed_precision(report)},
                    {"experts", experts(report)},
                    {"scales", scales(page)},
                    {"linears", linears(page)},
                    {"dense", dense(page)},
                    {"calibration", calibration(report)},
                    {"times", times(report)},
                    {"loaders", loaders(report)}}));
}

}  // namespace llmq
