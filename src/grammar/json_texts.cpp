#include "grammar/json_texts.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace llmq {
namespace {

constexpr int kBlanks = 24, kDigits = DecimalBound::kDigits, kExponentDigits = 2;

}  // namespace

TextPlace JsonTexts::any(TextPlace next) {
  if (any_ < 0) {
    any_ = builder_.open();  // lists and objects refer to it
    const TextPlace ways[] = {string(kTextEnd), number(kTextEnd),  object(kTextEnd),
                              list(kTextEnd),   boolean(kTextEnd), null(kTextEnd)};
    const TextPlace all = builder_.either(ways);
    builder_.close(any_, all, all);
  }
  return builder_.call(any_, next);
}

TextPlace JsonTexts::sequence(char opening, char closing, TextPlace item, TextPlace next) {
  const TextPlace close = builder_.literal({&closing, 1}, next), ending = space(close);
  const TextPlace more = builder_.open();
  builder_.close(more, comma(builder_.call(item, more)), ending);
  return builder_.literal({&opening, 1}, builder_.either(space(builder_.call(item, more)), close));
}

TextPlace JsonTexts::object(TextPlace next) {
  const TextPlace member = rule(member_, [this] { return string(colon(any(kTextEnd))); });
  return builder_.call(rule(object_, [&] { return sequence('{', '}', member, kTextEnd); }), next);
}

TextPlace JsonTexts::list(TextPlace next) {
  any(kTextEnd);
  return builder_.call(rule(list_, [this] { return sequence('[', ']', any_, kTextEnd); }), next);
}

TextPlace JsonTexts::space(TextPlace next) {
  const TextPlace space = rule(space_, [this] {
    TextPlace blanks = kTextEnd;
    for (int i = 0; i < kBlanks; ++i)
      blanks = builder_.either(
          builder_.either(builder_.byte(' ', ' ', blanks), builder_.byte('\t', '\t', blanks)), kTextEnd);
    const TextPlace ways[] = {kTextEnd, builder_.literal(" ", kTextEnd), builder_.literal("\n", blanks)};
    return builder_.either(ways);
  });
  return builder_.call(space, next);
}

TextPlace JsonTexts::colon(TextPlace next) {
  return builder_.literal(":", builder_.either(builder_.literal(" ", next), next));
}

TextPlace JsonTexts::comma(TextPlace next) { return builder_.literal(",", space(next)); }

// As it is, or escaped.
TextPlace JsonTexts::character_rule() {
  return rule(character_, [this] {
    const auto hexadecimal = [this](TextPlace behind) {
      const TextPlace ways[] = {builder_.byte('0', '9', behind), builder_.byte('A', 'F', behind),
                                builder_.byte('a', 'f', behind)};
      return builder_.either(ways);
    };
    const TextPlace one = hexadecimal(kTextEnd), two = hexadecimal(one), three = hexadecimal(two);
    const TextPlace below_d8 = builder_.byte('0', '7', two);
    const TextPlace units[] = {builder_.byte('0', '9', three),   builder_.byte('A', 'C', three),
                               builder_.byte('E', 'F', three),   builder_.byte('a', 'c', three),
                               builder_.byte('e', 'f', three),   builder_.byte('D', 'D', below_d8),
                               builder_.byte('d', 'd', below_d8)};
    std::vector<TextPlace> escapes = {builder_.literal("u", builder_.either(units))};
    for (const char* c : {"\"", "\\", "/", "b", "f", "n", "r", "t"})
      escapes.push_back(builder_.literal(c, kTextEnd));
    const Characters plain = all_but({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}});
    return builder_.either(one_of(builder_, plain, Spelling::kPlain, kTextEnd),
                           builder_.literal("\\", builder_.either(escapes)));
  });
}

TextPlace JsonTexts::string(TextPlace next) {
  return builder_.call(rule(string_,
                            [this] {
                              const TextPlace more = builder_.open();
                              builder_.close(more, builder_.call(character_rule(), more),
                                             builder_.literal("\"", kTextEnd));
                              return builder_.literal("\"", more);
                            }),
                       next);
}

TextPlace JsonTexts::string(std::int64_t least, std::optional<std::int64_t> most, TextPlace next) {
  const TextPlace character = character_rule(), close = builder_.literal("\"", next);
  TextPlace place = close;
  if (!most) {
    place = builder_.open();
    builder_.close(place, builder_.call(character, place), close);
  }
  for (std::int64_t i = least; most && i < *most; ++i)
    place = builder_.either(builder_.call(character, place), close);
  for (std::int64_t i = 0; i < least; ++i) place = builder_.call(character, place);
  return builder_.literal("\"", place);
}

TextPlace JsonTexts::digits(int least, int most, TextPlace next) {
  TextPlace place = next;
  for (int i = least; i < most; ++i) place = builder_.either(builder_.byte('0', '9', place), next);
  for (int i = 0; i < least; ++i) place = builder_.byte('0', '9', place);
  return place;
}

// 0, or digits without a 0 before them.
TextPlace JsonTexts::natural(TextPlace next) {
  return builder_.either(builder_.literal("0", next), builder_.byte('1', '9', digits(0, kDigits - 1, next)));
}

TextPlace JsonTexts::integer(TextPlace next) {
  return builder_.call(rule(integer_,
                            [this] {
                              const TextPlace whole = natural(kTextEnd);
                              return builder_.either(builder_.literal("-", whole), whole);
                            }),
                       next);
}

