// Plain names match by equality or as the whole tail after a dot; "re:" names match a prefix through RE2.
#include "base/pattern.h"

#include <re2/re2.h>

#include "base/error.h"

namespace llmq {

struct NamePattern::Compiled {
  explicit Compiled(std::string_view expression)
      : re(re2::StringPiece(expression.data(), expression.size()), options()) {}
  static RE2::Options options() {
    RE2::Options quiet;
    quiet.set_log_errors(false);
    return quiet;
  }
  RE2 re;
};

NamePattern::NamePattern(std::string text) : text_(std::move(text)) {
  constexpr std::string_view kPrefix = "re:";
  if (text_.empty()) fail(ErrorKind::kUsage, "an empty name pattern matches nothing");
  if (!text_.starts_with(kPrefix)) return;
  auto compiled = std::make_shared<const Compiled>(std::string_view(text_).substr(kPrefix.size()));
  if (!compiled->re.ok())
    fail(ErrorKind::kUsage, {fmt::format("'{}' is not a valid pattern: {}", text_, compiled->re.error()),
                             {},
                             {},
                             "patterns are RE2 syntax, without look-around or back-references"});
  compiled_ = std::move(compiled);
}

int NamePattern::instructions() const { return compiled_ ? compiled_->re.ProgramSize() : 0; }

NamePattern PatternBudget::make(std::string text) {
  NamePattern pattern(std::move(text));
  instructions_ += pattern.instructions();
  if (++patterns_ > kMostPatterns)
    fail(ErrorKind::kUsage, "these are more than {} patterns, which no model has linears for", kMostPatterns);
  if (instructions_ > kMostInstructions)
    fail(ErrorKind::kUsage, "with '{}' the patterns are too large together", pattern.text().substr(0, 64));
  return pattern;
}

bool NamePattern::matches(std::string_view name) const {
  if (compiled_)
    return compiled_->re.Match(re2::StringPiece(name.data(), name.size()), 0, name.size(), RE2::ANCHOR_START,
                               nullptr, 0);
  if (!name.ends_with(text_)) return false;
  return name.size() == text_.size() || name[name.size() - text_.size() - 1] == '.';
}

}  // namespace llmq
