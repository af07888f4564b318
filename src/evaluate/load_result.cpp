#include "evaluate/load_result.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "evaluate/speed.h"

namespace llmq {
namespace {

Percentiles percentiles_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {nearest_rank(values, 0.5), nearest_rank(values, 0.95), nearest_rank(values, 0.99)};
}

double between_ranks(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  Spread spread;
  spread.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / count);
  spread.median = between_ranks(values, 0.5);
  spread.p99 = between_ranks(values, 0.99);
  return spread;
}

LoadResult summarize_load(std::span<const RequestTrace> traces) {
  LoadResult result;
  std::vector<double> first, between, per_token, whole;
  for (const RequestTrace& trace : traces) {
    ++result.requests;
    if (!trace.error.empty()) {
      ++result.failed;
      ++result.errors[trace.error];
      continue;
    }
    result.seconds = std::max(result.seconds, trace.end);
    result.prompt_tokens += trace.prompt_tokens;
    result.new_tokens += trace.new_tokens;
    if (trace.new_tokens < trace.asked_tokens) ++result.short_answers;
    if (trace.pieces.empty()) continue;
    first.push_back(trace.pieces.front() - trace.from);
    whole.push_back(trace.pieces.back() - trace.from);
    for (std::size_t i = 1; i < trace.pieces.size(); ++i)
      between.push_back(trace.pieces[i] - trace.pieces[i - 1]);
    if (trace.new_tokens > 1)
      per_token.push_back((trace.pieces.back() - trace.pieces.front()) /
                          static_cast<double>(trace.new_tokens - 1));
  }
  if (result.seconds > 0) {
    result.requests_per_second = static_cast<double>(result.requests - result.failed) / result.seconds;
    result.tokens_per_second = static_cast<double>(result.new_tokens) / result.seconds;
  }
  result.spreads = {spread_of(first), spread_of(per_token), spread_of(between), spread_of(std::move(whole))};
  result.ttft = percentiles_of(std::move(first));
  result.itl = percentiles_of(std::move(between));
  result.tpot = percentiles_of(std::move(per_token));
  return result;
}

}  // namespace llmq
