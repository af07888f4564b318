// Regular expressions as people write them for answers: ECMAScript's and Python's common part, without what
// needs memory.
//
// Literals, '.', classes with ranges and \d \w \s (ASCII), groups, '|', * + ? {n} {n,} {n,m} (lazy forms too:
// the set of texts is the same), escapes \n \t \r \f \v \xHH \uHHHH and of punctuation. ^ and $ at the ends
// of the expression or of one of its outermost alternatives. Anything else (look-around, back references, \b,
// \p{...}, flags) is refused by name: Error(kUnsupported); what is no expression is kBadInput. Both name the
// byte of the expression.
//
// Cost: linear in the expression; its network has the size of the expression times its repetitions.
#pragma once
#include <string>
#include <string_view>

#include "grammar/characters.h"

namespace llmq {

enum class RegexReach : std::uint8_t {
  kWhole,   // the text is what the expression says
  kInside,  // the text contains it, unless ^ and $ say otherwise: `pattern` of a JSON schema
};

// Texts of an expression, followed by `next`. `where`: what it is, for errors.
TextPlace regex_texts(TextProgramBuilder& builder, std::string_view pattern, RegexReach reach,
                      Spelling spelling, const std::string& where, TextPlace next);

}  // namespace llmq
