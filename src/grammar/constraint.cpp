#include "grammar/constraint.h"

#include <limits>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/json_schema.h"
#include "grammar/json_texts.h"
#include "grammar/regex_syntax.h"

namespace llmq {
namespace {

constexpr std::size_t kMostTexts = 1024;

TextPlace texts_of(const OneOfTexts& choice, TextProgramBuilder& builder, const std::string& where) {
  if (choice.texts.empty()) fail(ErrorKind::kBadInput, {"there is nothing to choose from", {}, where, {}});
  if (choice.texts.size() > kMostTexts)
    fail(ErrorKind::kUnsupported,
         {fmt::format("{} texts to choose from are more than {}", choice.texts.size(), kMostTexts),
          {},
          where,
          {}});
  std::vector<TextPlace> ways;
  for (const std::string& text : choice.texts) {
    if (text.empty()) fail(ErrorKind::kBadInput, {"a text to choose is empty", {}, where, {}});
    if (!is_utf8(text)) fail(ErrorKind::kBadInput, {"a text to choose is not UTF-8", {}, where, {}});
    ways.push_back(builder.literal(text, kTextEnd));
  }
  return builder.either(ways);
}
TextPlace texts_of(const RegexText& regex, TextProgramBuilder& builder, const std::string& where) {
  return regex_texts(builder, regex.pattern, RegexReach::kWhole, Spelling::kPlain, where, kTextEnd);
}
TextPlace texts_of(const JsonObjectText&, TextProgramBuilder& builder, const std::string&) {
  return JsonTexts(builder).object(kTextEnd);
}
TextPlace texts_of(const JsonSchemaText& json, TextProgramBuilder& builder, const std::string& where) {
  return schema_texts(builder, json.schema, where);
}
TextPlace texts_of(const FramedValues& values, TextProgramBuilder& builder, const std::string&) {
  const TextPlace all = builder.open(),
                  behind = values.between ? builder.either(kTextEnd, builder.literal(*values.between, all))
                                          : kTextEnd;
  std::vector<TextPlace> ways;
  for (const FramedValues::Frame& frame : values.frames)
    ways.push_back(
        builder.literal(frame.before, builder.call(schema_texts(builder, frame.schema, frame.where),
                                                   builder.literal(frame.after, behind))));
  const TextPlace any = builder.either(ways);
  builder.close(all, any, any);
  return all;
}

}  // namespace

std::shared_ptr<const Constraint> compile_constraint(const ConstraintSpec& spec,
                                                     std::shared_ptr<const TokenPieces> pieces) {
  TextProgramBuilder builder(spec.where);
  const TextPlace start =
      std::visit([&](const auto& kind) { return texts_of(kind, builder, spec.where); }, spec.kind);
  auto program = std::make_shared<const TextProgram>(std::move(builder).finish(start, pieces->writable()));
  TextAutomaton automaton(program);
  if (automaton.complete(automaton.start()))
    fail(ErrorKind::kBadInput, {"only the empty text satisfies it", {}, spec.where, {}});
  return std::make_shared<const Constraint>(Constraint{std::move(program), std::move(pieces)});
}

ConstrainedText::ConstrainedText(std::shared_ptr<const Constraint> constraint, bool starts_text)
    : constraint_(std::move(constraint)),
      automaton_(constraint_->program),
      state_(automaton_.start()),
      starts_text_(starts_text) {}

const ConstrainedText::Mask& ConstrainedText::mask(State state) {
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second;
  if (masks_.size() == kMasks) masks_.clear();
  automaton_.renew();
  Mask mask((constraint_->pieces->tokens() + 63) / 64);
  constraint_->pieces->mark_allowed(automaton_, state, mask);
  return masks_.emplace(state, std::move(mask)).first->second;
}

void ConstrainedText::allow_only(State state, std::span<float> logits, std::span<const std::int32_t> ends) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const TokenPieces& pieces = *constraint_->pieces;
  const Mask& allowed = mask(state);
  const bool may_end = automaton_.accepts(state);
  std::vector<std::pair<std::int32_t, float>> kept;  // ends, which may be pieces of text that is not allowed
  for (const std::int32_t token : ends)
    if (token >= 0 && static_cast<std::size_t>(token) < logits.size())
      kept.emplace_back(token, may_end ? logits[static_cast<std::size_t>(token)] : kNever);
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const bool may = token / 64 < allowed.size() && (allowed[token / 64] >> token % 64 & 1) != 0;
    if (!may ||
        (starts_text_ && state == state_ && pieces.differs_at_start(static_cast<std::int32_t>(token))))
      logits[token] = kNever;
  }
  for (const auto& end : kept) logits[static_cast<std::size_t>(end.first)] = end.second;
}

ConstrainedText::State ConstrainedText::after(State state, std::int32_t token) {
  const std::string_view bytes = constraint_->pieces->bytes(token);
  automaton_.renew();
  if (bytes.empty()) return TextAutomaton::kDead;
  for (std::size_t i = 0; i < bytes.size() && state != TextAutomaton::kDead; ++i)
    state = automaton_.step(state, static_cast<std::uint8_t>(bytes[i]));
  return state;
}

void ConstrainedText::push(std::int32_t token) {
  const State next = after(state_, token);
  if (next == TextAutomaton::kDead)
    fail(ErrorKind::kInternal, "token {} was taken, and the constraint does not allow it", token);
  state_ = next;
  starts_text_ = false;
  if (automaton_.states() <= kStatesToForget && automaton_.places() <= kPlacesToForget) return;
  masks_.clear();
  state_ = automaton_.restart(state_);
}

}  // namespace llmq
