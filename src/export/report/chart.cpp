#include "export/report/chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

namespace llmq {
namespace {

// The drawing, with room for the ticks at the left and below, and for the axes' names.
constexpr int kChartWidth = 460, kChartHeight = 300;
constexpr int kPlotLeft = 68, kPlotRight = 436, kPlotTop = 26, kPlotBottom = 256;
constexpr double kLetter = 6.6, kLineHeight = 12;  // of a label
constexpr int kTicks = 6;                          // about so many

std::string place_text(double place) { return fmt::format("{:.1f}", place); }

double share_of(const ChartAxis& axis, double value) {
  return axis.logarithmic
             ? (std::log(value) - std::log(axis.first)) / (std::log(axis.last) - std::log(axis.first))
             : (value - axis.first) / (axis.last - axis.first);
}
double across(const ChartAxis& axis, double value) {
  return kPlotLeft + share_of(axis, value) * (kPlotRight - kPlotLeft);
}
double up(const ChartAxis& axis, double value) {
  return kPlotBottom - share_of(axis, value) * (kPlotBottom - kPlotTop);
}

bool is_on(const ChartAxis& axis, double value) {
  if (!std::isfinite(value) || (axis.logarithmic && value <= 0)) return false;
  const double share = share_of(axis, value);
  return share >= -1e-9 && share <= 1 + 1e-9;
}

// The round step (1, 2 or 5 times a power of ten) that makes about kTicks of a span.
double round_step(double span) {
  const double rough = span / kTicks, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power * (1 + 1e-9)) return factor * power;
  return 10 * power;
}

std::vector<double> linear_ticks(const ChartAxis& axis) {
  const double step = round_step(axis.last - axis.first);
  std::vector<double> ticks;
  for (double k = std::ceil(axis.first / step - 1e-9); k * step <= axis.last + 1e-9 * step; ++k)
    ticks.push_back(k * step);
  return ticks;
}

// Powers of ten; where those are few, between them 2 and 5 times, or steps of equal size.
std::vector<double> logarithmic_ticks(const ChartAxis& axis) {
  static const std::array<std::vector<double>, 2> kFactors = {{{1}, {1, 2, 5}}};
  for (const std::vector<double>& factors : kFactors) {
    std::vector<double> ticks;
    const int first = static_cast<int>(std::floor(std::log10(axis.first))),
              last = static_cast<int>(std::ceil(std::log10(axis.last)));
    const int step = std::max(1, (last - first) / kTicks);
    for (int exponent = first; exponent <= last; exponent += step)
      for (const double factor : factors)
        if (const double tick = factor * std::pow(10, exponent); is_on(axis, tick)) ticks.push_back(tick);
    if (ticks.size() >= 3) return ticks;
  }
  return linear_ticks(axis);
}

Json ticks_json(const ChartAxis& axis, double (*place)(const ChartAxis&, double)) {
  Json list = Json::array();
  for (const double tick : axis.logarithmic ? logarithmic_ticks(axis) : linear_ticks(axis))
    list.push_back(Json::object({{"at", place_text(place(axis, tick))},
                                 {"text", axis.text ? axis.text(tick) : fmt::format("{:.6g}", tick)}}));
  return list;
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

struct PlacedLabel {
  double x, y;
  const char* anchor;
  Box box;
};

// To the right of the mark, else to its left, above, below and further away.
std::vector<PlacedLabel> places_of(const ChartMark& mark, double x, double y) {
  std::size_t letters = 0;
  for (const char c : mark.label) letters += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u ? 1 : 0;
  const double width = kLetter * static_cast<double>(letters);
  std::vector<PlacedLabel> places;
  for (const double away : {7.0, 14.0, 22.0})
    for (const auto& [dx, dy, anchor] :
         {std::tuple(away, 4.0, "start"), std::tuple(-away, 4.0, "end"), std::tuple(0.0, -away, "middle"),
          std::tuple(0.0, away + 8, "middle"), std::tuple(away, -away, "start"),
          std::tuple(-away, away + 8, "end")}) {
      const double left = anchor[0] == 's' ? x + dx : anchor[0] == 'e' ? x + dx - width : x - width / 2;
      places.push_back({x + dx, y + dy, anchor, {left, y + dy - kLineHeight + 3, left + width, y + dy + 3}});
    }
  return places;
}

// Small boxes along every line, so that labels stand beside it.
void cover_lines(const Chart& chart, std::vector<Box>& taken) {
  constexpr int kPieces = 40;
  for (const ChartLine& line : chart.lines)
    for (std::size_t i = 1; i < line.points.size(); ++i) {
      const auto& [x0, y0] = line.points[i - 1];
      const auto& [x1, y1] = line.points[i];
      if (!is_on(chart.x, x0) || !is_on(chart.y, y0) || !is_on(chart.x, x1) || !is_on(chart.y, y1)) continue;
      for (int k = 0; k <= kPieces; ++k) {
        const double part = static_cast<double>(k) / kPieces,
                     x = std::lerp(across(chart.x, x0), across(chart.x, x1), part),
                     y = std::lerp(up(chart.y, y0), up(chart.y, y1), part);
        taken.push_back({x - 1, y - 1, x + 1, y + 1});
      }
    }
}

Json marks_json(const Chart& chart) {
  std::vector<Box> taken;
  const auto drawn = [&](const ChartMark& mark) { return is_on(chart.x, mark.x) && is_on(chart.y, mark.y); };
  for (const ChartMark& mark : chart.marks)
    if (const double x = across(chart.x, mark.x), y = up(chart.y, mark.y); drawn(mark))
      taken.push_back({x - 5, y - 5, x + 5, y + 5});
  cover_lines(chart, taken);
  const Box plot{kPlotLeft, kPlotTop - 4, kChartWidth, kPlotBottom};
  Json list = Json::array();
  for (const ChartMark& mark : chart.marks) {
    if (!drawn(mark)) continue;
    const double x = across(chart.x, mark.x), y = up(chart.y, mark.y);
    const std::vector<PlacedLabel> places = places_of(mark, x, y);
    const auto free = [&](const PlacedLabel& place) {
      return place.box.left >= plot.left && place.box.right <= plot.right && place.box.top >= plot.top &&
             place.box.bottom <= plot.bottom &&
             std::none_of(taken.begin(), taken.end(), [&](const Box& box) { return box.meets(place.box); });
    };
    const auto found = std::find_if(places.begin(), places.end(), free);
    const PlacedLabel& place = found == places.end() ? places.front() : *found;
    taken.push_back(place.box);
    Json json = Json::object({{"kind", mark.kind},
                              {"label", mark.label},
                              {"words", mark.words},
                              {"x", place_text(x)},
                              {"y", place_text(y)},
                              {"label_x", place_text(place.x)},
                              {"label_y", place_text(place.y)},
                              {"anchor", place.anchor}});
    if (mark.low && mark.high) {
      const auto end = [&](double value) {
        return place_text(up(chart.y, std::clamp(value, chart.y.first, chart.y.last)));
      };
      json["low"] = end(*mark.low);
      json["high"] = end(*mark.high);
    }
    list.push_back(json);
  }
  return list;
}

Json lines_json(const Chart& chart) {
  Json list = Json::array();
  for (const ChartLine& line : chart.lines) {
    std::string points;
    for (const auto& [x, y] : line.points)
      if (is_on(chart.x, x) && is_on(chart.y, y))
        points +=
            fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", across(chart.x, x), up(chart.y, y));
    if (!points.empty())
      list.push_back(Json::object({{"kind", line.kind}, {"name", line.name}, {"points", points}}));
  }
  return list;
}

}  // namespace

ChartAxis linear_axis(std::string name, std::span<const double> values) {
  double most = 0;
  for (const double value : values)
    if (std::isfinite(value)) most = std::max(most, value);
  ChartAxis axis{std::move(name), 0, 1, false, {}};
  if (most > 0) axis.last = round_step(most) * std::ceil(most / round_step(most) * 1.02);
  return axis;
}

ChartAxis logarithmic_axis(std::string name, std::span<const double> values) {
  double least = 0, most = 0;
  for (const double value : values) {
    if (!std::isfinite(value) || value <= 0) continue;
    least = least == 0 ? value : std::min(least, value);
    most = std::max(most, value);
  }
  ChartAxis axis{std::move(name), 1, 10, true, {}};
  if (most == 0) return axis;
  const auto rounded = [](double value, bool down) {
    const double power = std::pow(10, std::floor(std::log10(value)));
    double found = down ? power : 10 * power;
    for (const double factor : {2.0, 5.0})
      if (down ? factor * power <= value : (factor * power >= value && found == 10 * power))
        found = factor * power;
    return found;
  };
  axis.first = rounded(least / 1.05, true);
  axis.last = rounded(most * 1.05, false);
  return axis;
}

Json chart_json(const Chart& chart) {
  Json key = Json::array();
  for (const ChartLine& line : chart.lines)
    if (!line.name.empty() && !line.points.empty())
      key.push_back(Json::object({{"kind", line.kind}, {"name", line.name}}));
  return Json::object({{"id", chart.id},
                       {"title", chart.title},
                       {"words", chart.words},
                       {"width", kChartWidth},
                       {"height", kChartHeight},
                       {"left", kPlotLeft},
                       {"right", kPlotRight},
                       {"top", kPlotTop},
                       {"bottom", kPlotBottom},
                       {"x_name", chart.x.name},
                       {"y_name", chart.y.name},
                       {"x_ticks", ticks_json(chart.x, across)},
                       {"y_ticks", ticks_json(chart.y, up)},
                       {"lines", lines_json(chart)},
                       {"marks", marks_json(chart)},
                       {"key", key}});
}

}  // namespace llmq
