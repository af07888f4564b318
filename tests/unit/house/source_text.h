// The source tree as text: its files, their lines, and which bytes of a C++ source are code, comments and
// literals. What the checks of this folder read.
#pragma once
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmq::house {

namespace fs = std::filesystem;
using Names = std::set<std::string>;
using Findings = std::vector<std::string>;  // "src/io/x.cpp:3: what is wrong"

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline std::string at_line(const std::string& path, std::size_t line, const std::string& what) {
  return path + ":" + std::to_string(line + 1) + ": " + what;
}

inline void append(Findings& to, const Findings& from) { to.insert(to.end(), from.begin(), from.end()); }

inline fs::path root() { return LLMQ_SOURCE_DIR; }

inline std::string read_whole(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Source {
  std::string path, text;  // from the root of the tree
};

inline std::vector<Source> sources_below(const std::string& top) {
  static const Names extensions = {".h", ".cpp", ".cu", ".cuh", ".inc"};
  std::vector<Source> sources;
  if (!fs::exists(root() / top)) return sources;
  for (const auto& entry : fs::recursive_directory_iterator(root() / top)) {
    if (!entry.is_regular_file() || !extensions.contains(entry.path().extension().string())) continue;
    sources.push_back({fs::relative(entry.path(), root()).generic_string(), read_whole(entry.path())});
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
  return sources;
}

inline std::vector<Source> sources_of(const std::vector<std::string>& tops) {
  std::vector<Source> all;
  for (const std::string& top : tops)
    for (Source& source : sources_below(top)) all.push_back(std::move(source));
  return all;
}

enum class Kind : std::uint8_t {
  kCode,
  kComment,
  kLiteral,  // with its quotes
  kRawText   // between the brackets of R"(...)"
};

// What each byte of a C++ source belongs to.
inline std::vector<Kind> kinds_of(const std::string& text) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  const auto is = [&](std::size_t i, std::string_view what) {
    return text.compare(i, what.size(), what) == 0;
  };
  std::vector<Kind> kinds(text.size(), Kind::kCode);
  std::size_t i = 0;
  const auto take_to = [&](std::size_t end, Kind kind) {
    for (end = std::min(end, text.size()); i < end; ++i) kinds[i] = kind;
  };
  const auto behind = [&](const std::string& what, std::size_t from) {
    const std::size_t found = text.find(what, from);
    return found == std::string::npos ? text.size() : found + what.size();
  };
  while (i < text.size()) {
    const char before = i > 0 ? text[i - 1] : ' ';
    if (is(i, "//")) {
      take_to(text.find('\n', i), Kind::kComment);
    } else if (is(i, "/*")) {
      take_to(behind("*/", i + 2), Kind::kComment);
    } else if (text[i] == '"' && before == 'R' && (i < 2 || !is_word(text[i - 2]))) {
      const std::size_t bracket = behind("(", i);
      const std::string end = ")" + text.substr(i + 1, bracket - i - 2) + "\"";
      take_to(bracket, Kind::kLiteral);
      take_to(text.find(end, i), Kind::kRawText);
      take_to(i + end.size(), Kind::kLiteral);
    } else if (text[i] == '"' || (text[i] == '\'' && !is_word(before))) {  // 1'000 is no character
      std::size_t end = i + 1;
      while (end < text.size() && text[end] != text[i] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      take_to(end + 1, Kind::kLiteral);
    } else {
      ++i;
    }
  }
  return kinds;
}

// The lines of a source without the bytes of one kind.
inline std::vector<std::string> lines_without(const std::string& text, Kind kind) {
  const std::vector<Kind> kinds = kinds_of(text);
  std::string kept;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (kinds[i] != kind || text[i] == '\n') kept += text[i];
  return lines_of(kept);
}

// The lines of a source without comments and literals.
inline std::vector<std::string> lines_of_code(const std::string& text) {
  const std::vector<Kind> kinds = kinds_of(text);
  std::string kept;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (kinds[i] == Kind::kCode || text[i] == '\n') kept += text[i];
  return lines_of(kept);
}

// Files that may do what a rule forbids, each with the reason; a folder ends in '/'.
struct Exception {
  std::string path, reason;
};

inline bool is_excepted(const std::string& path, const std::vector<Exception>& exceptions) {
  return std::any_of(exceptions.begin(), exceptions.end(), [&](const Exception& e) {
    return e.path.ends_with('/') ? path.starts_with(e.path) : path == e.path;
  });
}

}  // namespace llmq::house
