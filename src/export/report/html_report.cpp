#include "export/report/html_report.h"
#include "base/amount_text.h"

#include <fmt/core.h>

#include "export/report/html_charts.h"
#include "export/report/html_style.h"
#include "export/report/report_page.h"

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

std::string header(const Json& r) {
  std::string html = "<header><h1><bdi>" + html_text(last_part(text_of(r, "model"))) + "</bdi></h1>";
  html +=
      fmt::format("<p>Quantized with {} to {}, stored as {}.</p></header>", name_html(text_of(r, "method")),
                  name_html(text_of(r, "scheme")), name_html(text_of(r, "format")));
  return html;
}

std::string card(const std::string& figure, const std::string& what) {
  return "<div class=\"card\"><b>" + figure + "</b><span>" + what + "</span></div>";
}

std::string summary(const Page& page) {
  const Json& r = page.report;
  std::string html = "<div class=\"cards\">";
  if (const auto bits = number_of(r, "bits_per_weight"))
    html += card(fmt::format("{:.3f}", *bits),
                 fmt::format("bits per weight in the quantized linears, {:.3f} over the whole model",
                             number_of(r, "bits_per_weight_total").value_or(0)));
  const double in = number_of(r, "bytes_in").value_or(0), out = number_of(r, "bytes_out").value_or(0);
  if (out > 0)
    html += card(bytes_html(out), fmt::format("from {}: {:.2f} times smaller", bytes_html(in), in / out));
  const double loss = number_of(r, "loss").value_or(0), rtn = number_of(r, "rtn_loss").value_or(0);
  if (rtn > 0)
    html += card(fmt::format("{:.1f} %", 100 * loss / rtn),
                 "of plain rounding’s loss is left, summed over all linears");
  if (const Json* evaluation = r.find("evaluation")) {
    if (const Json* against = evaluation->find("against"); against != nullptr && against->is_object())
      html += card(fmt::format("{:.4f}", number_of(*against, "kl_mean").value_or(0)),
                   "KL divergence from the original, in nats");
    html += card(fmt::format("{:.5g}", number_of(*evaluation, "ppl").value_or(0)), "perplexity");
  }
  if (const auto seconds = number_of(r, "seconds")) {
    const Json* const time = r.find("time");
    html += card(seconds_text(*seconds),
                 time == nullptr
                     ? std::string("to quantize")
                     : "to quantize, predicted " + seconds_text(number_of(*time, "seconds").value_or(0)));
  }
  if (const Json* memory = r.find("memory"))
    html += card(bytes_html(number_of(*memory, "peak_rss_bytes").value_or(0)),
                 "peak memory, planned " + bytes_html(number_of(*memory, "planned_peak_bytes").value_or(0)));
  if (const Json* disk = r.find("disk"))
    html +=
        card(bytes_html(number_of(*disk, "bytes_read").value_or(0)),
             "read of the model, planned " + bytes_html(number_of(*disk, "planned_bytes_read").value_or(0)) +
                 "; written " + bytes_html(number_of(*disk, "bytes_written").value_or(0)) + ", planned " +
                 bytes_html(number_of(*disk, "planned_bytes_written").value_or(0)));
  html += card(fmt::format("{}", page.modules.size()),
               page.dense.empty() ? "linears quantized"
                                  : fmt::format("linears quantized, {} left dense", page.dense.size()));
  return html + "</div>";
}

std::string notes(const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 10;
  std::string html, rest;
  for (std::size_t i = 0; i < items.size(); ++i) (i < kShown ? html : rest) += "<li>" + items[i] + "</li>";
  html = "<ul class=\"notes\">" + html + "</ul>";
  if (!rest.empty())
    html += fmt::format("<details><summary>{} more</summary><ul class=\"notes\">{}</ul></details>",
                        items.size() - kShown, rest);
  return html;
}

std::string findings(const Json& r) {
  std::vector<std::string> fallbacks, warnings;
  for (const Json& f : list_of(r, "fallbacks"))
    fallbacks.push_back(name_html(text_of(f, "module")) + ": <bdi>" + html_text(text_of(f, "reason")) +
                        "</bdi>");
  for (const Json& w : list_of(r, "warnings"))
    if (w.is_string()) warnings.push_back("<bdi>" + html_text(w.as_string()) + "</bdi>");
  std::string html = "<section><h2>Fallbacks and warnings</h2>";
  if (fallbacks.empty())
    html += "<p class=\"note\">No module fell back to another method.</p>";
  else
    html += fmt::format("<p class=\"note\">{} did not get the method that was asked for:</p>",
                        fallbacks.size() == 1 ? "One linear" : fmt::format("{} linears", fallbacks.size())) +
            notes(fallbacks);
  if (warnings.empty())
    html += "<p class=\"note\">There is no warning.</p>";
  else
    html += fmt::format("<p class=\"note\">{}:</p>",
                        warnings.size() == 1 ? "One warning" : fmt::format("{} warnings", warnings.size())) +
            notes(warnings);
  return html + "</section>";
}

