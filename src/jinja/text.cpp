#include "jinja/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace llmq::jinja {
namespace {

bool one_of(char32_t c, std::optional<std::string_view> set) {
  if (!set) return is_space(c);
  for (std::size_t at = 0; at < set->size();) {
    const CodePoint other = read_utf8(*set, at);
    if (other.value == c) return true;
    at += other.bytes;
  }
  return false;
}

char32_t mapped(char32_t c, bool upper) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  return static_cast<char32_t>(upper ? utf8proc_toupper(code) : utf8proc_tolower(code));
}

char32_t title_mapped(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

bool line_end(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::vector<std::string_view> split_by_space(std::string_view text, std::int64_t most) {
  std::vector<std::string_view> parts;
  for (text = stripped_left(text); !text.empty(); text = stripped_left(text)) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.push_back(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && !is_space(read_utf8(text, end).value)) end += read_utf8(text, end).bytes;
    parts.push_back(text.substr(0, end));
    text = text.substr(end);
  }
  return parts;
}

std::vector<std::string_view> split_by_space_from_right(std::string_view text, std::int64_t most) {
  std::vector<std::string_view> parts;
  for (text = stripped_right(text); !text.empty(); text = stripped_right(text)) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.push_back(text);
      break;
    }
    std::size_t start = text.size();
    while (start > 0 && !is_space(read_utf8_before(text, start).value))
      start -= read_utf8_before(text, start).bytes;
    parts.push_back(text.substr(start));
    text = text.substr(0, start);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  const utf8proc_category_t kind = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return kind != UTF8PROC_CATEGORY_CN && kind < UTF8PROC_CATEGORY_ZS;
}

bool is_letter(char32_t c) {
  const utf8proc_category_t kind = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}

bool special_case(char32_t c) {
  return c == 0xdf || c == 0x130 || c == 0x149 || c == 0x1f0 || c == 0x390 || c == 0x3a3 || c == 0x3b0 ||
         c == 0x587 || (c >= 0x1e96 && c <= 0x1e9e) || (c >= 0x1f50 && c <= 0x1ffc) ||
         (c >= 0xfb00 && c <= 0xfb17);
}

std::string_view stripped_left(std::string_view text, std::optional<std::string_view> set) {
  while (!text.empty()) {
    const CodePoint first = read_utf8(text, 0);
    if (!one_of(first.value, set)) break;
    text.remove_prefix(first.bytes);
  }
  return text;
}

std::string_view stripped_right(std::string_view text, std::optional<std::string_view> set) {
  while (!text.empty()) {
    const CodePoint last = read_utf8_before(text, text.size());
    if (!one_of(last.value, set)) break;
    text.remove_suffix(last.bytes);
  }
  return text;
}

std::string in_case(std::string_view text, Case wanted) {
  std::string out;
  bool inside = false;  // a word, for kTitle; the text, for kCapitalize
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = read_utf8(text, at);
    at += c.bytes;
    char32_t made = mapped(c.value, wanted == Case::kUpper);
    if ((wanted == Case::kCapitalize || wanted == Case::kTitle) && !inside) made = title_mapped(c.value);
    inside =
        wanted == Case::kTitle ? mapped(c.value, true) != c.value || mapped(c.value, false) != c.value : true;
    append_utf8(out, made);
  }
  return out;
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::vector<std::string_view> each_character(std::string_view text) {
  std::vector<std::string_view> all;
  for (std::size_t at = 0; at < text.size(); at += all.back().size())
    all.push_back(text.substr(at, read_utf8(text, at).bytes));
  return all;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most) {
  std::string out;
  std::size_t at = 0;
  if (from.empty()) {  // between all characters, and at both ends
    for (; at <= text.size() && most != 0; --most) {
      out += to;
      if (at == text.size()) return out;
      const unsigned bytes = read_utf8(text, at).bytes;
      out += text.substr(at, bytes);
      at += bytes;
    }
    return out.append(text.substr(at));
  }
  for (std::size_t found; most != 0 && (found = text.find(from, at)) != std::string_view::npos; --most) {
    out.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
  return out.append(text.substr(at));
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t most, bool from_right) {
  if (!separator) return from_right ? split_by_space_from_right(text, most) : split_by_space(text, most);
  std::vector<std::string_view> parts;
  for (std::size_t found; most < 0 || static_cast<std::int64_t>(parts.size()) < most;) {
    found = from_right ? text.rfind(*separator) : text.find(*separator);
    if (found == std::string_view::npos) break;
    parts.push_back(from_right ? text.substr(found + separator->size()) : text.substr(0, found));
    text = from_right ? text.substr(0, found) : text.substr(found + separator->size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t start = 0; start < text.size();) {
    std::size_t end = start;
    while (end < text.size() && !line_end(read_utf8(text, end).value)) end += read_utf8(text, end).bytes;
    lines.push_back(text.substr(start, end - start));
    if (end < text.size()) end += text.substr(end).starts_with("\r\n") ? 2 : read_utf8(text, end).bytes;
    start = end;
  }
  return lines;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  char room[32];
  const auto end = std::to_chars(room, room + sizeof room, value, std::chars_format::scientific);
  const std::string_view text(room, static_cast<std::size_t>(end.ptr - room));
  int exponent = 0;
  const std::size_t e = text.find('e');
  const std::size_t power = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + power, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16)
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  std::string fixed =
      fmt::format("{:.{}f}", value,
                  std::max(1, static_cast<int>(e) - (text[0] == '-' ? 1 : 0) - (e > 2 ? 2 : 1) - exponent));
  return fixed;
}

std::string quoted(std::string_view text) {
  const char quote =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = read_utf8(text, at);
    const std::string_view bytes = text.substr(at, c.bytes);
    at += c.bytes;
    if (c.value == static_cast<unsigned char>(quote) || c.value == '\\') {
      (out += '\\') += bytes;
    } else if (c.value == '\n' || c.value == '\r' || c.value == '\t') {
      out += c.value == '\n' ? "\\n" : c.value == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c.value)) {
      out += bytes;
    } else {
      const auto code = static_cast<std::uint32_t>(c.value);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out += quote;
}

std::string json_quoted(std::string_view text, bool ascii) {
  static constexpr std::string_view kSpecial = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = read_utf8(text, at);
    const std::size_t special = c.bytes == 1 ? kSpecial.find(text[at]) : std::string_view::npos;
    const auto code = static_cast<std::uint32_t>(c.value);
    if (special != std::string_view::npos) {
      (out += '\\') += kLetters[special];
    } else if (code < 0x20 || (ascii && code > 0x7e && code < 0x10000)) {
      out += fmt::format("\\u{:04x}", code);
    } else if (ascii && code >= 0x10000) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    } else {
      out += text.substr(at, c.bytes);
    }
    at += c.bytes;
  }
  return out += '"';
}

}  // namespace llmq::jinja