TextPlace JsonTexts::number(TextPlace next) {
  return builder_.call(
      rule(number_,
           [this] {
             const TextPlace power = digits(1, kExponentDigits, kTextEnd);
             const TextPlace sign = builder_.either(
                 power, builder_.either(builder_.literal("-", power), builder_.literal("+", power)));
             const TextPlace exponent = builder_.either(
                 kTextEnd, builder_.either(builder_.literal("e", sign), builder_.literal("E", sign)));
             const TextPlace fraction =
                 builder_.either(exponent, builder_.literal(".", digits(1, kDigits, exponent)));
             const TextPlace whole = natural(fraction);
             return builder_.either(builder_.literal("-", whole), whole);
           }),
      next);
}

// Of so many digits before the point and at most so many behind it: a digit is free where one before it has
// left both bounds. From the last digit to the first.
TextPlace JsonTexts::magnitudes(const DecimalBound& low, const DecimalBound& high, std::size_t whole,
                                std::size_t fraction, TextPlace next) {
  constexpr unsigned kLower = 1, kUpper = 2;  // what was written is on that bound
  const auto digit_of = [&](const DecimalBound& bound, std::size_t i) {
    if (i < whole) return bound.whole[i];
    return i - whole < bound.fraction.size() ? bound.fraction[i - whole] : '0';
  };
  const auto may_end = [&](std::size_t written, unsigned on) {
    const auto ends = [&](const DecimalBound& bound) { return written >= whole + bound.fraction.size(); };
    if ((on & kLower) && (!ends(low) || low.open)) return false;
    return !((on & kUpper) && ends(high) && high.open);
  };
  std::array<TextPlace, 4> behind{};
  for (unsigned on = 0; on < 4; ++on) behind[on] = may_end(whole + fraction, on) ? next : kNone;
  for (std::size_t i = whole + fraction; i-- > 0;) {
    std::array<TextPlace, 4> here{};
    for (unsigned on = 0; on < 4; ++on) {
      const char least = on & kLower ? digit_of(low, i) : '0', most = on & kUpper ? digit_of(high, i) : '9';
      const auto then = [&](char digit) {
        return behind[((on & kLower) && digit == least ? kLower : 0) |
                      ((on & kUpper) && digit == most ? kUpper : 0)];
      };
      std::vector<TextPlace> ways;
      for (char digit = i == 0 && whole > 1 ? std::max(least, '1') : least; digit <= most;) {
        char last = digit;
        while (last < most && then(static_cast<char>(last + 1)) == then(digit)) ++last;
        if (then(digit) != kNone)
          ways.push_back(
              builder_.byte(static_cast<std::uint8_t>(digit), static_cast<std::uint8_t>(last), then(digit)));
        digit = static_cast<char>(last + 1);
      }
      if (i == whole && !ways.empty()) ways = {builder_.literal(".", builder_.either(ways))};
      if (i >= whole && may_end(i, on)) ways.push_back(next);
      here[on] = ways.empty() ? kNone : builder_.either(ways);
    }
    behind = here;
  }
  return behind[(low.whole.size() == whole ? kLower : 0) | (high.whole.size() == whole ? kUpper : 0)];
}

TextPlace JsonTexts::magnitudes(const DecimalBound& low, const DecimalBound& high, bool fractions,
                                TextPlace next) {
  std::vector<TextPlace> ways;
  for (std::size_t whole = low.whole.size(); whole <= high.whole.size(); ++whole)
    if (const TextPlace way =
            magnitudes(low, high, whole, fractions ? DecimalBound::kDigits - whole : 0, next);
        way != kNone)
      ways.push_back(way);
  return ways.empty() ? kNone : builder_.either(ways);
}

TextPlace JsonTexts::between(const DecimalBound& low, const DecimalBound& high, bool fractions,
                             TextPlace next) {
  const DecimalBound zero{}, not_zero{false, "0", {}, true};
  std::vector<TextPlace> ways;
  if (low.negative)
    if (const TextPlace below = magnitudes(high.negative ? high : not_zero, low, fractions, next);
        below != kNone)
      ways.push_back(builder_.literal("-", below));
  if (!high.negative)
    if (const TextPlace above = magnitudes(low.negative ? zero : low, high, fractions, next); above != kNone)
      ways.push_back(above);
  return ways.empty() ? kNone : builder_.either(ways);
}

// By the remainder of the digits so far, from the last digit to the first.
TextPlace JsonTexts::multiple(std::int64_t factor, bool negative, TextPlace next) {
  const auto count = static_cast<std::size_t>(factor);
  // after so many digits: nothing, or what may follow with this remainder
  std::vector<TextPlace> behind(count, kNone);
  behind[0] = next;
  const auto digit_ways = [&](std::size_t remainder, int first) {
    std::vector<TextPlace> ways;
    for (int digit = first; digit < 10; ++digit)
      if (const TextPlace then = behind[(remainder * 10 + static_cast<std::size_t>(digit)) % count];
          then != kNone)
        ways.push_back(builder_.byte(static_cast<std::uint8_t>('0' + digit),
                                     static_cast<std::uint8_t>('0' + digit), then));
    return ways;
  };
  for (int digits = 1; digits < kDigits; ++digits) {
    std::vector<TextPlace> here(count, kNone);
    for (std::size_t remainder = 0; remainder < count; ++remainder) {
      std::vector<TextPlace> ways = digit_ways(remainder, 0);
      if (remainder == 0) ways.push_back(next);
      if (!ways.empty()) here[remainder] = builder_.either(ways);
    }
    behind = std::move(here);
  }
  const TextPlace positive = builder_.either(digit_ways(0, 1)),
                  whole = builder_.either(positive, builder_.literal("0", next));
  return negative ? builder_.either(builder_.literal("-", positive), whole) : whole;
}

TextPlace JsonTexts::boolean(TextPlace next) {
  return builder_.either(builder_.literal("true", next), builder_.literal("false", next));
}

TextPlace JsonTexts::null(TextPlace next) { return builder_.literal("null", next); }

}  // namespace llmq
