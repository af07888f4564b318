#include "grammar/regex_syntax.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/utf8.h"

namespace llmq {
namespace {

constexpr std::size_t kMostBytes = 1u << 14;
constexpr int kMostGroups = 32, kMostRepeats = 10'000, kForever = -1;

struct Part {
  enum class Kind : std::uint8_t { kCharacters, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  Characters characters;
  std::vector<Part> parts;
  int least = 0, most = 0;  // kRepeat
};

const Characters kDecimalDigits = {{'0', '9'}};
const Characters kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Characters kSpaces = {{'\t', '\r'}, {' ', ' '}};

Part characters_part(Characters characters) {
  Part part;
  part.kind = Part::Kind::kCharacters;
  part.characters = std::move(characters);
  return part;
}

Part repeat_part(Part body, int least, int most) {
  Part part;
  part.kind = Part::Kind::kRepeat;
  part.parts.push_back(std::move(body));
  part.least = least;
  part.most = most;
  return part;
}

Part anything() { return repeat_part(characters_part(all_but({})), 0, kForever); }

class Parser {
 public:
  Parser(std::string_view text, RegexReach reach, const std::string& where)
      : text_(text), reach_(reach), where_(where) {
    if (text.size() > kMostBytes)
      fail(
          ErrorKind::kUnsupported,
          {fmt::format("the expression has {} bytes, more than {}", text.size(), kMostBytes), {}, where, {}});
    if (const auto at = first_invalid_utf8(text))
      fail(ErrorKind::kBadInput, {fmt::format("the expression is not UTF-8 at byte {}", *at), {}, where, {}});
  }
  Part parse() {
    Part whole = choice(0);
    if (!done()) refuse("')' without '('");
    return whole;
  }

 private:
  bool done() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !done() && text_[at_] == c; }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  char32_t character() {
    if (done()) refuse("the expression ends too early");
    const CodePoint point = read_utf8(text_, at_);
    at_ += point.bytes;
    return point.value;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::kBadInput, {fmt::format("{} at byte {} of the expression", what, at_), {}, where_, {}});
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(ErrorKind::kUnsupported,
         {fmt::format("{} at byte {} of the expression is not supported", what, at_), {}, where_, {}});
  }

  Part choice(int depth) {
    if (depth > kMostGroups) unsupported(fmt::format("a group inside {} others", kMostGroups));
    Part part;
    part.kind = Part::Kind::kChoice;
    do part.parts.push_back(sequence(depth));
    while (take('|'));
    return part;
  }

  Part sequence(int depth) {
    Part part;
    const bool from_start = depth == 0 && take('^');
    if (depth == 0 && reach_ == RegexReach::kInside && !from_start) part.parts.push_back(anything());
    bool to_end = false;
    while (!done() && !next_is('|') && !next_is(')')) {
      if (take('$')) {
        if (depth > 0 || (!done() && !next_is('|'))) unsupported("'$' inside");
        to_end = true;
        break;
      }
      part.parts.push_back(repeated(depth));
    }
    if (depth == 0 && reach_ == RegexReach::kInside && !to_end) part.parts.push_back(anything());
    return part;
  }

  Part repeated(int depth) {
    Part part = atom(depth);
    int least = 0, most = kForever;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (next_is('{')) {
      braces(least, most);
    } else {
      return part;
    }
    take('?');
    if (next_is('+') || next_is('*') || next_is('{') || next_is('?')) refuse("a repetition of a repetition");
    return repeat_part(std::move(part), least, most);
  }

