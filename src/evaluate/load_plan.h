// A fixed mix of requests and the times at which they arrive: the same figures give the same load on every
// machine and server.
//
// Prompts are common English words, about one token each in most vocabularies; the server's own count is what
// is reported. Lengths are uniform in [1/2, 3/2] of the figure asked for; answers may have lengths as uneven
// as those of chats instead: exponential about the same mean, cut at kLongestTail times of it. Rows of one
// bench have the same lengths and other words, so that no row finds the prompts of another in a prefix cache.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmq {

constexpr std::int64_t kLongestTail = 8;

struct LoadMix {
  std::int64_t requests = 128;
  std::int64_t prompt_words = 128, new_tokens = 64;  // in the middle
  bool long_tail = false;                            // answers of exponential lengths
  // of the requests; they begin with the same prompt_words / 2 words
  double shared_share = 0.25;
  std::uint64_t seed = 1;        // of lengths and arrivals
  std::uint64_t words_seed = 1;  // of words
  std::int64_t longest_answer() const {
    return long_tail ? kLongestTail * new_tokens : new_tokens + new_tokens / 2;
  }
  std::int64_t shortest_answer() const { return long_tail ? 2 : (new_tokens + 1) / 2; }
};

struct PlannedRequest {
  std::string prompt;
  std::int64_t new_tokens = 0;
  double arrival = 0;  // seconds after the start
};

// `rate` requests per second arrive as a Poisson process; infinity: all at once. Error(kUsage) for a mix that
// is none.
std::vector<PlannedRequest> plan_load(const LoadMix& mix, double rate);

}  // namespace llmq
