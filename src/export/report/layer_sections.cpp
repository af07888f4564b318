// The sections of a page that show linears side by side: their losses, bits and scales.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "export/report/html_charts.h"
#include "export/report/report_page.h"

namespace llmq::html {
namespace {

// Sums over the linears of one role and block: one, but for experts.
std::optional<double> sum_of(const Page& page, const std::string& role, std::int64_t block,
                             std::optional<double> Module::*amount_of) {
  std::optional<double> sum;
  for (const Module& m : page.modules)
    if (m.role == role && m.block == block && m.*amount_of) sum = sum.value_or(0) + *(m.*amount_of);
  return sum;
}

// The histograms of all linears of a role, added.
struct Spread {
  std::map<std::int64_t, double> counts;  // by bin from 2^0 on
  int bins_per_octave = 1;
};

Spread spread_of(const Page& page, const std::string& role) {
  Spread spread;
  for (const Module& m : page.modules) {
    if (m.role != role || m.scales == nullptr) continue;
    const auto first = number_of(*m.scales, "first_octave"), per = number_of(*m.scales, "bins_per_octave");
    if (!first || !per || !(*per >= 1 && *per <= 64) || !(std::abs(*first) < 1100)) continue;
    spread.bins_per_octave = static_cast<int>(*per);
    std::int64_t bin = static_cast<std::int64_t>(*first) * spread.bins_per_octave;
    for (const Json& count : list_of(*m.scales, "counts"))
      spread.counts[bin++] += count.is_number() ? count.as_double() : 0;
  }
  return spread;
}

}  // namespace

std::string losses(const Page& page) {
  if (page.modules.empty()) return "";
  std::string html = "<section><h2>Loss by layer</h2>";
  html += page.calibrated
              ? "<p class=\"note\">What rounding changes in each linear’s output on the calibration text, "
                "tr(ΔW G ΔWᵀ): "
                "<span class=\"key before\"></span>plain rounding, <span class=\"key after\"></span>" +
                    name_html(text_of(page.report, "method")) + ". The axis is logarithmic.</p>"
              : "<p class=\"note\">Relative error of each weight, ‖ΔW‖ / ‖W‖; this method looks at no "
                "calibration text.</p>";
  std::vector<std::vector<BarPair>> all;
  std::vector<BarPair> together;
  for (const std::string& role : page.roles) {
    std::vector<BarPair> bars;
    for (const std::int64_t block : page.blocks) {
      BarPair pair;
      if (page.calibrated) {
        pair.before = sum_of(page, role, block, &Module::rtn_loss);
        pair.after = sum_of(page, role, block, &Module::loss);
        pair.name = fmt::format("{}, block {}: loss {}, plain rounding {}", role, block, amount(pair.after),
                                amount(pair.before));
      } else {
        pair.after = sum_of(page, role, block, &Module::weight_error);
        pair.name = fmt::format("{}, block {}: {}", role, block, amount(pair.after));
      }
      bars.push_back(pair);
    }
    together.insert(together.end(), bars.begin(), bars.end());
    all.push_back(std::move(bars));
  }
  const Decades decades = decades_of(together);
  html += "<div class=\"charts\">";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::none_of(all[i].begin(), all[i].end(),
                     [](const BarPair& pair) { return pair.after.has_value(); }))
      continue;
    html += "<div class=\"chart\"><h3>" + name_html(page.roles[i]) + "</h3>" +
            bar_chart(all[i], decades, fmt::format("block {}", page.blocks.front()),
                      fmt::format("block {}", page.blocks.back())) +
            "</div>";
  }
  return html + "</div></section>";
}

std::string bits_by_layer(const Page& page) {
  if (page.blocks.empty()) return "";
  std::map<std::pair<std::string, std::int64_t>, std::pair<std::int64_t, std::int64_t>> range;
  for (const std::vector<Module>* list : {&page.modules, &page.dense})
    for (const Module& m : *list) {
      const auto [at, fresh] = range.try_emplace({m.role, m.block}, m.bits, m.bits);
      if (!fresh) at->second = {std::min(at->second.first, m.bits), std::max(at->second.second, m.bits)};
    }
  std::string html =
      "<section><h2>Bits by layer</h2><p class=\"note\">Bits of one weight’s code; 16: left as it was. "
      "Columns are blocks.</p>"
      "<div class=\"wide\"><table class=\"bits\"><thead><tr><th scope=\"col\"></th>";
  for (const std::int64_t block : page.blocks) html += fmt::format("<th scope=\"col\">{}</th>", block);
  html += "</tr></thead><tbody>";
  for (const std::string& role : page.roles) {
    html += "<tr><th scope=\"row\">" + name_html(role) + "</th>";
    for (const std::int64_t block : page.blocks) {
      const auto found = range.find({role, block});
      if (found == range.end()) {
        html += "<td></td>";
        continue;
      }
      const auto [low, high] = found->second;
      html += fmt::format("<td class=\"b{}\">{}</td>", low,
                          low == high ? fmt::format("{}", low) : fmt::format("{}–{}", low, high));
    }
    html += "</tr>";
  }
  return html + "</tbody></table></div></section>";
}

std::string scales(const Page& page) {
  std::vector<Spread> spreads;
  std::optional<std::int64_t> low, high;  // octaves that hold every bin of every role
  const auto octave = [](std::int64_t bin, int per) { return (bin >= 0 ? bin : bin - per + 1) / per; };
  for (const std::string& role : page.roles) {
    spreads.push_back(spread_of(page, role));
    const Spread& s = spreads.back();
    if (s.counts.empty()) continue;
    low = std::min(low.value_or(INT32_MAX), octave(s.counts.begin()->first, s.bins_per_octave));
    high = std::max(high.value_or(INT32_MIN), octave(s.counts.rbegin()->first, s.bins_per_octave) + 1);
  }
  if (!low || !high) return "";
  std::string html =
      "<section><h2>Scales</h2><p class=\"note\">How many of a role’s scales (the step between two codes) "
      "are of which size. "
      "A long tail to the right is where outliers cost precision.</p><div class=\"charts\">";
  for (std::size_t i = 0; i < spreads.size(); ++i) {
    const Spread& s = spreads[i];
    if (s.counts.empty()) continue;
    std::vector<double> counts(static_cast<std::size_t>((*high - *low) * s.bins_per_octave));
    for (const auto& [bin, count] : s.counts)
      counts[static_cast<std::size_t>(bin - *low * s.bins_per_octave)] += count;
    html += "<div class=\"chart\"><h3>" + name_html(page.roles[i]) + "</h3>" +
            octave_chart(counts, static_cast<int>(*low), s.bins_per_octave) + "</div>";
  }
  return html + "</div></section>";
}

}  // namespace llmq::html
