// Pieces of report.html: text made safe for markup, and the drawings, as inline SVG without script.
//
// A drawing has a fixed width in CSS pixels and grows in number, not in size, with the model: the page lays
// them out in as many columns as the screen has. Colours are classes of the page's style, which has a light
// and a dark form.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmq {

// `text` inside markup or a quoted attribute: & < > " ' become entities; control characters, and bytes that
// are not UTF-8, the replacement character.
std::string html_text(std::string_view text);

// Two amounts of one thing: `before` is drawn as a pale bar, `after` as a narrow one inside it.
struct BarPair {
  std::string name;                     // shown when pointed at
  std::optional<double> before, after;  // positive; anything else is not drawn
};

// The decades that hold every drawn amount: 10^first .. 10^last, at least one of them.
struct Decades {
  int first = 0, last = 1;
};
Decades decades_of(std::span<const BarPair> bars);

// Bars over a logarithmic axis, in order; `labels`: what stands under the first and the last.
std::string bar_chart(std::span<const BarPair> bars, Decades decades, const std::string& first_label,
                      const std::string& last_label);

// Counts of what falls into [edge, edge * 2^(1/bins_per_octave)), from 2^first_octave on.
std::string octave_chart(std::span<const double> counts, int first_octave, int bins_per_octave);

}  // namespace llmq
