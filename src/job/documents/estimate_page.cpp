#include "job/documents/estimate_page.h"

#include <fmt/format.h>

#include "base/amount_text.h"
#include "evaluate/bench_page.h"
#include "export/report/roofline.h"

namespace llmq {
namespace {

// "1, 3–5" of numbers in order.
std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) text += fmt::format("–{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

struct SchemesAtOnePlace {
  const EstimatedCell* cell;
  std::vector<int> numbers;
  std::string names;
};

// Each scheme at its first and its last batch, both of the shortest context: more would lie on each other.
// Schemes that a runtime computes in the same way share a point.
std::vector<RooflinePoint> roofline_points(const Estimate& e) {
  std::vector<SchemesAtOnePlace> places;
  const auto add = [&places](const EstimatedCell& cell, int number, const std::string& name) {
    for (SchemesAtOnePlace& place : places)
      if (place.cell->step_bytes == cell.step_bytes && place.cell->batch == cell.batch &&
          place.cell->decode_tokens_per_second == cell.decode_tokens_per_second) {
        place.numbers.push_back(number);
        place.names += ", " + name;
        return;
      }
    places.push_back({&cell, {number}, name});
  };
  for (std::size_t i = 0; i < e.schemes.size(); ++i) {
    const SchemeEstimate& scheme = e.schemes[i];
    if (scheme.cells.empty()) continue;
    const EstimatedCell *first = &scheme.cells.front(), *last = first;
    for (const EstimatedCell& cell : scheme.cells)
      if (cell.context == first->context) last = &cell;
    add(*first, static_cast<int>(i) + 1, scheme.scheme);
    if (last != first) add(*last, static_cast<int>(i) + 1, scheme.scheme);
  }
  std::vector<RooflinePoint> points;
  for (const SchemesAtOnePlace& place : places) {
    const EstimatedCell& cell = *place.cell;
    points.push_back({ranges_text(place.numbers),
                      fmt::format("{}, batch {}, context {}", place.names, cell.batch, cell.context),
                      cell.step_bytes, cell.step_operations,
                      static_cast<double>(cell.batch) / cell.decode_tokens_per_second});
  }
  return points;
}

BenchPage::Table scheme_table(const Estimate& e) {
  BenchPage::Table table{"Schemes", {{"", "scheme", "weights", "bits per weight", "prefill, tokens/s"}}};
  for (std::size_t i = 0; i < e.schemes.size(); ++i) {
    const SchemeEstimate& scheme = e.schemes[i];
    if (table.rows.front().size() == 5)
      for (const EstimatedCell& cell : scheme.cells)
        table.rows.front().push_back(fmt::format("{} × {}", cell.batch, cell.context));
    if (!scheme.refusal.empty()) continue;
    std::vector<std::string> row = {std::to_string(i + 1), scheme.scheme, bytes_text(scheme.weight_bytes),
                                    fmt::format("{:.3f}", scheme.bits_per_weight),
                                    fmt::format("{:.0f}", scheme.prefill_tokens_per_second)};
    for (const EstimatedCell& cell : scheme.cells)
      row.push_back(fmt::format("{}{}", bytes_text(cell.bytes),
                                cell.fits ? fmt::format(", {:.{}f}/s", cell.decode_tokens_per_second,
                                                        cell.decode_tokens_per_second < 100 ? 1 : 0)
                                          : std::string(", does not fit")));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

std::string estimate_page(const Estimate& e) {
  BenchPage page;
  page.title = "What " + e.model + " would take";
  page.below = fmt::format("{} ({}): {} of memory, {:.1f} GB/s, {:.2f} TFLOP/s in BF16", e.machine.name,
                           e.machine.source, bytes_text(e.machine.memory_bytes),
                           e.machine.bytes_per_second * 1e-9, e.machine.bfloat16_flops * 1e-12);
  page.cards = {
      {e.recommended.empty() ? "none" : e.recommended, "recommended: " + e.reason},
      {bytes_text(e.budget), "budget for weights and KV cache"},
      {bytes_text(e.kv_bytes_per_token), fmt::format("a token of KV cache in {}", e.kv_cache.name)}};
  page.figure = roofline_chart(e.machine.bytes_per_second, e.machine.bfloat16_flops,
                               "decoding steps as they are predicted", roofline_points(e));
  page.figure_words =
      "One decoding step of each scheme, by its number in the table, at the smallest and the largest batch "
      "and "
      "the shortest context. The roof is of products in BF16; a scheme of 8-bit inputs may stand above it.";
  page.tables = {scheme_table(e)};
  for (const SchemeEstimate& scheme : e.schemes)
    if (!scheme.refusal.empty())
      page.notes.push_back(scheme.scheme + ": not for this model: " + scheme.refusal);
  page.notes.push_back(
      "Columns are batch × context: memory of weights and KV cache, and decoded tokens a second.");
  page.notes.push_back(e.machine.measured
                           ? "Speeds are of llmq's own runtime, which computes 16-bit-input schemes in BF16."
                           : "Speeds are upper bounds, of a runtime that computes from the packed weights.");
  return render_bench_page(page);
}

}  // namespace llmq
