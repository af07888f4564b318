// Json over nlohmann's SAX reader: the reader checks syntax, numbers, escapes, surrogates and UTF-8; the
// builder here checks depth and duplicate keys. Values are moved into place and never copied.
#include "base/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "base/utf8_sequence.h"

namespace llmq {
namespace {

// Reads characters and leaves its place where the builder can see it: SAX calls carry no offset of their own.
class TracedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TracedIterator(const char* at, const char** seen) : at_(at), seen_(seen) {}
  reference operator*() const { return *at_; }
  TracedIterator& operator++() {
    *seen_ = ++at_;
    return *this;
  }
  bool operator==(const TracedIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TracedIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** seen_;
};

// Null, or a key that occurs twice. O(n log n) on any input: keys come from outside, and a hash table could
// be flooded.
const std::string* duplicate_key(const Json::Object& object) {
  constexpr std::size_t kFew = 8;
  if (object.size() <= kFew) {
    for (std::size_t i = 1; i < object.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (object[i].first == object[j].first) return &object[i].first;
    return nullptr;
  }
  std::vector<const std::string*> keys(object.size());
  std::transform(object.begin(), object.end(), keys.begin(),
                 [](const Json::Member& member) { return &member.first; });
  std::sort(keys.begin(), keys.end(), [](const std::string* a, const std::string* b) { return *a < *b; });
  const auto twin = std::adjacent_find(keys.begin(), keys.end(),
                                       [](const std::string* a, const std::string* b) { return *a == *b; });
  return twin == keys.end() ? nullptr : *twin;
}

class Builder {
 public:
  Builder(const std::string& file, const char* begin, const char* const* seen, int max_depth)
      : file_(file), begin_(begin), seen_(seen), max_depth_(max_depth) {}

  bool null() { return place(Json()); }
  bool boolean(bool b) { return place(Json(b)); }
  bool number_integer(std::int64_t i) { return place(Json(i)); }
  bool number_unsigned(std::uint64_t u) { return place(Json(u)); }
  bool number_float(double d, const std::string&) { return place(Json(d)); }
  bool string(std::string& s) { return place(Json(std::move(s))); }
  bool binary(std::vector<std::uint8_t>&) { return false; }  // JSON text has none
  bool start_object(std::size_t) { return open(Json(Json::Object())); }
  bool start_array(std::size_t) { return open(Json(Json::Array())); }
  bool end_array() { return close(); }
  bool end_object() {
    if (const std::string* key = duplicate_key(open_.back()->members()))
      refuse(fmt::format("key '{}' occurs twice in the object that ends here", *key));
    return close();
  }
  bool key(std::string& k) {
    open_.back()->members().emplace_back(std::move(k), Json());
    return true;
  }
  template <typename Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception& error) {
    std::string_view reason =
        error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const std::size_t colon = reason.find("parse error at "); colon != std::string_view::npos)
      if (const std::size_t text = reason.find(": ", colon); text != std::string_view::npos)
        reason.remove_prefix(text + 2);
    if (const std::size_t bracket = reason.find("] ");
        reason.starts_with("[json") && bracket != std::string_view::npos)
      reason.remove_prefix(bracket + 2);
    fail(ErrorKind::kBadInput,
         {fmt::format("is not valid JSON: {}", reason), file_, fmt::format("byte {}", position), {}});
  }

  Json take() { return std::move(root_); }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    fail(ErrorKind::kBadInput, {message, file_, fmt::format("byte {}", *seen_ - begin_), {}});
  }

  // Where the next value goes. A parent is never appended to while its child is open, so addresses hold.
  Json* slot(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) return &parent.items().emplace_back(std::move(value));
    parent.members().back().second = std::move(value);
    return &parent.members().back().second;
  }
  bool place(Json value) {
    slot(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= max_depth_)
      refuse(fmt::format("is nested deeper than {} levels", max_depth_));
    open_.push_back(slot(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& file_;
  const char* begin_;
  const char* const* seen_;
  int max_depth_;
  Json root_;
  std::vector<Json*> open_;
};

void write_string(std::string& out, std::string_view s) {
  out += '"';
  for (std::size_t i = 0; i < s.size();) {
    const char c = s[i];
    const int length = utf8_length(s, i);
    if (length <= 0) {
      out += "\xef\xbf\xbd";  // U+FFFD for each stray byte: what is written stays JSON
      ++i;
      continue;
    }
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out.append(s, i, static_cast<std::size_t>(length));
    i += static_cast<std::size_t>(length);
  }
  out += '"';
}

void write_number(std::string& out, double d) {
  if (!std::isfinite(d)) {
    out += "null";
    return;
  }
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), d);
  const std::string_view digits(text.data(), static_cast<std::size_t>(result.ptr - text.data()));
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";  // reads back as a double
}

class Writer {
 public:
  Writer(std::string& out, int indent) : out_(out), indent_(indent) {}

  void write(const Json& value, int depth) {
    if (value.is_array())
      sequence('[', ']', value.items(), depth, [&](const Json& item) { write(item, depth + 1); });
    else if (value.is_object())
      sequence('{', '}', value.members(), depth, [&](const Json::Member& member) {
        write_string(out_, member.first);
        out_ += indent_ < 0 ? ":" : ": ";
        write(member.second, depth + 1);
      });
    else
      scalar(value);
  }

