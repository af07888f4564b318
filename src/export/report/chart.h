// A figure of two axes as a document for chart_macros.html: where ticks, lines and marks stand, in the units
// of the drawing. The markup is the template's, so every text is escaped there.
//
// The drawing is narrow enough that its letters are read on a phone, and the page lets it grow to half a
// wide screen. A mark is named by a short label, which is put where it covers no other mark or label; what
// the label stands for is told in a table beside the figure.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace llmq {

struct ChartAxis {
  std::string name;
  double first = 0, last = 1;  // first < last; both positive where logarithmic
  bool logarithmic = false;
  std::function<std::string(double)> text;  // of a tick; empty: the shortest number
};

// An axis from zero to a round number that holds all of `values`; or, logarithmic, from one round number to
// another that hold the positive ones.
ChartAxis linear_axis(std::string name, std::span<const double> values);
ChartAxis logarithmic_axis(std::string name, std::span<const double> values);

struct ChartLine {
  std::string kind;  // a class of style.css: "pareto", "measured", "limit"
  std::string name;  // in the key below the figure; empty: none
  std::vector<std::pair<double, double>> points;
};

struct ChartMark {
  std::string kind, label;
  std::string words;  // shown when pointed at
  double x = 0, y = 0;
  std::optional<double> low, high;  // of y, drawn as a bar
};

struct Chart {
  std::string id;            // letters alone, once a page
  std::string title, words;  // for who cannot see it
  ChartAxis x, y;
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks;
};

// What the macro xy_chart() takes. What is not finite, or lies beyond an axis, is left out; a bar is cut.
Json chart_json(const Chart& chart);

}  // namespace llmq
