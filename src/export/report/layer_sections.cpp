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

Json chart(const std::string& role, std::string svg) {
  return Json::object({{"role", role}, {"svg", std::move(svg)}});
}

}  // namespace

Json losses(const Page& page) {
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
  Json charts = Json::array();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::none_of(all[i].begin(), all[i].end(),
                     [](const BarPair& pair) { return pair.after.has_value(); }))
      continue;
    charts.push_back(
        chart(page.roles[i], bar_chart(all[i], decades, fmt::format("block {}", page.blocks.front()),
                                       fmt::format("block {}", page.blocks.back()))));
  }
  return charts;
}

Json bits_by_layer(const Page& page) {
  std::map<std::pair<std::string, std::int64_t>, std::pair<std::int64_t, std::int64_t>> range;
  for (const std::vector<Module>* list : {&page.modules, &page.dense})
    for (const Module& m : *list) {
      const auto [at, fresh] = range.try_emplace({m.role, m.block}, m.bits, m.bits);
      if (!fresh) at->second = {std::min(at->second.first, m.bits), std::max(at->second.second, m.bits)};
    }
  Json rows = Json::array();
  for (const std::string& role : page.roles) {
    Json cells = Json::array();
    for (const std::int64_t block : page.blocks) {
      const auto found = range.find({role, block});
      if (found == range.end()) {
        cells.push_back(Json());
        continue;
      }
      const auto [low, high] = found->second;
      cells.push_back(Json::object(
          {{"low", low}, {"text", low == high ? std::to_string(low) : fmt::format("{}–{}", low, high)}}));
    }
    rows.push_back(Json::object({{"role", role}, {"cells", cells}}));
  }
  return rows;
}

Json scales(const Page& page) {
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
  Json charts = Json::array();
  if (!low || !high) return charts;
  for (std::size_t i = 0; i < spreads.size(); ++i) {
    const Spread& s = spreads[i];
    if (s.counts.empty()) continue;
    std::vector<double> counts(static_cast<std::size_t>((*high - *low) * s.bins_per_octave));
    for (const auto& [bin, count] : s.counts)
      counts[static_cast<std::size_t>(bin - *low * s.bins_per_octave)] += count;
    charts.push_back(chart(page.roles[i], octave_chart(counts, static_cast<int>(*low), s.bins_per_octave)));
  }
  return charts;
}

}  // namespace llmq::html
