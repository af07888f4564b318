// Windows and words as lm-evaluation-harness itself cuts and counts them: windows.json, which
// tests/interop/make_lm_eval_golden.py wrote with lm_eval 0.4.13.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/io.h"
#include "evaluate/perplexity.h"
#include "evaluate/text_rates.h"

namespace llmq {
namespace {

constexpr std::int32_t kPrefix = -1;

const Json& golden_windows() {
  static const Json document = [] {
    const Path path = Path(LLMQ_SOURCE_DIR) / "tests/golden/lm_eval/windows.json";
    return Json::parse(read_text(system_io(), path), path.string());
  }();
  return document;
}

PerplexityProtocol rolling_protocol(std::int64_t context, std::int64_t max_windows = 0) {
  ModelSpec spec;
  spec.max_position = 64;
  return resolve_protocol("lm-eval", context, {}, max_windows, spec);
}

TEST(LmEvalWindows, AreThoseOfLmEvalItself) {
  ASSERT_GE(golden_windows().at("cases").items().size(), 50u);
  for (const Json& one : golden_windows().at("cases").items()) {
    SCOPED_TRACE(one.dump());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(one.at("tokens").as_integer()));
    std::iota(ids.begin(), ids.end(), 0);
    const auto windows = cut_windows(ids, rolling_protocol(one.at("max_length").as_integer()), kPrefix);
    Json found = Json::array();
    for (const Window& window : windows) {
      const auto length = static_cast<std::int64_t>(window.tokens.size());
      for (std::size_t i = 1; i < window.tokens.size(); ++i)
        EXPECT_EQ(window.tokens[i], window.tokens[i - 1] + 1);
      found.push_back(Json::array(
          {Json(std::int64_t{window.tokens.front()}), Json(length), Json(length - window.first_scored)}));
    }
    EXPECT_EQ(found, one.at("windows")) << found.dump();
  }
}

TEST(LmEvalWindows, WordsAreThoseOfPython) {
  for (const Json& one : golden_windows().at("words").items())
    EXPECT_EQ(count_words(one.at("text").as_string()), one.at("words").as_integer()) << one.dump();
}

// 3 tokens of 2 nats over "a bé": 2 words, 5 bytes.
TEST(LmEvalWindows, RatesAreByWordsAndBytes) {
  PerplexityResult result;
  result.mean_nll = 2;
  result.scored_tokens = 3;
  const TextRates rates = text_rates("a b\xc3\xa9", result);
  EXPECT_DOUBLE_EQ(rates.word_perplexity, std::exp(3.0));
  EXPECT_DOUBLE_EQ(rates.byte_perplexity, std::exp(1.2));
  EXPECT_DOUBLE_EQ(rates.bits_per_byte, 1.2 / std::log(2.0));
}

TEST(LmEvalWindows, StopAtTheNumberAskedForAndNeedAPrefix) {
  const std::vector<std::int32_t> ids(40, 7);
  EXPECT_EQ(cut_windows(ids, rolling_protocol(8, 2), kPrefix).size(), 2u);
  EXPECT_THROW(cut_windows(ids, rolling_protocol(8), {}), Error);
  EXPECT_THROW(cut_windows({}, rolling_protocol(8), kPrefix), Error);
  EXPECT_EQ(rolling_protocol(16).id(), "lm-eval-16");
}

}  // namespace
}  // namespace llmq
