// Yaml over yaml-cpp's events. yaml-cpp itself bounds nesting (500 levels); every other limit is kept here.
#include "base/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/utf8_sequence.h"

namespace llmq {
namespace {

constexpr std::size_t kMaxBytes = 1u << 20;
constexpr int kMaxNodes = 10'000;
constexpr std::size_t kMaxDepth = 64;

[[noreturn]] void refuse(const std::string& file, int line, int column, const std::string& message,
                         const std::string& hint = {}) {
  fail(ErrorKind::kBadInput, {message, file, fmt::format("{}:{}", line, column), hint});
}

// Bytes that YAML does not allow; yaml-cpp lets some through or ends the text there.
void check_characters(std::string_view text, const std::string& file) {
  int line = 1, column = 1;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const int length = utf8_length(text, i);
    if (length <= 0)
      refuse(file, line, column, fmt::format("holds the byte 0x{:02x}, which is not UTF-8", byte),
             "save it as UTF-8");
    if ((byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') || byte == 0x7f)
      refuse(file, line, column, fmt::format("holds the control character 0x{:02x}", byte));
    ++column;
    if (byte == '\n') ++line, column = 1;
    i += static_cast<std::size_t>(length);
  }
}

// [-+]digits, no leading zero (012 would be octal elsewhere).
bool is_decimal_integer(std::string_view s) {
  if (!s.empty() && (s.front() == '-' || s.front() == '+')) s.remove_prefix(1);
  if (s.empty() || (s.size() > 1 && s.front() == '0')) return false;
  return s.find_first_not_of("0123456789") == std::string_view::npos;
}

// [-+]digits[.digits][e[-+]digits], with a digit before the point or after it.
bool is_decimal_number(std::string_view s) {
  if (!s.empty() && (s.front() == '-' || s.front() == '+')) s.remove_prefix(1);
  const std::size_t exponent = s.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    std::string_view power = s.substr(exponent + 1);
    if (!power.empty() && (power.front() == '-' || power.front() == '+')) power.remove_prefix(1);
    if (power.empty() || power.find_first_not_of("0123456789") != std::string_view::npos) return false;
    s = s.substr(0, exponent);
  }
  const std::size_t point = s.find('.');
  const std::string_view whole = s.substr(0, point),
                         part = point == std::string_view::npos ? std::string_view() : s.substr(point + 1);
  if (whole.empty() && part.empty()) return false;
  if (whole.size() > 1 && whole.front() == '0') return false;
  return whole.find_first_not_of("0123456789") == std::string_view::npos &&
         part.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string_view without_plus(std::string_view s) { return s.starts_with('+') ? s.substr(1) : s; }

const char* kind_text(Yaml::Kind kind) {
  switch (kind) {
    case Yaml::Kind::kNull:
      return "nothing";
    case Yaml::Kind::kScalar:
      return "a scalar";
    case Yaml::Kind::kSequence:
      return "a list";
    case Yaml::Kind::kMapping:
      return "a mapping";
  }
  return "nothing";
}

}  // namespace

class YamlBuilder final : public YAML::EventHandler {
 public:
  YamlBuilder(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) refuse_at(mark, "a second document begins here", "keep one document in the file");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, "?", anchor, Yaml::Kind::kNull);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse_at(mark, "aliases (*name) are not read here", "write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    add(mark, tag, anchor, Yaml::Kind::kScalar, value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Yaml::Kind::kSequence);
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Yaml::Kind::kMapping);
  }
  void OnMapEnd() override { open_.pop_back(); }

  Yaml take() { return std::move(root_); }
  const std::string& file() const { return file_; }

 private:
  struct Level {
    Yaml* node;
    bool value_next = false;  // in a mapping: the key has been read
  };

