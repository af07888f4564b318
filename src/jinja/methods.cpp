// Methods of str, list and dict; global functions. Methods that change their object are refused, as jinja2's
// immutable sandbox does.
#include <algorithm>

#include "base/utf8.h"
#include "jinja/functions.h"
#include "jinja/text.h"

namespace llmq::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // jinja2's sandbox
constexpr std::size_t kMaxMessage = 2000;

template <std::size_t N>
bool among(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr std::string_view kTextMethods[] = {
    "strip",    "lstrip",       "rstrip",       "split",   "rsplit",  "splitlines", "startswith",
    "endswith", "replace",      "upper",        "lower",   "title",   "capitalize", "find",
    "rfind",    "count",        "join",         "isdigit", "isalpha", "isspace",    "isupper",
    "islower",  "removeprefix", "removesuffix", "format",  "index",   "encode",     "zfill"};
constexpr std::string_view kDictMethods[] = {"items",   "keys",   "values",     "get",   "copy",    "pop",
                                             "popitem", "update", "setdefault", "clear", "fromkeys"};
constexpr std::string_view kListMethods[] = {"index",  "count",   "append", "extend", "insert", "pop",
                                             "remove", "reverse", "sort",   "clear",  "copy"};

std::optional<std::string_view> optional_text(Meter& meter, const Arguments& arguments, std::size_t position,
                                              std::string_view name) {
  const Value* found = arguments.find(position, name);
  if (!found || found->is_none()) return std::nullopt;
  return text_of(meter, *found, name);
}

Value text_list(Meter& meter, const std::vector<std::string_view>& parts) {
  Items items;
  for (const std::string_view part : parts) items.push_back(make_text(meter, std::string(part)));
  return make_list(meter, std::move(items));
}

bool any_affix(Meter& meter, const Value& affix, const std::string& name, const std::string& self) {
  if (affix.list() && affix.list()->tuple) {
    const Items& all = affix.list()->items;
    return std::any_of(all.begin(), all.end(),
                       [&](const Value& one) { return any_affix(meter, one, name, self); });
  }
  const std::string& text = text_of(meter, affix, name);
  return name == "startswith" ? self.starts_with(text) : self.ends_with(text);
}

std::string checked_case(Meter& meter, const std::string& text, Case wanted) {
  meter.produce(text.size() * 2);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = read_utf8(text, at);
    if (special_case(c.value))
      meter.unsupported("the chat template changes the case of a character whose mapping is not one to one");
    at += c.bytes;
  }
  return in_case(text, wanted);
}

template <typename Is>
bool every_character(const std::string& text, const Is& is) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = read_utf8(text, at);
    if (!is(c.value)) return false;
    at += c.bytes;
  }
  return !text.empty();
}

// The number of the character at a byte.
Value position_of(const std::string& text, std::size_t byte) {
  return {byte == std::string::npos
              ? std::int64_t{-1}
              : static_cast<std::int64_t>(characters(std::string_view(text).substr(0, byte)))};
}

std::int64_t occurrences(const std::string& text, const std::string& part) {
  if (part.empty()) return static_cast<std::int64_t>(characters(text)) + 1;
  std::int64_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

Value joined(Meter& meter, const std::string& self, const Value& items) {
  std::string out;
  bool first = true;
  for (const Value& one : iterated(meter, items)) {
    const std::string& part = text_of(meter, one, "join");
    meter.produce(part.size() + self.size());
    if (!first) out += self;
    first = false;
    out += part;
  }
  return make_text(meter, std::move(out));
}

// "{} {0} {name}".format(...), without format specifications.
Value formatted(Meter& meter, const std::string& text, const Arguments& arguments) {
  std::string out;
  std::size_t automatic = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') meter.refuse("Single '}' encountered in format string");
    if (c != '{') {
      out += c;
      continue;
    }
    const std::size_t end = text.find('}', i);
    if (end == std::string::npos) meter.refuse("expected '}' before end of string");
    const std::string field = text.substr(i + 1, end - i - 1);
    if (field.find_first_of("!:.[{") != std::string::npos)
      meter.unsupported("the chat template formats with a specification");
    const bool number =
        field.empty() || std::all_of(field.begin(), field.end(), [](char d) { return d >= '0' && d <= '9'; });
    if (field.size() > 6 && number) meter.refuse("Replacement index out of range");
    const std::size_t position = !number         ? arguments.positional.size()
                                 : field.empty() ? automatic++
                                                 : std::stoul(field);
    const Value* found =
        number && position >= arguments.positional.size() ? nullptr : arguments.find(position, field);
    if (!found) meter.refuse("format has no argument '" + field.substr(0, 40) + "'");
    out += str(meter, *found);
    i = end;
  }
  return make_text(meter, std::move(out));
}

