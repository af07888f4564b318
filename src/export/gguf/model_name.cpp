// The heuristics of gguf-py's Metadata.get_model_id_components, for names in ASCII.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <vector>

#include "export/gguf/gguf_metadata.h"

namespace llmq {
namespace {

constexpr std::size_t kLongestName = 255;  // more is no name that anybody chose

enum Kind : unsigned { kBasename = 1, kSize = 2, kFinetune = 4, kVersion = 8, kType = 16 };
struct NamePart {
  std::string text;
  unsigned kinds = 0;
};

bool matches(const std::string& text, const char* pattern) {
  return std::regex_match(text, std::regex(pattern, std::regex::ECMAScript | std::regex::icase));
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
char upper(char c) { return static_cast<char>(std::toupper(static_cast<unsigned char>(c))); }
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Python's str.title() where the word is all lower case and no version or number; else as it is.
std::string title_word(const std::string& word) {
  const bool has_lower = std::any_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  const bool has_upper = std::any_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  static const std::regex kVersionOrNumber(R"((v\d+(\.\d+)*|\d.*))");
  if (!has_lower || has_upper || std::regex_match(word, kVersionOrNumber)) return word;
  std::string title = word;
  for (std::size_t i = 0; i < title.size(); ++i)
    title[i] = i > 0 && is_letter(word[i - 1]) ? lower(word[i]) : upper(word[i]);
  return title;
}

std::string title_of(const std::string& text) {
  std::string title, word;
  for (const char c : text + " ") {
    if (c != '-' && std::isspace(static_cast<unsigned char>(c)) == 0) {
      word += c;
      continue;
    }
    if (!word.empty()) title += (title.empty() ? "" : " ") + title_word(word);
    word.clear();
  }
  return title;
}

// "135m" -> "135M"; "7b1" -> "7.1B". A size far from the model's own is no size: most likely a context
// length.
void read_size(NamePart& part, std::uint64_t parameters) {
  std::string& text = part.text;
  std::replace(text.begin(), text.end(), '_', '.');
  if (is_digit(text.back()))
    text = text.substr(0, text.size() - 2) + "." + text.back() + text[text.size() - 2];
  if (text.size() > 1 && is_digit(text[text.size() - 2]) &&
      std::string_view("kmbt").find(text.back()) != std::string_view::npos)
    text.back() = upper(text.back());
  char* end = nullptr;
  const std::string digits = text.substr(0, text.size() - 1);
  const double number = std::strtod(digits.c_str(), &end);
  const auto place = std::string_view(" KMBT").find(text.back());
  if (parameters != 0 && !digits.empty() && *end == '\0') {
    // A letter that is no unit counts as 1000^-1, as Python's find() has it.
    const double size =
        number * std::pow(1000.0, place == std::string_view::npos ? -1.0 : static_cast<double>(place));
    const auto total = static_cast<double>(parameters);
    if (std::abs(size - total) > std::floor(7 * total / 8)) {
      part.kinds |= kFinetune;
      text.back() = lower(text.back());
    }
  }
  if (part.kinds == 0) part.kinds = kSize;
}

std::vector<NamePart> annotated_parts(const std::string& name, std::uint64_t parameters) {
  std::vector<NamePart> parts;
  std::string text;
  for (const char c : name + "-") {
    if (c != '-') {
      text += c;
    } else if (!text.empty()) {
      parts.push_back({text, 0});
      text.clear();
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    NamePart& part = parts[i];
    if (matches(part.text, R"((v|iter)?\d+([.]\d+)*)")) {
      part.kinds = kVersion;
    } else if (matches(part.text, R"(i?q\d(_\w)*|b?fp?(16|32))")) {
      part.kinds = kType;
      std::transform(part.text.begin(), part.text.end(), part.text.begin(), upper);
    } else if (i > 0 && matches(part.text,
                                R"((([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl))")) {
      read_size(part, parameters);
    } else if (i > 0 && matches(part.text, "chat|instruct|vision|lora")) {
      part.kinds = kFinetune;
    }
  }
  return parts;
}

std::string joined(const std::vector<NamePart>& parts, unsigned kind, unsigned without = 0,
                   bool once = false) {
  std::vector<std::string> texts;
  for (const NamePart& part : parts)
    if ((part.kinds & kind) != 0 && (part.kinds & without) == 0 &&
        !(once && std::find(texts.begin(), texts.end(), part.text) != texts.end()))
      texts.push_back(part.text);
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : "-") + text;
  return all;
}

// Words such as "small" are sizes only where no number is one.
void drop_worded_sizes(std::vector<NamePart>& parts) {
  const bool numbered = std::any_of(parts.begin(), parts.end(), [](const NamePart& part) {
    return (part.kinds & kSize) != 0 && std::any_of(part.text.begin(), part.text.end(), is_digit);
  });
  for (NamePart& part : parts)
    if (numbered && (part.kinds & kSize) != 0 && std::all_of(part.text.begin(), part.text.end(), is_letter))
      part.kinds &= ~static_cast<unsigned>(kSize);
}

// The name's beginning, up to the first part that says something else, is the base name.
void find_basename(std::vector<NamePart>& parts) {
  bool at_start = true;
  for (NamePart& part : parts) {
    if (at_start && ((part.kinds == 0 && is_letter(part.text[0])) || (part.kinds & kVersion) != 0)) {
      part.kinds |= kBasename;
      continue;
    }
    at_start = false;
    if (part.kinds == 0) part.kinds = kFinetune;
  }
  for (std::size_t i = parts.size(); i-- > 0;) {
    if ((parts[i].kinds & kBasename) == 0 || parts[i].kinds == kBasename) break;
    parts[i].kinds &= ~static_cast<unsigned>(kBasename);
  }
}

}  // namespace

ModelNameParts parse_model_name(const std::string& id, std::uint64_t parameters) {
  ModelNameParts made;
  if (id.empty() || id.size() > kLongestName) return made;
  if (id.find(' ') != std::string::npos) {
    made.title = title_of(id);
    return made;
  }
  const std::size_t slash = id.find('/');
  const std::string name = slash == std::string::npos ? id : id.substr(slash + 1);
  if (slash != std::string::npos && slash > 0 && id[0] != '.')
    made.organization = title_of(id.substr(0, slash));
  std::vector<NamePart> parts = annotated_parts(name, parameters);
  drop_worded_sizes(parts);
  find_basename(parts);
  made.title = title_of(name);
  made.size_label = joined(parts, kSize, 0, true);
  made.finetune = joined(parts, kFinetune);
  made.version = joined(parts, kVersion, kBasename);
  if (!made.size_label.empty() || !made.finetune.empty() || !made.version.empty())
    made.basename = joined(parts, kBasename);
  return made;
}

std::string size_label(std::uint64_t parameters) {
  auto scaled = static_cast<double>(parameters);
  char unit = 'K';
  if (scaled > 1e12) {
    scaled *= 1e-12;
    unit = 'T';
  } else if (scaled > 1e9) {
    scaled *= 1e-9;
    unit = 'B';
  } else if (scaled > 1e6) {
    scaled *= 1e-6;
    unit = 'M';
  } else {
    scaled *= 1e-3;
  }
  std::string whole = fmt::format("{}", static_cast<std::int64_t>(std::nearbyint(scaled)));
  while (!whole.empty() && whole[0] == '0') whole.erase(0, 1);
  const int decimals = std::max(2 - static_cast<int>(whole.size()), 0);
  return fmt::format("{:.{}f}{}", scaled, decimals, unit);
}

}  // namespace llmq
