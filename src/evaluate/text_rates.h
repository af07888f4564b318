// Perplexity of a whole text by its words and its bytes, which models of other vocabularies share.
//
// With the sum L of the log likelihoods of all tokens, in nats, of a text of w words and b bytes of UTF-8:
//   word_perplexity = exp(-L/w), byte_perplexity = exp(-L/b), bits_per_byte = -L/b/ln 2
// which is what lm-evaluation-harness 0.4.13 gives for a task of loglikelihood_rolling.
#pragma once
#include <cstdint>
#include <string_view>

#include "evaluate/perplexity.h"

namespace llmq {

struct TextRates {
  double word_perplexity = 0, byte_perplexity = 0, bits_per_byte = 0;
};

// Parts that Python's re.split(r"\s+", text) makes: blanks at an end leave an empty part beside them, and an
// empty text is one part. `text`: valid UTF-8.
std::int64_t count_words(std::string_view text);

// `result`: of every token of `text`, which is not empty.
TextRates text_rates(std::string_view text, const PerplexityResult& result);

}  // namespace llmq