Value split_method(Meter& meter, const std::string& self, const std::string& name,
                   const Arguments& arguments) {
  const auto separator = optional_text(meter, arguments, 0, "sep");
  if (separator && separator->empty()) meter.refuse("empty separator");
  return text_list(meter,
                   split(self, separator, arguments.integer(meter, 1, "maxsplit", -1), name == "rsplit"));
}

Value found_in_text(Meter& meter, const std::string& self, const std::string& name,
                    const Arguments& arguments) {
  if (arguments.positional.size() != 1) meter.unsupported("the chat template searches between two positions");
  const std::string& part = text_of(meter, arguments.positional[0], name);
  if (name == "count") return {occurrences(self, part)};
  const std::size_t at = name == "rfind" ? self.rfind(part) : self.find(part);
  if (name == "index" && at == std::string::npos) meter.refuse("substring not found");
  return position_of(self, at);
}

Value text_method(Meter& meter, const std::string& self, const std::string& name,
                  const Arguments& arguments) {
  meter.spend_text(self.size());
  if (among(name, {"strip", "lstrip", "rstrip"})) {
    const auto set = optional_text(meter, arguments, 0, "chars");
    meter.spend(set ? static_cast<std::int64_t>(set->size()) : 0);
    if (set && set->size() > 256)
      meter.unsupported("the chat template strips more than 256 bytes of characters");
    return make_text(meter, std::string(name == "strip"    ? stripped(self, set)
                                        : name == "lstrip" ? stripped_left(self, set)
                                                           : stripped_right(self, set)));
  }
  if (name == "split" || name == "rsplit") {
    meter.produce(self.size(), sizeof(std::string_view));
    return split_method(meter, self, name, arguments);
  }
  if (name == "splitlines") {
    if (arguments.flag(0, "keepends", false))
      meter.unsupported("the chat template splits lines and keeps their ends");
    meter.produce(self.size(), sizeof(std::string_view));
    return text_list(meter, lines_of(self));
  }
  if (name == "startswith" || name == "endswith") {
    if (arguments.positional.size() != 1)
      meter.unsupported("the chat template looks for a prefix between two positions");
    return {any_affix(meter, arguments.positional[0], name, self)};
  }
  if (name == "replace") return apply_filter(meter, "replace", make_text(meter, self), arguments);
  if (name == "upper") return make_text(meter, checked_case(meter, self, Case::kUpper));
  if (name == "lower") return make_text(meter, checked_case(meter, self, Case::kLower));
  if (name == "title") return make_text(meter, checked_case(meter, self, Case::kTitle));
  if (name == "capitalize") return make_text(meter, checked_case(meter, self, Case::kCapitalize));
  if (among(name, {"find", "rfind", "index", "count"})) return found_in_text(meter, self, name, arguments);
  if (name == "join") return joined(meter, self, arguments.get(meter, 0, "iterable", "join"));
  if (name == "format") return formatted(meter, self, arguments);
  if (name == "isdigit") return {every_character(self, is_digit)};
  if (name == "isalpha") return {every_character(self, is_letter)};
  if (name == "isspace") return {every_character(self, is_space)};
  if (name == "isupper" || name == "islower")
    return {apply_test(meter, name.substr(2), make_text(meter, self), {})};
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string& affix = text_of(meter, arguments.get(meter, 0, "affix", name), name);
    const bool front = name == "removeprefix";
    if (!(front ? self.starts_with(affix) : self.ends_with(affix))) return make_text(meter, self);
    return make_text(meter, front ? self.substr(affix.size()) : self.substr(0, self.size() - affix.size()));
  }
  meter.unsupported("the chat template calls str." + name);
}

Value dict_method(Meter& meter, const Value& self, const std::string& name, const Arguments& arguments) {
  const Members& members = self.dict()->members;
  if (name == "get") {
    arguments.at_most(meter, 2, {}, "get");
    const Value* found = find_key(meter, *self.dict(), arguments.get(meter, 0, "key", "get"));
    if (found) return *found;
    return arguments.positional.size() > 1 ? arguments.positional[1] : Value{None{}};
  }
  if (name == "copy") return self;
  if (!among(name, {"items", "keys", "values"}))
    meter.refuse("the chat template may not change a dict with " + name);
  arguments.at_most(meter, 0, {}, name);
  Items items;
  for (const auto& member : members)
    items.push_back(name == "items"  ? make_list(meter, {member.first, member.second}, true)
                    : name == "keys" ? member.first
                                     : member.second);
  return make_list(meter, std::move(items));
}

