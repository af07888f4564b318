#include "bench/device_bars.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace llmq {
namespace {

using Lines = std::vector<Measured>;

constexpr std::int64_t kFewRows = 16;

struct Figure {
  std::optional<double> value;
  std::string where;
};

double rate(const Measured& line) { return line.operations / line.seconds; }

std::optional<double> share(double achieved, double limit) {
  if (limit <= 0) return {};
  return achieved / limit;
}

Lines of(const Lines& lines, const std::string& operation) {
  Lines found;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(found),
               [&](const Measured& line) { return line.operation == operation; });
  return found;
}

template <class Value>
std::vector<Figure> figures(const Lines& lines, const Value& value) {
  std::vector<Figure> all;
  for (const Measured& line : lines) all.push_back({value(line), line.shape});
  return all;
}

// Of the least figure; none where there is no figure, or one without a value.
Verdict at_least(double wanted, const std::string& bar, const std::vector<Figure>& figures) {
  Verdict verdict{bar, fmt::format(">= {:.2f}", wanted), {}, {}, false};
  for (const Figure& figure : figures) {
    if (!figure.value) return {bar, verdict.wanted, {}, {}, false};
    if (!verdict.value || *figure.value < *verdict.value)
      verdict.value = figure.value, verdict.where = figure.where;
  }
  verdict.met = verdict.value && *verdict.value >= wanted;
  return verdict;
}

Verdict at_most(double wanted, const std::string& bar, const Figure& figure) {
  return {bar, fmt::format("<= {:.2f}", wanted), figure.value, figure.where,
          figure.value && *figure.value <= wanted};
}

}  // namespace

Limits limits_of(const MachinePeaks& peaks) {
  Limits limits{peaks.read_bytes_per_second, {}};
  for (const LevelPeak& level : peaks.arithmetic) {
    double& most = limits.products[static_cast<int>(level.kind)];
    most = std::max(most, level.peak.by_clock);
  }
  return limits;
}

std::optional<double> of_read(const Measured& line, const Limits& limits) {
  return share(line.bytes / line.seconds, limits.read);
}
std::optional<double> of_products(const Measured& line, const Limits& limits) {
  return share(rate(line), limits.products[static_cast<int>(line.kind)]);
}

std::vector<RowTimes> side_by_side(const Lines& lines, const std::string& first, const std::string& second) {
  std::vector<RowTimes> times;
  for (const Measured& line : of(lines, first))
    for (const Measured& other : of(lines, second))
      if (line.rows == other.rows) times.push_back({line.rows, line.seconds, other.seconds});
  std::sort(times.begin(), times.end(), [](const RowTimes& a, const RowTimes& b) { return a.rows < b.rows; });
  return times;
}

std::optional<std::int64_t> overtaken_at(const std::vector<RowTimes>& times) {
  std::optional<std::int64_t> rows;
  for (auto at = times.rbegin(); at != times.rend() && at->second < at->first; ++at) rows = at->rows;
  return rows;
}

std::vector<Verdict> verdicts(const Lines& lines, const Limits& limits) {
  const auto read = [&](const Measured& line) { return of_read(line, limits); };
  double large = 0;  // operations a second of 8192 x 8192 x 8192
  for (const Measured& line : of(lines, measured::kLargeProduct)) large = std::max(large, rate(line));
  const auto of_large = [&](const Measured& line) { return share(rate(line), large); };

  const std::string codes = measured::kCodes4;
  Lines one_row;
  Figure more_rows;
  for (const Measured& line : of(lines, codes)) {
    if (line.rows == 1) one_row = {line};
    if (line.rows == kFewRows && !one_row.empty())
      more_rows = {line.seconds / one_row[0].seconds, line.shape};
  }
  std::vector<Figure> over_codes;
  for (const Measured& line : of(lines, codes)) {
    if (line.rows > kFewRows) continue;
    over_codes.push_back({{}, line.shape});
    for (const Measured& other : of(lines, measured::kDequantized))
      if (other.rows == line.rows) over_codes.back().value = other.seconds / line.seconds;
  }

  return {
      at_least(0.85, fmt::format("{} of {}", measured::kCalibration, measured::kLargeProduct),
               figures(of(lines, measured::kCalibration), of_large)),
      at_least(0.70, fmt::format("{} of {}", measured::kGram, measured::kLargeProduct),
               figures(of(lines, measured::kGram), of_large)),
      at_least(0.80, fmt::format("{} of the read bandwidth at 1 row", codes), figures(one_row, read)),
      at_most(1.15, fmt::format("{} at {} rows: time over that of 1", codes, kFewRows), more_rows),
      at_least(
          2.0,
          fmt::format("{} at 1 to {} rows: time over that of {}", measured::kDequantized, kFewRows, codes),
          over_codes),
      at_least(0.75, fmt::format("{} of the read bandwidth", measured::kAttention),
               figures(of(lines, measured::kAttention), read)),
  };
}

}  // namespace llmq
