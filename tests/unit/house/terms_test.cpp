// docs/terms.md explains every word that the program takes: methods, formats, families, parts of schemes.
// What there is, is read from where the program has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "unit/house/source_text.h"

namespace llmq::house {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// The first group of each match in the code of a source.
Names all_matches(const std::string& text, const std::regex& pattern) {
  Names found;
  for (const std::string& line : lines_without(text, Kind::kComment))
    for (std::sregex_iterator match(line.begin(), line.end(), pattern), end; match != end; ++match)
      found.insert((*match)[1].str());
  return found;
}

// quant/methods/registry.cpp: .name = "awq+gptq", and {"imatrix", true} of GGUF outputs.
Names methods_in(const std::string& text) {
  Names found = all_matches(text, std::regex("\\.name = \"([^\"]+)\""));
  found.merge(all_matches(text, std::regex("\\{\"(\\w+)\", (?:true|false)\\}")));
  return found;
}

// export/formats/*.cpp: .name = "awq"
Names formats_in(const std::string& text) { return all_matches(text, std::regex("\\.name = \"([^\"]+)\"")); }

// model/families/*.cpp: Family kLlamaFamily = {"llama", ...}, Wrapper kLlava = {.model_type = "llava", ...}
Names families_in(const std::string& text) {
  return all_matches(text, std::regex("(?:\\bFamily k\\w+ = \\{|\\.model_type = )\"(\\w+)\""));
}

// tensor/quant_scheme.cpp: text == "fp8", take(rest, "_channel")
Names scheme_parts_in(const std::string& text) {
  return all_matches(text, std::regex("(?:\\btext == |\\btake\\(\\w+, )\"(\\w+)\""));
}

// Those that have no entry: `word`, or `word<...>` where something follows it, in a heading of a list.
Findings unexplained(const Names& words, const std::string& terms) {
  Names headings;
  static const std::regex quoted("`([^`<]+)(?:<[^`]*)?`");
  for (const std::string& line : lines_of(terms)) {
    if (!line.starts_with("- ")) continue;
    const std::string heading = line.substr(0, line.find(": "));
    for (std::sregex_iterator match(heading.begin(), heading.end(), quoted), end; match != end; ++match)
      headings.insert((*match)[1].str());
  }
  Findings found;
  for (const std::string& word : words)
    if (!headings.contains(word)) found.push_back("docs/terms.md has no entry `" + word + "`");
  return found;
}

Names in_files_of(const std::string& folder, Names (*names_in)(const std::string&)) {
  Names names;
  for (const Source& source : sources_below(folder)) names.merge(names_in(source.text));
  return names;
}

void expect_explained(const Names& words, std::size_t at_least) {
  EXPECT_GE(words.size(), at_least) << "the sources are no longer read right";
  EXPECT_THAT(unexplained(words, read_whole(root() / "docs/terms.md")), IsEmpty());
}

TEST(House, TermsHaveEveryMethod) {
  expect_explained(methods_in(read_whole(root() / "src/quant/methods/registry.cpp")), 10);
}

TEST(House, TermsHaveEveryFormat) { expect_explained(in_files_of("src/export/formats", formats_in), 5); }

TEST(House, TermsHaveEveryFamily) { expect_explained(in_files_of("src/model/families", families_in), 4); }

TEST(House, TermsHaveEveryPartOfAScheme) {
  expect_explained(scheme_parts_in(read_whole(root() / "src/tensor/quant_scheme.cpp")), 11);
}

TEST(HouseCheck, FindsTheWordsInTheSources) {
  EXPECT_THAT(
      methods_in("// .name = \"no\"\n{.words = {\"a\"}, .name = \"a+b\"},\n{{\"i\", true}, {\"j\", false}}"),
      UnorderedElementsAre("a+b", "i", "j"));
  EXPECT_THAT(families_in("extern const Family kLlamaFamily = {\"llama\", \"L\"};"), ElementsAre("llama"));
  EXPECT_THAT(families_in("constexpr Wrapper kLlava = {.model_type = \"llava\","), ElementsAre("llava"));
  EXPECT_THAT(scheme_parts_in("if (text == \"fp8\") x; else if (take(rest, \"_sym\")) y;"),
              UnorderedElementsAre("fp8", "_sym"));
  EXPECT_THAT(formats_in("PackedFormatRow kAwq = {.name = \"awq\","), ElementsAre("awq"));
}

TEST(HouseCheck, CatchesWordsWithoutAnEntry) {
  const std::string terms = "- `awq`, `_g<N>`: see `gptq`\n`rtn`: no entry\n";
  EXPECT_THAT(unexplained({"awq", "_g"}, terms), IsEmpty());
  EXPECT_THAT(unexplained({"gptq", "rtn", "awq"}, terms), SizeIs(2));
}

}  // namespace
}  // namespace llmq::house