Value list_method(Meter& meter, const Value& self, const std::string& name, const Arguments& arguments) {
  if (name == "copy") return self;
  if (name != "index" && name != "count")
    meter.refuse("the chat template may not change a list with " + name);
  arguments.at_most(meter, 1, {}, name);
  const Value& wanted = arguments.get(meter, 0, "value", name);
  std::int64_t count = 0;
  const Items& items = self.list()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equal(meter, items[i], wanted)) continue;
    if (name == "index") return {static_cast<std::int64_t>(i)};
    ++count;
  }
  if (name == "index") meter.refuse("the list does not hold the value whose index is asked for");
  return {count};
}

Value range_of(Meter& meter, const Arguments& arguments) {
  arguments.at_most(meter, 3, {}, "range");
  const bool one = arguments.positional.size() == 1;
  const std::int64_t first = one ? 0 : arguments.integer(meter, 0, "start", 0);
  const std::int64_t end = arguments.integer(meter, one ? 0 : 1, "stop", 0);
  const std::int64_t step = arguments.integer(meter, 2, "step", 1);
  if (arguments.positional.empty()) meter.refuse("range expected at least 1 argument, got 0");
  if (step == 0) meter.refuse("range() arg 3 must not be zero");
  Items items;
  bool overflow = false;
  for (std::int64_t i = first; !overflow && (step > 0 ? i < end : i > end);
       overflow = __builtin_add_overflow(i, step, &i)) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange)
      meter.refuse("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                   std::to_string(kMaxRange) + ").");
    meter.produce(1, sizeof(Value));
    items.push_back({i});
  }
  return make_list(meter, std::move(items));
}

// The members of namespace(...) and dict(...).
Members members_of(Meter& meter, const Arguments& arguments, const std::string& name) {
  if (arguments.positional.size() > 1) meter.refuse(name + " expected at most 1 argument");
  Members members;
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].dict())
      meter.unsupported("the chat template makes a " + name + " of something else than a dict");
    members = arguments.positional[0].dict()->members;
  }
  for (const auto& argument : arguments.named)
    members.emplace_back(make_text(meter, argument.first), argument.second);
  return members;
}

Value new_namespace(Meter& meter, const Arguments& arguments) {
  auto made = std::make_shared<Namespace>();
  const Value members = make_dict(meter, members_of(meter, arguments, "namespace"));
  for (const auto& member : members.dict()->members)
    made->members.emplace_back(text_of(meter, member.first, "namespace"), member.second);
  return {made};
}

Value time_text(Meter& meter, const std::string& format, const std::tm& now) {
  if (format.size() > 256) meter.refuse("the chat template formats a time with more than 256 bytes");
  if (format.empty()) return make_text(meter, {});
  std::vector<char> room(format.size() * 32 + 64);
  // The byte behind tells an empty result from one that does not fit.
  const std::size_t bytes = std::strftime(room.data(), room.size(), (format + ".").c_str(), &now);
  if (bytes == 0) meter.refuse("the chat template formats a time too long to print");
  return make_text(meter, std::string(room.data(), bytes - 1));
}

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  return (self.text() && among(name, kTextMethods)) || (self.dict() && among(name, kDictMethods)) ||
         (self.list() && among(name, kListMethods));
}

Value call_method(Meter& meter, const Value& self, const std::string& name, const Arguments& arguments) {
  if (self.text()) return text_method(meter, *self.text(), name, arguments);
  if (self.dict()) return dict_method(meter, self, name, arguments);
  if (self.list()) return list_method(meter, self, name, arguments);
  const auto& loop = *self.as<std::shared_ptr<const Loop>>();  // loop.cycle
  if (arguments.positional.empty()) meter.refuse("no items for cycling given");
  return arguments.positional[static_cast<std::size_t>(loop->index) % arguments.positional.size()];
}

bool is_global(std::string_view name) {
  return among(name, {"range", "namespace", "dict", "raise_exception", "strftime_now"});
}

Value call_global(Meter& meter, const std::string& name, const Arguments& arguments, const std::tm& now) {
  if (name == "range") return range_of(meter, arguments);
  if (name == "namespace") return new_namespace(meter, arguments);
  if (name == "dict") return make_dict(meter, members_of(meter, arguments, "dict"));
  if (name == "strftime_now")
    return time_text(meter, text_of(meter, arguments.get(meter, 0, "format", name), name), now);
  const std::string message = str(meter, arguments.get(meter, 0, "message", name));
  std::size_t end = std::min(message.size(), kMaxMessage);
  while (end < message.size() && (static_cast<unsigned char>(message[end]) & 0xc0) == 0x80) --end;
  meter.refuse("the chat template refuses: " + message.substr(0, end));
}

}  // namespace llmq::jinja
