#include "evaluate/load_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/split_mix64.h"

namespace llmq {
namespace {

constexpr std::array kWords = {
    "the",   "time",   "house", "water", "people", "day",    "hand",   "world", "year",  "work",  "life",
    "place", "school", "night", "book",  "door",   "city",   "story",  "head",  "side",  "light", "street",
    "heart", "road",   "room",  "money", "eye",    "food",   "table",  "wind",  "girl",  "boy",   "small",
    "great", "old",    "new",   "good",  "long",   "little", "big",    "young", "early", "white", "black",
    "red",   "green",  "happy", "sad",   "went",   "saw",    "made",   "came",  "took",  "found", "said",
    "gave",  "with",   "from",  "into",  "over",   "under",  "before", "after", "and"};

class Numbers : public SplitMix64 {
 public:
  using SplitMix64::SplitMix64;
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(last - first + 1));
  }
};

std::string words(Numbers& numbers, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    text += ' ';
    text += kWords[numbers.next() % kWords.size()];
  }
  return text;
}

void check(const LoadMix& mix, double rate) {
  if (mix.requests < 1 || mix.prompt_words < 2 || mix.new_tokens < 2 ||
      !(mix.shared_share >= 0 && mix.shared_share <= 1) || !(rate > 0))
    fail(ErrorKind::kUsage,
         "{} requests of {} words and {} new tokens, {} of them with a common beginning, {} a second: this "
         "is no load",
         mix.requests, mix.prompt_words, mix.new_tokens, mix.shared_share, rate);
}

std::int64_t answer_length(Numbers& shapes, const LoadMix& mix) {
  if (!mix.long_tail) return shapes.between(mix.shortest_answer(), mix.longest_answer());
  const double length = std::round(-std::log1p(-shapes.uniform()) * static_cast<double>(mix.new_tokens));
  return static_cast<std::int64_t>(std::clamp(length, static_cast<double>(mix.shortest_answer()),
                                              static_cast<double>(mix.longest_answer())));
}

}  // namespace

std::vector<PlannedRequest> plan_load(const LoadMix& mix, double rate) {
  check(mix, rate);
  Numbers shapes(mix.seed), letters(mix.words_seed), arrivals(mix.seed + 1);
  const std::int64_t common_words = mix.prompt_words / 2;
  const std::string common = words(letters, common_words);
  std::vector<PlannedRequest> plan;
  double now = 0;
  for (std::int64_t i = 0; i < mix.requests; ++i) {
    PlannedRequest request;
    // One more than half at the least: behind a common beginning, every prompt goes on with words of its own.
    const std::int64_t length =
        shapes.between(common_words + 1, mix.prompt_words + (mix.prompt_words - common_words) - 1);
    request.new_tokens = answer_length(shapes, mix);
    const bool shared = shapes.uniform() < mix.shared_share;
    request.prompt = shared ? common + words(letters, length - common_words) : words(letters, length);
    request.prompt.erase(0, 1);
    if (std::isfinite(rate)) now += -std::log1p(-arrivals.uniform()) / rate;
    request.arrival = now;
    plan.push_back(std::move(request));
  }
  return plan;
}

}  // namespace llmq