  [[noreturn]] void refuse_at(const YAML::Mark& mark, const std::string& message,
                              const std::string& hint = {}) const {
    refuse(file_, mark.line + 1, mark.column + 1, message, hint);
  }

  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Yaml::Kind kind) {
    if (anchor != 0)
      refuse_at(mark, "anchors (&name) are not read here", "write the value out where it is needed");
    // Untagged nodes come as "?", quoted scalars as "!"; a tag "!" that was written stands in the text
    // itself.
    const bool written = tag == "!" && mark.pos >= 0 && static_cast<std::size_t>(mark.pos) < text_.size() &&
                         text_[static_cast<std::size_t>(mark.pos)] == '!';
    const bool untagged = tag.empty() || tag == "?" || (kind == Yaml::Kind::kScalar && tag == "!");
    if (!untagged || written) refuse_at(mark, "tags (!name) are not read here", "leave the tag out");
    if (++nodes_ > kMaxNodes) refuse_at(mark, fmt::format("has more than {} values", kMaxNodes));
  }

  // Where the next node goes; a mapping's key goes nowhere. A parent is never appended to while its child is
  // open.
  Yaml* add(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Yaml::Kind kind,
            const std::string& value = {}) {
    check(mark, tag, anchor, kind);
    Yaml node;
    node.kind_ = kind;
    node.file_ = file_;
    node.scalar_ = value;
    node.plain_ = kind == Yaml::Kind::kScalar && tag == "?";
    node.line_ = mark.line + 1;
    node.column_ = mark.column + 1;
    if (open_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    Level& level = open_.back();
    if (level.node->kind_ == Yaml::Kind::kSequence) return &level.node->items_.emplace_back(std::move(node));
    level.value_next = !level.value_next;
    if (!level.value_next) {
      level.node->members_.back().value = std::move(node);
      return &level.node->members_.back().value;
    }
    add_key(mark, *level.node, node);
    return nullptr;
  }

  void add_key(const YAML::Mark& mark, Yaml& mapping, const Yaml& key) {
    if (key.kind_ != Yaml::Kind::kScalar)
      refuse_at(mark, fmt::format("a key is a word, found {}", kind_text(key.kind_)));
    if (key.plain_ && key.scalar_ == "<<")
      refuse_at(mark, "merge keys (<<) are not read here", "write the keys out");
    for (const Yaml::Member& member : mapping.members_)
      if (member.key == key.scalar_)
        refuse_at(mark, fmt::format("key '{}' stands already in line {}", key.scalar_, member.line),
                  "keep one of the two");
    mapping.members_.push_back({key.scalar_, key.line_, key.column_, Yaml()});
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Yaml::Kind kind) {
    if (open_.size() >= kMaxDepth) refuse_at(mark, fmt::format("is nested deeper than {} levels", kMaxDepth));
    Yaml* node = add(mark, tag, anchor, kind);
    open_.push_back({node});
  }

  std::string_view text_;
  std::string file_;
  int documents_ = 0, nodes_ = 0;
  Yaml root_;
  std::vector<Level> open_;
};

Yaml Yaml::parse(std::string_view text, const std::string& file) {
  if (text.size() > kMaxBytes)
    fail(ErrorKind::kBadInput,
         {fmt::format("has {} bytes, more than the {} a recipe may have", text.size(), kMaxBytes),
          file,
          {},
          {}});
  check_characters(text, file);
  YamlBuilder builder(text, file);
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    const bool placed = !error.mark.is_null();
    refuse(file, placed ? error.mark.line + 1 : 1, placed ? error.mark.column + 1 : 1,
           "is not valid YAML: " + error.msg);
  }
  Yaml root = builder.take();
  root.file_ = file;
  if (root.line_ == 0) root.line_ = root.column_ = 1;  // an empty text
  return root;
}

const std::string& Yaml::as_string() const {
  if (kind_ != Kind::kScalar) fail_here(fmt::format("expected a word, found {}", kind_text(kind_)));
  return scalar_;
}

std::int64_t Yaml::as_integer() const {
  std::int64_t value = 0;
  if (kind_ != Kind::kScalar) fail_here(fmt::format("expected a whole number, found {}", kind_text(kind_)));
  if (!plain_ || !is_decimal_integer(scalar_))
    fail_here(fmt::format("expected a whole number, found '{}'", scalar_),
              "write a decimal number without quotes");
  const std::string_view digits = without_plus(scalar_);
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
    fail_here(fmt::format("{} does not fit in 64 bits", scalar_));
  return value;
}

double Yaml::as_double() const {
  double value = 0;
  if (kind_ != Kind::kScalar) fail_here(fmt::format("expected a number, found {}", kind_text(kind_)));
  if (!plain_ || !is_decimal_number(scalar_))
    fail_here(fmt::format("expected a number, found '{}'", scalar_), "write a decimal number without quotes");
  const std::string_view digits = without_plus(scalar_);
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc() ||
      !std::isfinite(value))
    fail_here(fmt::format("{} is out of a double's range", scalar_));
  return value;
}

bool Yaml::as_bool() const {
  if (kind_ == Kind::kScalar && plain_ && scalar_ == "true") return true;
  if (kind_ == Kind::kScalar && plain_ && scalar_ == "false") return false;
  fail_here(fmt::format("expected true or false, found {}",
                        kind_ == Kind::kScalar ? "'" + scalar_ + "'" : kind_text(kind_)));
}

const std::vector<Yaml>& Yaml::items() const {
  if (kind_ != Kind::kSequence) fail_here(fmt::format("expected a list, found {}", kind_text(kind_)));
  return items_;
}

const std::vector<Yaml::Member>& Yaml::members() const {
  if (kind_ != Kind::kMapping) fail_here(fmt::format("expected a mapping, found {}", kind_text(kind_)));
  return members_;
}

const Yaml* Yaml::find(std::string_view key) const {
  if (kind_ != Kind::kMapping) return nullptr;
  for (const Member& member : members_)
    if (member.key == key) return &member.value;
  return nullptr;
}

void Yaml::fail_here(const std::string& message, const std::string& hint) const {
  refuse(file_, line_, column_, message, hint);
}

}  // namespace llmq
