#include "export/report/html_charts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/utf8_sequence.h"

namespace llmq {
namespace {

// A drawing: the plot with room for the axis at its left and below.
constexpr double kWidth = 340, kHeight = 150, kLeft = 40, kRight = 6, kTop = 8, kBottom = 20;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr double kFloor = kTop + kPlotHeight;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string open_drawing() {
  return fmt::format("<svg viewBox=\"0 0 {0} {1}\" role=\"img\" width=\"{0}\" height=\"{1}\">", kWidth,
                     kHeight);
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x, y, anchor, text);
}

std::string rule(double y, bool floor) {
  return fmt::format("<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                     floor ? "axis" : "grid", kLeft, kWidth - kRight, y, y);
}

std::string bar(const char* kind, double x, double width, double height) {
  return fmt::format("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>",
                     kind, x, kFloor - height, width, height);
}

bool drawn(const std::optional<double>& amount) { return amount && std::isfinite(*amount) && *amount > 0; }

std::string decade_text(int exponent) {
  return fmt::format("10<tspan dy=\"-3\" font-size=\"8\">{}{}</tspan>", exponent < 0 ? "\xE2\x88\x92" : "",
                     std::abs(exponent));
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string safe;
  for (std::size_t at = 0; at < text.size();) {
    const int length = utf8_length(text, at);
    const char c = text[at];
    const std::string_view character = text.substr(at, static_cast<std::size_t>(std::max(length, 1)));
    at += character.size();
    if (length > 1)
      safe += character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF" ? kReplacement : character;
    else if (length <= 0)
      safe += kReplacement;
    else if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '"')
      safe += "&quot;";
    else if (c == '\'')
      safe += "&#39;";
    else if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
      safe += kReplacement;
    else
      safe += c;
  }
  return safe;
}

Decades decades_of(std::span<const BarPair> bars) {
  double least = 0, most = 0;
  for (const BarPair& pair : bars)
    for (const std::optional<double>& amount : {pair.before, pair.after}) {
      if (!drawn(amount)) continue;
      least = least == 0 ? *amount : std::min(least, *amount);
      most = std::max(most, *amount);
    }
  if (most == 0) return {};
  Decades decades{static_cast<int>(std::floor(std::log10(least))),
                  static_cast<int>(std::ceil(std::log10(most)))};
  if (decades.first == decades.last) ++decades.last;
  return decades;
}

std::string bar_chart(std::span<const BarPair> bars, Decades decades, const std::string& first_label,
                      const std::string& last_label) {
  std::string svg = open_drawing();
  const double decade = kPlotHeight / (decades.last - decades.first);
  const int step = std::max(1, (decades.last - decades.first + 4) / 5);
  for (int exponent = decades.first; exponent <= decades.last; exponent += step) {
    const double y = kFloor - (exponent - decades.first) * decade;
    svg += rule(y, exponent == decades.first) + label(kLeft - 5, y + 3.5, "end", decade_text(exponent));
  }
  const double slot = kPlotWidth / static_cast<double>(std::max<std::size_t>(bars.size(), 1));
  const double width = std::min(slot * 0.82, 26.0);
  // A bar of nothing is left out; one that only reaches the floor keeps a hair, so that it is seen.
  const auto height = [&](double amount) {
    return std::max(1.0, (std::log10(amount) - decades.first) * decade);
  };
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const BarPair& pair = bars[i];
    const double middle = kLeft + slot * (static_cast<double>(i) + 0.5);
    svg += "<g><title>" + html_text(pair.name) + "</title>";
    if (drawn(pair.before)) svg += bar("before", middle - width / 2, width, height(*pair.before));
    if (drawn(pair.after)) svg += bar("after", middle - width / 4, width / 2, height(*pair.after));
    svg += "</g>";
  }
  svg += label(kLeft, kHeight - 5, "start", html_text(first_label));
  if (bars.size() > 1) svg += label(kWidth - kRight, kHeight - 5, "end", html_text(last_label));
  return svg + "</svg>";
}

std::string octave_chart(std::span<const double> counts, int first_octave, int bins_per_octave) {
  std::string svg = open_drawing();
  const double most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  const double slot = kPlotWidth / static_cast<double>(std::max<std::size_t>(counts.size(), 1));
  double whole = 0;
  for (const double count : counts) whole += count;
  svg += rule(kTop, false) + rule(kFloor, true);
  svg += label(kLeft - 5, kTop + 3.5, "end", whole == 0 ? "0" : fmt::format("{:.0f} %", 100 * most / whole));
  svg += label(kLeft - 5, kFloor + 3.5, "end", "0");
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (!(counts[i] > 0)) continue;
    const double low = first_octave + static_cast<double>(i) / bins_per_octave;
    svg += fmt::format("<g><title>{:.3g} – {:.3g}: {:.0f}</title>", std::exp2(low),
                       std::exp2(low + 1.0 / bins_per_octave), counts[i]);
    svg += bar("after", kLeft + slot * (static_cast<double>(i) + 0.08), slot * 0.84,
               std::max(0.5, kPlotHeight * counts[i] / most)) +
           "</g>";
  }
  const int octaves = static_cast<int>(counts.size()) / bins_per_octave;
  const int step = std::max(1, (octaves + 4) / 5);
  for (int octave = 0; octave <= octaves; octave += step)
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">2<tspan dy=\"-3\" "
        "font-size=\"8\">{}{}</tspan></text>",
        std::min(kLeft + slot * octave * bins_per_octave, kWidth - kRight - 6), kHeight - 5,
        first_octave + octave < 0 ? "\xE2\x88\x92" : "", std::abs(first_octave + octave));
  return svg + "</svg>";
}

}  // namespace llmq