  int number() {
    int value = 0;
    const std::size_t begin = at_;
    for (; !done() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      if ((value = value * 10 + (text_[at_] - '0')) > kMostRepeats)
        unsupported(fmt::format("a repetition above {}", kMostRepeats));
    if (at_ == begin) refuse("no number where a repetition has one");
    return value;
  }

  void braces(int& least, int& most) {
    ++at_;
    least = most = number();
    if (take(',')) most = next_is('}') ? kForever : number();
    if (!take('}')) refuse("no '}' behind a repetition");
    if (most != kForever && most < least) refuse("a repetition that ends before it begins");
  }

  Part atom(int depth) {
    switch (const char32_t c = character()) {
      case '.':
        return characters_part(all_but({{'\n', '\n'}}));
      case '[':
        return characters_part(class_of());
      case '\\':
        return characters_part(tidy(escape()));
      case '(': {
        if (take('?') && !take(':')) unsupported("a group that begins with '(?', other than '(?:',");
        Part group = choice(depth + 1);
        if (!take(')')) refuse("no ')' for a '('");
        return group;
      }
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        refuse("a repetition of nothing");
      case '}':
      case ']':
        --at_;
        refuse("an unescaped bracket");
      case '^':
        --at_;
        unsupported("'^' inside");
      default:
        return characters_part({{c, c}});
    }
  }

  char32_t hexadecimal(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = character();
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if (c >= 'a' && c <= 'f')
        value = value * 16 + (c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        value = value * 16 + (c - 'A' + 10);
      else
        refuse("no hexadecimal digit");
    }
    if (value >= 0xd800 && value <= 0xdfff) unsupported("half of a surrogate pair");
    return value;
  }

  // Behind a backslash.
  Characters escape() {
    switch (const char32_t c = character()) {
      case 'd':
        return kDecimalDigits;
      case 'D':
        return all_but(kDecimalDigits);
      case 'w':
        return kWords;
      case 'W':
        return all_but(kWords);
      case 's':
        return kSpaces;
      case 'S':
        return all_but(kSpaces);
      case 'n':
        return {{'\n', '\n'}};
      case 't':
        return {{'\t', '\t'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'x':
      case 'u': {
        const char32_t value = hexadecimal(c == 'x' ? 2 : 4);
        return {{value, value}};
      }
      default:
        if (c > 0x7f || c < 0x20 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
            (c >= 'a' && c <= 'z')) {
          --at_;
          unsupported("this escape");
        }
        return {{c, c}};
    }
  }

  // Behind '['.
  Characters class_of() {
    const bool negated = take('^');
    Characters characters;
    for (bool first = true; first || !next_is(']'); first = false) {
      if (first && next_is(']')) refuse("an empty class");
      const Characters from = class_item();
      characters.insert(characters.end(), from.begin(), from.end());
      const bool single = from.size() == 1 && from[0].first == from[0].last;
      if (!next_is('-') || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') continue;
      ++at_;
      const Characters to = class_item();
      if (!single || to.size() != 1 || to[0].first != to[0].last || to[0].first < from[0].first)
        refuse("a range of characters without order");
      characters.push_back({from[0].first, to[0].first});
    }
    ++at_;
    characters = tidy(std::move(characters));
    if (negated) characters = all_but(characters);
    if (characters.empty()) refuse("a class without characters");
    return characters;
  }
  Characters class_item() {
    const char32_t c = character();
    if (c == '[' && !done() && (text_[at_] == ':' || text_[at_] == '.' || text_[at_] == '='))
      unsupported("a named class");
    if (c == '\\') return escape();
    return {{c, c}};
  }

  std::string_view text_;
  RegexReach reach_;
  const std::string& where_;
  std::size_t at_ = 0;
};

class Emitter {
 public:
  Emitter(TextProgramBuilder& builder, Spelling spelling) : builder_(builder), spelling_(spelling) {}

  TextPlace emit(const Part& part, TextPlace next) {
    builder_.charge();
    switch (part.kind) {
      case Part::Kind::kCharacters:
        return one_of(builder_, part.characters, spelling_, next);
      case Part::Kind::kSequence:
        for (std::size_t i = part.parts.size(); i-- > 0;) next = emit(part.parts[i], next);
        return next;
      case Part::Kind::kChoice: {
        std::vector<TextPlace> ways;
        for (const Part& one : part.parts) ways.push_back(emit(one, next));
        return builder_.either(ways);
      }
      case Part::Kind::kRepeat:
        break;
    }
    return repeat(part, next);
  }

 private:
  // A body that stands there often is a rule that is called: a node each time, in place of the whole body.
  TextPlace repeat(const Part& part, TextPlace next) {
    const Part& body = part.parts[0];
    const int optional = part.most == kForever ? 0 : part.most - part.least;
    const bool shared = part.least + optional > 2;
    const TextPlace rule = shared ? emit(body, kTextEnd) : kTextEnd;
    const auto once = [&](TextPlace behind) {
      builder_.charge();
      return shared ? builder_.call(rule, behind) : emit(body, behind);
    };
    TextPlace place = next;
    if (part.most == kForever) {
      place = builder_.open();
      builder_.close(place, emit(body, place), next);
    }
    for (int i = 0; i < optional; ++i) place = builder_.either(once(place), next);
    for (int i = 0; i < part.least; ++i) place = once(place);
    return place;
  }

  TextProgramBuilder& builder_;
  Spelling spelling_;
};

}  // namespace

TextPlace regex_texts(TextProgramBuilder& builder, std::string_view pattern, RegexReach reach,
                      Spelling spelling, const std::string& where, TextPlace next) {
  return Emitter(builder, spelling).emit(Parser(pattern, reach, where).parse(), next);
}

}  // namespace llmq
