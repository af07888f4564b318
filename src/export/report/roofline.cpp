#include "export/report/roofline.h"

#include <fmt/core.h>

#include <algorithm>

namespace llmq {
namespace {

bool is_known(const RooflinePoint& point) {
  return point.bytes > 0 && point.operations > 0 && point.seconds > 0;
}

std::string rate_text(double operations) {
  return operations >= 1e12  ? fmt::format("{:.3g} T", operations * 1e-12)
         : operations >= 1e9 ? fmt::format("{:.3g} G", operations * 1e-9)
                             : fmt::format("{:.3g} M", operations * 1e-6);
}

}  // namespace

Chart roofline_chart(double bytes_per_second, double operations_per_second, const std::string& words,
                     std::span<const RooflinePoint> points) {
  Chart chart;
  chart.id = "roofline";
  chart.title = "Roofline";
  if (!(bytes_per_second > 0) || !(operations_per_second > 0)) return chart;
  const double ridge = operations_per_second / bytes_per_second;
  chart.words = fmt::format("{}; the roof: {:.3g} GB/s up to {:.3g} operations a byte, then {}operations/s",
                            words, bytes_per_second * 1e-9, ridge, rate_text(operations_per_second));
  std::vector<double> intensities = {ridge / 4, ridge * 4}, rates = {operations_per_second};
  for (const RooflinePoint& point : points) {
    if (!is_known(point)) continue;
    ChartMark mark{"best", point.label, {}, point.operations / point.bytes, point.operations / point.seconds,
                   {},     {}};
    mark.words =
        fmt::format("{}: {:.3g} operations a byte, {}operations/s", point.words, mark.x, rate_text(mark.y));
    chart.words += "; " + mark.words;
    intensities.push_back(mark.x);
    rates.push_back(mark.y);
    chart.marks.push_back(std::move(mark));
  }
  chart.x = logarithmic_axis("operations a byte read", intensities);
  rates.push_back(bytes_per_second * chart.x.first);
  chart.y = logarithmic_axis("operations/s", rates);
  chart.y.text = rate_text;
  const double left = std::max(chart.x.first, chart.y.first / bytes_per_second);
  chart.lines.push_back({"limit",
                         fmt::format("the roof: {:.1f} GB/s, {}operations/s", bytes_per_second * 1e-9,
                                     rate_text(operations_per_second)),
                         {{left, left * bytes_per_second},
                          {ridge, operations_per_second},
                          {chart.x.last, operations_per_second}}});
  return chart;
}

}  // namespace llmq
