// Regular expressions against RE2, which answers the same question by other means: every text of a few
// letters for hundreds of random expressions.
#include <gtest/gtest.h>
#include <re2/re2.h>

#include <random>

#include "base/error.h"
#include "grammar/regex_syntax.h"
#include "tests/unit/grammar/walked_automaton.h"

namespace llmq::testing {
namespace {

constexpr TextPlace kEnd = kTextEnd;

TextAutomaton regex_automaton(const std::string& pattern, RegexReach reach = RegexReach::kWhole) {
  TextProgramBuilder builder("regex");
  const TextPlace start = regex_texts(builder, pattern, reach, Spelling::kPlain, "regex", kEnd);
  return TextAutomaton(std::make_shared<const TextProgram>(std::move(builder).finish(start, all_bytes())));
}

const std::vector<std::string> kLetters = {"a", "b", "é", "\n"};

class RandomPattern {
 public:
  explicit RandomPattern(std::mt19937& random) : random_(random) {}
  std::string choice(int depth) {
    std::string text = sequence(depth);
    while (pick(4) == 0) text += "|" + sequence(depth);
    return text;
  }
  std::string sequence(int depth) {
    std::string text;
    for (unsigned i = pick(4); i > 0; --i) text += repeated(depth);
    return text;
  }

 private:
  unsigned pick(unsigned below) { return static_cast<unsigned>(random_()) % below; }
  std::string repeated(int depth) {
    static const std::vector<std::string> ends = {"",    "",     "",      "*",     "+",  "?",
                                                  "{2}", "{1,}", "{0,2}", "{3,4}", "*?", "{0}"};
    return atom(depth) + ends[pick(static_cast<unsigned>(ends.size()))];
  }
  std::string atom(int depth) {
    static const std::vector<std::string> atoms = {"a",     "b",   "é",   ".",   "[ab]",   "[^a]",  "[^é]",
                                                   "[a-é]", "\\w", "\\W", "\\d", "[\\w-]", "\\x61", "[b\\n]"};
    if (depth > 0 && pick(3) == 0) return (pick(2) == 0 ? "(" : "(?:") + choice(depth - 1) + ")";
    return atoms[pick(static_cast<unsigned>(atoms.size()))];
  }
  std::mt19937& random_;
};

std::vector<std::string> all_texts(int length) {
  std::vector<std::string> texts = {""};
  for (std::size_t begin = 0; length > 0; --length) {
    const std::size_t end = texts.size();
    for (; begin < end; ++begin)
      for (const std::string& letter : kLetters) texts.push_back(texts[begin] + letter);
  }
  return texts;
}

TEST(Regex, AcceptsWhatRe2Matches) {
  std::mt19937 random(7);
  const std::vector<std::string> texts = all_texts(4);
  int accepted = 0;
  for (int i = 0; i < 400; ++i) {
    const std::string pattern = RandomPattern(random).choice(2);
    const RE2 oracle(pattern);
    ASSERT_TRUE(oracle.ok()) << pattern;
    TextAutomaton whole = regex_automaton(pattern);
    for (const std::string& text : texts) {
      const bool expected = RE2::FullMatch(text, oracle);
      accepted += expected;
      ASSERT_EQ(accepts(whole, text), expected) << "'" << pattern << "' on '" << text << "'";
      if (!expected) continue;
      for (std::size_t cut = 0; cut <= text.size(); ++cut)
        ASSERT_NE(after(whole, text.substr(0, cut)), TextAutomaton::kDead);
    }
  }
  EXPECT_GT(accepted, 5000);
}

TEST(Regex, InsideMeansAnywhereUnlessAnchored) {
  std::mt19937 random(8);
  const std::vector<std::string> texts = all_texts(4);
  for (int i = 0; i < 200; ++i) {
    RandomPattern patterns(random);
    std::string pattern;
    for (unsigned way = random() % 3;; --way) {
      pattern +=
          std::string(random() % 3 == 0 ? "^" : "") + patterns.sequence(1) + (random() % 3 == 0 ? "$" : "");
      if (way == 0) break;
      pattern += "|";
    }
    const RE2 oracle(pattern);
    TextAutomaton inside = regex_automaton(pattern, RegexReach::kInside);
    for (const std::string& text : texts)
      ASSERT_EQ(accepts(inside, text), RE2::PartialMatch(text, oracle))
          << "'" << pattern << "' on '" << text << "'";
  }
}

// Every state that is reached has a way to an end: nothing is begun that cannot be finished.
TEST(Regex, EveryStateCanBeFinished) {
  std::mt19937 random(9);
  for (int i = 0; i < 200; ++i) {
    const std::string pattern = RandomPattern(random).choice(2);
    TextAutomaton automaton = regex_automaton(pattern);
    std::vector<std::vector<TextAutomaton::State>> from;  // a state: those it is reached from
    std::vector<TextAutomaton::State> ends, pending = {automaton.start()};
    from.resize(1);
    std::vector<bool> seen(1 << 14), finishes(1 << 14);
    seen[static_cast<std::size_t>(pending[0])] = true;
    while (!pending.empty()) {
      const TextAutomaton::State state = pending.back();
      pending.pop_back();
      if (automaton.accepts(state)) ends.push_back(state);
      for (int byte = 0; byte < 256; ++byte) {
        automaton.renew();
        const TextAutomaton::State next = automaton.step(state, static_cast<std::uint8_t>(byte));
        if (next == TextAutomaton::kDead) continue;
        from.resize(automaton.states());
        from[static_cast<std::size_t>(next)].push_back(state);
        if (!seen[static_cast<std::size_t>(next)]) pending.push_back(next);
        seen[static_cast<std::size_t>(next)] = true;
      }
    }
    while (!ends.empty()) {
      const auto state = static_cast<std::size_t>(ends.back());
      ends.pop_back();
      if (finishes[state]) continue;
      finishes[state] = true;
      ends.insert(ends.end(), from[state].begin(), from[state].end());
    }
    for (std::size_t state = 0; state < automaton.states(); ++state)
      ASSERT_TRUE(finishes[state]) << pattern << ", state " << state;
  }
}

TEST(Regex, CharactersAreOnesOfUtf8) {
  TextAutomaton any = regex_automaton("[^a]");
  for (const char32_t c : {0x00, 0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x10ffff}) {
    std::string text;
    if (c < 0x80)
      text = {static_cast<char>(c)};
    else if (c < 0x800)
      text = {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
    else if (c < 0x10000)
      text = {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
              static_cast<char>(0x80 | (c & 0x3f))};
    else
      text = {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3f)),
              static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
    EXPECT_TRUE(accepts(any, text)) << static_cast<unsigned>(c);
  }
  for (const std::string_view bytes :
       {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xe0\x80\x80", "\xff", "a"})
    EXPECT_FALSE(accepts(any, bytes));
}

TEST(Regex, RefusesByNameAndPlace) {
  const struct {
    const char *pattern, *message;
    ErrorKind kind;
  } cases[] = {
      {"a(?=b)", "'(?'", ErrorKind::kUnsupported},
      {"(a)\\1", "this escape", ErrorKind::kUnsupported},
      {"\\bx", "this escape", ErrorKind::kUnsupported},
      {"\\p{L}", "this escape", ErrorKind::kUnsupported},
      {"(^a)", "'^' inside", ErrorKind::kUnsupported},
      {"a$b", "'$' inside", ErrorKind::kUnsupported},
      {"[[:alpha:]]", "named class", ErrorKind::kUnsupported},
      {"a{20000}", "above 10000", ErrorKind::kUnsupported},
      {"(", "no ')'", ErrorKind::kBadInput},
      {"a)", "')' without", ErrorKind::kBadInput},
      {"[", "too early", ErrorKind::kBadInput},
      {"[]", "empty class", ErrorKind::kBadInput},
      {"[b-a]", "without order", ErrorKind::kBadInput},
      {"*a", "of nothing", ErrorKind::kBadInput},
      {"a**", "of a repetition", ErrorKind::kBadInput},
      {"a{2,1}", "before it begins", ErrorKind::kBadInput},
      {"a{x}", "no number", ErrorKind::kBadInput},
      {"[^\\s\\S]", "without characters", ErrorKind::kBadInput},
      {"\xff", "UTF-8", ErrorKind::kBadInput},
      {"\\", "too early", ErrorKind::kBadInput},
  };
  for (const auto& one : cases) try {
      regex_automaton(one.pattern);
      ADD_FAILURE() << one.pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), one.kind) << one.pattern;
      EXPECT_NE(error.detail().message.find(one.message), std::string::npos)
          << one.pattern << ": " << error.detail().message;
      EXPECT_EQ(error.detail().where, "regex");
    }
  EXPECT_THROW(regex_automaton(std::string(100, '(') + std::string(100, ')')), Error);
}

// Expressions made to cost much: refused when they are compiled, or when a step is too dear; or cheap after
// all.
TEST(Regex, BombsMeetBudgets) {
  for (const char* pattern : {"(abcdefgh){10000}(abcdefgh){10000}(abcdefgh){10000}(é|ü){10000}(abc){10000}(d?"
                              "e?){10000}(f?){10000}"})
    EXPECT_THROW(regex_automaton(pattern), Error) << pattern;
  const auto walk = [](const std::string& pattern, const std::string& text) {
    TextAutomaton automaton = regex_automaton(pattern);
    return after(automaton, text);
  };
  for (const char* pattern : {"((((){300}x?){300}){300}){300}", "((x?){1000}){1000}b"})
    EXPECT_THROW(walk(pattern, "x"), Error) << pattern << ": a million places at once";
  // 2^200 states, of which a text sees one for each of its bytes
  TextAutomaton many = regex_automaton("[ab]*a[ab]{200}");
  std::mt19937 random(3);
  TextAutomaton::State state = many.start();
  for (int i = 0; i < 3000; ++i) {
    many.renew();
    state = many.step(state, random() % 2 ? 'a' : 'b');
    ASSERT_NE(state, TextAutomaton::kDead);
    if (many.states() > 100) {
      state = many.restart(state);
      ASSERT_EQ(many.states(), 1u);
    }
  }
  EXPECT_THROW(
      for (;;) { state = many.step(state, random() % 2 ? 'a' : 'b'); }, Error);
  // What a step that was too dear left half-made belongs to no other state.
  TextAutomaton failed = regex_automaton("aa((x?){1000}){1000}b|a[0-9]+"), fresh = failed;
  const TextAutomaton::State begun = after(failed, "a");
  EXPECT_THROW(failed.step(begun, 'a'), Error);
  failed.renew();
  const TextAutomaton::State found = failed.step(begun, '7'), right = after(fresh, "a7");
  EXPECT_EQ(failed.accepts(found), fresh.accepts(right));
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(failed.step(found, static_cast<std::uint8_t>(byte)) == TextAutomaton::kDead,
              fresh.step(right, static_cast<std::uint8_t>(byte)) == TextAutomaton::kDead)
        << byte;
  EXPECT_EQ(walk("((){1000}){1000}", "x"), TextAutomaton::kDead) << "empty, however often";
  EXPECT_NE(walk("(a*)*", "aaaa"), TextAutomaton::kDead);
  EXPECT_NE(walk("((((a|a)*)*)*)*", "aaaa"), TextAutomaton::kDead);
}

}  // namespace
}  // namespace llmq::testing
