// What a server's clients saw, in figures. All times in seconds.
//
//   ttft    from a request's arrival (waiting for a free client counts) to the first piece of its answer;
//           where all arrive at once, from its sending
//   itl     between two pieces of an answer, as vLLM's bench measures it: a piece has one token, or several
//           where speculation runs
//   tpot    (last piece - first piece) / (tokens - 1) of an answer of two tokens or more
//   tokens per second     of whole answers, over the time from the start to the end of the last answer; so
//                         are requests
//
// Percentiles are nearest ranks, but those of `spreads`, which are as vLLM's bench has them. Requests that
// failed are counted and are in no other figure.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace llmq {

struct RequestTrace {
  std::int64_t asked_tokens = 0;
  double from = 0, end = 0;    // seconds after the start
  std::vector<double> pieces;  // when each came
  std::int64_t prompt_tokens = 0, new_tokens = 0;
  std::string error;  // empty: the answer is whole
};

struct Percentiles {
  double p50 = 0, p95 = 0, p99 = 0;
};

// As numpy computes them: the median and the percentile lie between two ranks, the deviation is that of the
// values themselves (divided by their number). All 0 of no value.
struct Spread {
  double mean = 0, median = 0, deviation = 0, p99 = 0;
};
Spread spread_of(std::vector<double> values);

struct LoadSpreads {
  Spread ttft, tpot, itl;
  Spread e2el;  // from where ttft begins to the last piece
};

struct LoadResult {
  // short: whole, with fewer tokens than were asked for
  std::int64_t requests = 0, failed = 0, short_answers = 0;
  std::int64_t prompt_tokens = 0, new_tokens = 0;  // of all whole answers
  double seconds = 0, requests_per_second = 0, tokens_per_second = 0;
  Percentiles ttft, itl, tpot;
  LoadSpreads spreads;
  std::map<std::string, std::int64_t> errors;  // sentence -> how often
};

LoadResult summarize_load(std::span<const RequestTrace> traces);

}  // namespace llmq
