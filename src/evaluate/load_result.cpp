#include "evaluate/load_result.h"

#include <algorithm>

#include "evaluate/speed.h"

namespace llmq {
namespace {

Percentiles percentiles_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {nearest_rank(values, 0.5), nearest_rank(values, 0.95), nearest_rank(values, 0.99)};
}

}  // namespace

LoadResult summarize_load(std::span<const RequestTrace> traces) {
  LoadResult result;
  std::vector<double> first, between, per_token;
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
  result.ttft = percentiles_of(std::move(first));
  result.itl = percentiles_of(std::move(between));
  result.tpot = percentiles_of(std::move(per_token));
  return result;
}

}  // namespace llmq
