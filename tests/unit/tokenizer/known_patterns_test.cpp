// The hand-written matchers cut random text exactly where Oniguruma does with the expression they stand for.
#include "tokenizer/known_patterns.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/utf8.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode_classes.h"

namespace llmq {
namespace {

using Cuts = std::vector<std::size_t>;

// One of each kind that an alternative speaks of; the rest of Unicode is covered by the first test.
std::string random_text(std::mt19937& random) {
  static const char* const kParts[] = {
      " ",  "\n", "\r",     "\t",     "'",      "s",  "S", "t",       "re", "VE", "ll",   "lL",     "D",
      "a",  "Z",  "é",      "你",     "1",      "٣",  "½", ".",       "-",  "#",  "🦙", "\u00a0", "'s",
      "'M", "ſ",  "\u0301", "\u2028", "\u3000", "\v", "K", "\u00adx", "ß",  "ﬆ",  "'ſ"};
  std::string text;
  const int parts = static_cast<int>(random() % 40);
  for (int i = 0; i < parts; ++i) text += kParts[random() % std::size(kParts)];
  return text;
}

Cuts by_hand(KnownPattern pattern, const std::string& text) {
  std::vector<TextRange> words;
  split_known(pattern, text, {0, text.size()}, words);
  Cuts ends;
  for (const TextRange& word : words) ends.push_back(word.end);
  return ends;
}

Cuts by_regex(const Regex& regex, const std::string& text) {
  Cuts ends;
  std::size_t done = 0;
  regex.find_all(text, [&](std::size_t begin, std::size_t end) {
    EXPECT_EQ(begin, done) << "a character outside every match";
    done = end;
    ends.push_back(end);
  });
  EXPECT_EQ(done, text.size());
  return ends;
}

class KnownPatterns : public ::testing::TestWithParam<std::string_view> {};

TEST_P(KnownPatterns, CutRandomTextAsOnigurumaDoes) {
  const Regex regex{std::string(GetParam()), "test"};
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    const std::string text = random_text(random);
    ASSERT_EQ(by_hand(*known_pattern(GetParam()), text), by_regex(regex, text)) << text;
  }
}

// Code points that Debian's Oniguruma (Unicode 14) does not know yet are left out: there the table, taken
// from Hugging Face, is right.
TEST_P(KnownPatterns, PutEveryOlderCodePointWhereOnigurumaDoes) {
  const Regex regex{std::string(GetParam()), "test"}, assigned("\\A\\P{Cn}\\z", "test");
  int compared = 0;
  for (char32_t c = 1; c < 0x110000; c += c < 0x3000 ? 1 : 7) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string one, text;
    append_utf8(one, c);
    bool known = false;
    assigned.find_all(one, [&](std::size_t, std::size_t) { known = true; });
    if (!known) continue;
    text = "a" + one + "1" + one + " " + one + "'" + one;
    ASSERT_EQ(by_hand(*known_pattern(GetParam()), text), by_regex(regex, text))
        << std::hex << static_cast<unsigned>(c);
    ++compared;
  }
  EXPECT_GT(compared, 20000);
}

INSTANTIATE_TEST_SUITE_P(All, KnownPatterns, ::testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern),
                         [](const auto& pattern) { return "pattern" + std::to_string(pattern.index); });

}  // namespace
}  // namespace llmq