std::string perplexity(const Json& r) {
  const Json* e = r.find("evaluation");
  if (e == nullptr || !e->is_object()) return "";
  std::string html =
      "<section><h2>Perplexity</h2><p class=\"note\">" +
      fmt::format("{} with the protocol {}, {:.0f} window{}, measured by llmq on the written files.</p>",
                  name_html(text_of(*e, "text")), name_html(text_of(*e, "protocol")),
                  number_of(*e, "windows").value_or(0), number_of(*e, "windows").value_or(0) == 1 ? "" : "s");
  html +=
      "<div class=\"wide\"><table>" +
      heads({"model", "perplexity", "change", "KL mean", "KL 99th percentile", "KL largest", "same top-1"}) +
      "<tbody>";
  const Json* a = e->find("against");
  const bool compared = a != nullptr && a->is_object();
  const auto figure = [&](const char* key, double factor, int digits, const char* unit) {
    const auto value = compared ? number_of(*a, key) : std::nullopt;
    return cell(value ? fmt::format("{:.{}f}{}", *value * factor, digits, unit) : "–");
  };
  if (compared)
    html += "<tr>" + cell("original") + figure("ppl", 1, 4, "") + cell("") + cell("") + cell("") + cell("") +
            cell("") + "</tr>";
  html += "<tr>" + cell("quantized") +
          cell(fmt::format("{:.4f} ± {:.4f}", number_of(*e, "ppl").value_or(0),
                           number_of(*e, "ppl_stderr").value_or(0))) +
          figure("delta_ppl", 1, 4, "") + figure("kl_mean", 1, 5, "") + figure("kl_p99", 1, 4, "") +
          figure("kl_max", 1, 4, "") + figure("top1_agreement", 100, 2, " %") + "</tr></tbody></table></div>";
  std::vector<std::string> gates;
  for (const Json& gate : list_of(*e, "gates")) {
    const Json* met = gate.find("met");
    const bool good = met != nullptr && met->is_bool() && met->as_bool();
    gates.push_back(fmt::format("{}: limit {:g}, found {:.6g}: <b class=\"{}\">{}</b>",
                                name_html(text_of(gate, "name")), number_of(gate, "limit").value_or(0),
                                number_of(gate, "value").value_or(0), good ? "good" : "bad",
                                good ? "met" : "not met"));
  }
  return html + (gates.empty() ? "" : notes(gates)) + "</section>";
}

// One row: linears that share a scheme, and what each number of bits was estimated to cost.
std::string choice_row(const Json& choice) {
  std::string names;
  for (const Json& name : list_of(choice, "modules"))
    if (name.is_string()) names += (names.empty() ? "" : "<br/>") + name_html(name.as_string());
  const double chosen = number_of(choice, "bits").value_or(0);
  std::string row = "<tr>" + cell(names) + cell(fmt::format("<b>{:.0f}</b>", chosen));
  for (const Json& option : list_of(choice, "options")) {
    const std::string kl = amount(number_of(option, "kl"));
    row += cell(number_of(option, "bits").value_or(0) == chosen ? "<b>" + kl + "</b>" : kl);
  }
  return row + "</tr>";
}

std::string mixed_precision(const Json& r) {
  const Json* mixed = r.find("mixed");
  if (mixed == nullptr || !mixed->is_object() || list_of(*mixed, "choices").empty()) return "";
  std::string html = "<section><h2>Mixed precision</h2><p class=\"note\">";
  html += fmt::format(
      "{:.4f} of {:g} bits per weight are used, linears left dense counted. Estimated KL divergence from the "
      "original: "
      "{:.4f} nats as chosen, {:.4f} with the fewest bits everywhere. Linears that engines run as one "
      "product share a "
      "row.</p>",
      number_of(*mixed, "bits_per_weight").value_or(0), number_of(*mixed, "target_bits").value_or(0),
      number_of(*mixed, "kl").value_or(0), number_of(*mixed, "kl_at_fewest_bits").value_or(0));
  std::string rows, head = "<th scope=\"col\">linears</th><th scope=\"col\">bits</th>";
  for (const Json& option : list_of(list_of(*mixed, "choices").front(), "options"))
    head += fmt::format("<th scope=\"col\">KL at {:.0f}</th>", number_of(option, "bits").value_or(0));
  for (const Json& choice : list_of(*mixed, "choices")) rows += choice_row(choice);
  return html +
         "<details><summary>Every choice with what the others would cost</summary><div "
         "class=\"wide\"><table><thead><tr>" +
         head + "</tr></thead><tbody>" + rows + "</tbody></table></div></details></section>";
}

