// What an answer may be: one of some texts, what a regular expression says, a JSON object, or a value of a
// JSON schema.
//
// A constraint is compiled once for a request and shared by its answers; each of them has a ConstrainedText,
// which says at every token which tokens may follow. A token may follow where the text with its bytes can
// still be finished, by tokens of this vocabulary; so an answer that ends by itself is always whole. Where a
// network proves too ambiguous its budgets end the answer with an Error (kUnsupported).
//
// Cost of a token: a walk over the tree of the vocabulary where the automaton's state is new, a pass over the
// logits where it is known. Beside a decode step of SmolLM2-135M (49,152 tokens; a letter class, or any JSON
// object) neither showed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/json.h"
#include "grammar/text_automaton.h"
#include "grammar/token_pieces.h"

namespace llmq {

struct OneOfTexts {
  std::vector<std::string> texts;
};
struct RegexText {
  std::string pattern;  // of the whole text (regex_syntax.h)
};
struct JsonObjectText {};
struct JsonSchemaText {
  Json schema;  // json_schema.h
};
struct FramedValues {  // a value of one of the schemas between its texts, or several one after another
  struct Frame {
    std::string before, after;
    Json schema;
    std::string where;  // of the schema, for errors
  };
  std::vector<Frame> frames;
  std::optional<std::string> between;  // none: exactly one value
};
using ConstraintKind = std::variant<OneOfTexts, RegexText, JsonObjectText, JsonSchemaText, FramedValues>;

struct ConstraintSpec {
  ConstraintKind kind;
  std::string where;  // the field or option that says it, for errors
};

struct Constraint {
  std::shared_ptr<const TextProgram> program;
  std::shared_ptr<const TokenPieces> pieces;
};

// Error(kBadInput, kUnsupported) naming the place: no such expression or schema, too large, or nothing but
// the empty text.
std::shared_ptr<const Constraint> compile_constraint(const ConstraintSpec& spec,
                                                     std::shared_ptr<const TokenPieces> pieces);

class ConstrainedText {
 public:
  // `starts_text`: nothing that is shown stands before it.
  ConstrainedText(std::shared_ptr<const Constraint> constraint, bool starts_text);

  using State = TextAutomaton::State;
  // After all tokens that were taken; until the next push().
  State state() const { return state_; }
  // After one more token; TextAutomaton::kDead where it may not follow.
  State after(State state, std::int32_t token);
  // Sets the logits of tokens that may not follow to -infinity; of `ends`, which add nothing, unless the text
  // may end there.
  void allow_only(State state, std::span<float> logits, std::span<const std::int32_t> ends);
  // The token was taken. Error(kInternal) where it may not follow.
  void push(std::int32_t token);
  // Whole, and nothing can follow.
  bool complete() const { return automaton_.complete(state_); }
  std::size_t places() const { return automaton_.places(); }  // what its memory grows with

 private:
  static constexpr std::size_t kMasks = 64, kStatesToForget = 1u << 12,
                               kPlacesToForget = 1u << 19;  // some megabytes
  using Mask = std::vector<std::uint64_t>;
  const Mask& mask(State state);

  std::shared_ptr<const Constraint> constraint_;
  TextAutomaton automaton_;
  State state_;
  std::unordered_map<State, Mask> masks_;
  bool starts_text_;
};

}  // namespace llmq
