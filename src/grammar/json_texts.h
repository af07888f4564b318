// JSON texts: values of each type as rules of a network, each written once and called from everywhere.
//
// Between the parts of objects and lists stands nothing, one blank, or a new line with up to 24 blanks, so
// that no text consists of white space without end; numbers have at most 15 digits before and behind the
// point, and exponents of two, so that every reader takes them; escapes make no halves of surrogate pairs.
// Names of an object that anything may be in are not kept apart: one may come twice.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "grammar/characters.h"

namespace llmq {

// A bound of numbers, in decimal digits: at most kDigits of them, no zeros in front of other digits nor at
// the end of the fraction.
struct DecimalBound {
  static constexpr std::size_t kDigits = 15;
  bool negative = false;  // zero is not
  std::string whole = "0", fraction = {};
  bool open = false;  // the bound itself is out
};

class JsonTexts {
 public:
  explicit JsonTexts(TextProgramBuilder& builder) : builder_(builder) {}

  static constexpr std::int64_t kGreatest = 999'999'999'999'999;  // of kDigits
  static constexpr TextPlace kNone = -1;

  TextPlace any(TextPlace next);     // of any type
  TextPlace object(TextPlace next);  // with any members
  TextPlace list(TextPlace next);    // of anything
  TextPlace string(TextPlace next);
  TextPlace string(std::int64_t least, std::optional<std::int64_t> most, TextPlace next);  // characters
  TextPlace number(TextPlace next);
  TextPlace integer(TextPlace next);
  // Between these, low <= high, without an exponent and of at most 15 digits in all, which every reader keeps
  // apart as FP64; those that are whole (`fractions` false), or all. kNone where there is none.
  TextPlace between(const DecimalBound& low, const DecimalBound& high, bool fractions, TextPlace next);
  // Multiples of 2 <= factor <= kGreatestFactor, those below zero where asked for. Cost: 15 x factor x 20
  // nodes at most, once for a next.
  static constexpr std::int64_t kGreatestFactor = 100;
  TextPlace multiple(std::int64_t factor, bool negative, TextPlace next);
  TextPlace boolean(TextPlace next);
  TextPlace null(TextPlace next);
  TextPlace space(TextPlace next);  // between parts
  TextPlace colon(TextPlace next);  // between a name and its value
  TextPlace comma(TextPlace next);
  // `open` ws close | open ws item (, item)* ws close; the item is a rule.
  TextPlace sequence(char opening, char closing, TextPlace item, TextPlace next);

 private:
  // A rule is made when it is first asked for.
  template <typename Make>
  TextPlace rule(TextPlace& place, const Make& make) {
    if (place < 0) place = make();
    return place;
  }
  TextPlace character_rule();
  TextPlace digits(int least, int most, TextPlace next);
  TextPlace natural(TextPlace next);
  TextPlace magnitudes(const DecimalBound& low, const DecimalBound& high, bool fractions, TextPlace next);
  TextPlace magnitudes(const DecimalBound& low, const DecimalBound& high, std::size_t whole,
                       std::size_t fraction, TextPlace next);

  TextProgramBuilder& builder_;
  TextPlace any_ = -1, object_ = -1, list_ = -1, string_ = -1, character_ = -1, number_ = -1, integer_ = -1,
            space_ = -1, member_ = -1;
};

}  // namespace llmq
