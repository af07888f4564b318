// Python's str methods on UTF-8 text, as far as chat templates use them. Characters are code points.
//
// upper, lower and what follows from them know the simple case mappings; a character whose mapping is longer
// than one character (ß) or depends on its neighbours (Σ) is refused by the caller through `special_case`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmq::jinja {

bool is_space(char32_t c);      // str.isspace
bool is_printable(char32_t c);  // str.isprintable
bool is_letter(char32_t c);
bool is_digit(char32_t c);
bool special_case(char32_t c);

// White space, or the characters of `set`, off one end.
std::string_view stripped_left(std::string_view text, std::optional<std::string_view> set = {});
std::string_view stripped_right(std::string_view text, std::optional<std::string_view> set = {});
inline std::string_view stripped(std::string_view text, std::optional<std::string_view> set = {}) {
  return stripped_right(stripped_left(text, set), set);
}

enum class Case { kUpper, kLower, kCapitalize, kTitle };
std::string in_case(std::string_view text, Case wanted);
std::size_t characters(std::string_view text);
std::vector<std::string_view> each_character(std::string_view text);
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most);
// str.split and rsplit: by white space without a separator. `most` < 0: all.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t most, bool from_right);
std::vector<std::string_view> lines_of(std::string_view text);  // str.splitlines()
std::string float_text(double value);                           // repr of a float
std::string quoted(std::string_view text);                      // repr of a str
std::string json_quoted(std::string_view text, bool ascii);     // json.dumps of a str

}  // namespace llmq::jinja