std::string every_module(const Page& page) {
  if (page.modules.empty() && page.dense.empty()) return "";
  std::string html =
      "<section><h2>Every linear</h2><details><summary>" +
      fmt::format("{} linears with their figures", page.modules.size() + page.dense.size()) +
      "</summary><div class=\"wide\"><table>" +
      heads({"linear", "scheme", "method", "loss", "plain rounding", "loss / output", "‖ΔW‖ / ‖W‖"}) +
      "<tbody>";
  for (const Module& m : page.modules) {
    const auto judged = [&](const std::optional<double>& value) {
      return cell(page.calibrated ? amount(value) : "–");
    };
    html += "<tr>" + cell(name_html(m.name)) + cell(name_html(m.scheme)) + cell(name_html(m.method)) +
            judged(m.loss) + judged(m.rtn_loss) + judged(m.relative_error) + cell(amount(m.weight_error)) +
            "</tr>";
  }
  for (const Module& m : page.dense)
    html += "<tr>" + cell(name_html(m.name)) + cell("left dense") + cell("") + cell("") + cell("") +
            cell("") + cell("") + "</tr>";
  return html + "</tbody></table></div></details></section>";
}

std::string scalar_html(const Json& value) {
  return name_html(value.is_string() ? value.as_string() : value.dump());
}

std::string how_it_was_made(const Json& r) {
  std::string html = "<section><h2>How it was made</h2>";
  if (!text_of(r, "command").empty())
    html += "<pre><bdi>" + html_text(text_of(r, "command")) + "</bdi></pre>";
  html += "<div class=\"wide\"><table><tbody>";
  const auto row = [&html](const std::string& what, const std::string& value) {
    html += "<tr><th scope=\"row\">" + what + "</th><td class=\"words\">" + value + "</td></tr>";
  };
  row("model", name_html(text_of(r, "model")));
  if (const Json* calibration = r.find("calibration"); calibration != nullptr && calibration->is_object())
    for (const Json::Member& member : calibration->members())
      row("calibration: " + html_text(member.first), scalar_html(member.second));
  if (const Json* parts = r.find("seconds_by_part"); parts != nullptr && parts->is_object())
    for (const Json::Member& part : parts->members())
      if (part.second.is_number())
        row("time: " + html_text(part.first), seconds_text(part.second.as_double()));
  for (const Json& loader : list_of(r, "loaders")) {
    const Json* fits = loader.find("fits");
    const bool good = fits != nullptr && fits->is_bool() && fits->as_bool();
    row(html_text(text_of(loader, "loader")),
        good ? "<span class=\"good\">loads it</span>"
             : "<span class=\"bad\">cannot load it</span>: " + html_text(text_of(loader, "reason")));
  }
  html += "</tbody></table></div>";
  if (const Json* recipe = r.find("recipe"); recipe != nullptr && !recipe->is_null())
    html += "<details><summary>The recipe</summary><pre><bdi>" + html_text(recipe->dump(2)) +
            "</bdi></pre></details>";
  return html + "</section>";
}

}  // namespace
}  // namespace html

std::string make_html_report(const Json& report) {
  using namespace html;
  const Page page = read_page(report);
  const Json* tool = report.find("tool");
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head><meta "
      "charset=\"utf-8\"/>"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
      "<meta name=\"color-scheme\" content=\"light dark\"/><title>";
  html += html_text(last_part(text_of(report, "model"))) + ", " + html_text(text_of(report, "scheme")) +
          " by llmq</title><style>";
  html += kReportStyle;
  html += "</style></head>\n<body><main>\n";
  for (const std::string& part : {header(report), summary(page), findings(report), perplexity(report),
                                  losses(page), bits_by_layer(page), mixed_precision(report), scales(page),
                                  every_module(page), how_it_was_made(report)})
    if (!part.empty()) html += part + "\n";
  html += "<footer>Made by llmq " + html_text(tool == nullptr ? "" : text_of(*tool, "version")) +
          ". The same figures, for programs: <code>report.json</code>.</footer></main></body></html>\n";
  return html;
}

}  // namespace llmq