 private:
  void scalar(const Json& value) {
    if (value.is_null())
      out_ += "null";
    else if (value.is_bool())
      out_ += value.as_bool() ? "true" : "false";
    else if (value.is_integer())
      out_ += std::to_string(value.as_integer());
    else if (value.is_number())
      write_number(out_, value.as_double());
    else
      write_string(out_, value.as_string());
  }

  void new_line(int depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(depth), ' ');
  }

  template <typename Elements, typename Write>
  void sequence(char begin, char end, const Elements& elements, int depth, const Write& write_element) {
    out_ += begin;
    bool first = true;
    for (const auto& element : elements) {
      if (!first) out_ += ',';
      first = false;
      new_line(depth + 1);
      write_element(element);
    }
    if (!first) new_line(depth);
    out_ += end;
  }

  std::string& out_;
  int indent_;
};

[[noreturn]] void wrong_kind(const char* expected, const Json& found) {
  fail(ErrorKind::kBadInput, "expected {}, found {}", expected, found.kind());
}

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<Json>, "or vectors of Json would copy when they grow");

Json::~Json() = default;
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
bool Json::operator==(const Json& other) const { return value_ == other.value_; }

Json::Json(const char* s) : value_(std::string(s)) {}
Json::Json(std::string_view s) : value_(std::string(s)) {}
Json::Json(std::string s) : value_(std::move(s)) {}
Json::Json(Array a) : value_(std::move(a)) {}
Json::Json(Object o) : value_(std::move(o)) {}

Json Json::object(std::initializer_list<JsonField> members) {
  Object object;
  object.reserve(members.size());
  for (const JsonField& member : members) object.emplace_back(member.name, member.value);
  return Json(std::move(object));
}

Json Json::array(std::initializer_list<Json> items) { return Json(Array(items)); }

Json Json::parse(std::string_view text, const std::string& file, JsonLimits limits) {
  const auto refuse = [&](const std::string& message, std::size_t at, const std::string& hint = {}) {
    fail(ErrorKind::kBadInput, {message, file, fmt::format("byte {}", at), hint});
  };
  if (text.size() > limits.max_bytes)
    fail(ErrorKind::kBadInput,
         {fmt::format("has {} bytes of JSON, more than the {} allowed", text.size(), limits.max_bytes),
          file,
          {},
          {}});
  if (text.starts_with("\xef\xbb\xbf"))
    refuse("begins with a byte order mark, which JSON does not allow", 1, "save it as UTF-8 without BOM");
  // The reader takes a NUL for the end of the text and would not look at what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    refuse("is not valid JSON: a zero byte", nul + 1);

  const char* seen = text.data();
  Builder builder(file, text.data(), &seen, limits.max_depth);
  const bool complete = nlohmann::json::sax_parse(TracedIterator(text.data(), &seen),
                                                  TracedIterator(text.data() + text.size(), &seen), &builder);
  if (!complete) refuse("is not valid JSON", static_cast<std::size_t>(seen - text.data()));
  return builder.take();
}

std::string Json::dump(int indent) const {
  std::string out;
  Writer(out, indent).write(*this, 0);
  return out;
}

const char* Json::kind() const {
  static constexpr std::array kNames = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "an array",  "an object"};
  return kNames[value_.index()];
}

bool Json::as_bool() const {
  if (!is_bool()) wrong_kind("a boolean", *this);
  return *std::get_if<bool>(&value_);
}

std::int64_t Json::as_integer() const {
  if (!is_integer()) wrong_kind("an integer", *this);
  return *std::get_if<std::int64_t>(&value_);
}

double Json::as_double() const {
  if (is_integer()) return static_cast<double>(*std::get_if<std::int64_t>(&value_));
  if (!is_number()) wrong_kind("a number", *this);
  return *std::get_if<double>(&value_);
}

const std::string& Json::as_string() const {
  if (!is_string()) wrong_kind("a string", *this);
  return *std::get_if<std::string>(&value_);
}

const Json::Array& Json::items() const {
  if (!is_array()) wrong_kind("an array", *this);
  return *std::get_if<Array>(&value_);
}

Json::Array& Json::items() {
  if (!is_array()) wrong_kind("an array", *this);
  return *std::get_if<Array>(&value_);
}

const Json::Object& Json::members() const {
  if (!is_object()) wrong_kind("an object", *this);
  return *std::get_if<Object>(&value_);
}

Json::Object& Json::members() {
  if (!is_object()) wrong_kind("an object", *this);
  return *std::get_if<Object>(&value_);
}

const Json* Json::find(std::string_view key) const {
  const Object* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  for (const Member& member : *object)
    if (member.first == key) return &member.second;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) wrong_kind("an object", *this);
  const Json* value = find(key);
  if (value == nullptr) fail(ErrorKind::kBadInput, "key '{}' is missing", key);
  return *value;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  for (Member& member : members())
    if (member.first == key) return member.second;
  return members().emplace_back(std::string(key), Json()).second;
}

void Json::push_back(Json item) {
  if (is_null()) value_ = Array();
  items().push_back(std::move(item));
}

bool Json::erase(std::string_view key) {
  if (!is_object()) return false;
  return std::erase_if(members(), [&](const Member& member) { return member.first == key; }) != 0;
}

Json text_list(std::span<const std::string> texts) { return Json(Json::Array(texts.begin(), texts.end())); }

}  // namespace llmq
