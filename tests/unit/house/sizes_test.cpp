// How much a reader gets at once:
//   - no line of C++ is wider than 110 columns, comments included; text in raw literals of tests is free,
//   since the bytes of a vector are not ours to break;
//   - no file of src/ has more than 400 lines and none of tools/ more than 200: a command turns words into
//   values, and src/job does the rest;
//   - no folder of src/ or tools/ has more than 40 files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "unit/house/source_text.h"

namespace llmq::house {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kColumns = 110, kLinesOfSrc = 400, kLinesOfTools = 200, kFilesOfFolder = 40;

std::size_t code_points(const std::string& line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

Findings wide_lines(const std::string& path, const std::string& text) {
  Findings found;
  const std::vector<std::string> lines =
      path.starts_with("tests/") ? lines_without(text, Kind::kRawText) : lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (const std::size_t width = code_points(lines[i]); width > kColumns)
      found.push_back(at_line(path, i, std::to_string(width) + " columns"));
  return found;
}

Findings long_file(const std::string& path, const std::string& text) {
  if (path == "src/tokenizer/unicode_ranges.inc") return {};  // a table that a program wrote
  const std::size_t lines = lines_of(text).size();
  const std::size_t most = path.starts_with("tools/") ? kLinesOfTools : kLinesOfSrc;
  if (lines <= most) return {};
  return {path + ": " + std::to_string(lines) + " lines, and " + std::to_string(most) + " are the most"};
}

// `paths`: those of files, from the root.
Findings full_folders(const std::vector<std::string>& paths) {
  std::map<std::string, std::size_t> files;
  for (const std::string& path : paths) ++files[fs::path(path).parent_path().generic_string()];
  Findings found;
  for (const auto& [folder, count] : files)
    if (count > kFilesOfFolder) found.push_back(folder + ": " + std::to_string(count) + " files");
  return found;
}

TEST(House, NoLineIsWide) {
  Findings found;
  for (const Source& source : sources_of({"src", "kernels", "tools", "tests"}))
    if (!source.path.ends_with(".inc")) append(found, wide_lines(source.path, source.text));
  EXPECT_THAT(found, IsEmpty());
}

TEST(House, FilesOfSrcAndToolsAreShort) {
  Findings found;
  for (const Source& source : sources_of({"src", "tools"}))
    append(found, long_file(source.path, source.text));
  EXPECT_THAT(found, IsEmpty());
}

TEST(House, FoldersOfSrcAndToolsAreSmall) {
  std::vector<std::string> paths;
  for (const char* top : {"src", "tools"})
    for (const auto& entry : fs::recursive_directory_iterator(root() / top))
      if (entry.is_regular_file()) paths.push_back(fs::relative(entry.path(), root()).generic_string());
  EXPECT_THAT(full_folders(paths), IsEmpty());
  EXPECT_GT(paths.size(), 300u) << "the walk found too little of " << root();
}

TEST(HouseCheck, CatchesWideLines) {
  const std::string most(110, 'x'), wide(111, 'x');
  EXPECT_THAT(wide_lines("src/io/x.cpp", most + "\n// " + most + "\n"),
              ElementsAre("src/io/x.cpp:2: 113 columns"));
  EXPECT_THAT(wide_lines("kernels/cuda/x.cu", wide + "\n"), SizeIs(1));
  std::string arrows;
  for (int i = 0; i < 110; ++i) arrows += "→";
  EXPECT_THAT(wide_lines("tools/x.h", arrows + "\n"), IsEmpty());
  EXPECT_THAT(wide_lines("tools/x.h", arrows + "→\n"), SizeIs(1));
}

TEST(HouseCheck, FreesRawTextOfTestsOnly) {
  const std::string wide(111, 'x');
  EXPECT_THAT(wide_lines("tests/x.cpp", "a(R\"(" + wide + "\n" + wide + ")\");\n"), IsEmpty());
  EXPECT_THAT(wide_lines("tests/x.cpp", "a(R\"j(" + wide + ")\" " + wide + ")j\");\n"), IsEmpty());
  EXPECT_THAT(wide_lines("src/x.cpp", "a(R\"(" + wide + ")\");\n"), SizeIs(1));
  EXPECT_THAT(wide_lines("tests/x.cpp", "a(\"" + wide + "\");\n"), SizeIs(1));
  EXPECT_THAT(wide_lines("tests/x.cpp", "a(R\"(x)\"); // " + wide + "\n"), SizeIs(1));
  EXPECT_THAT(wide_lines("tests/x.cpp", "// R\"(\n" + wide + "\n"), SizeIs(1));
  EXPECT_THAT(wide_lines("tests/x.cpp", "'\"'; \"\\\"\"; 1'000;\n" + wide + "\n"), SizeIs(1));
}

TEST(HouseCheck, CatchesLongFilesAndFullFolders) {
  const auto of_lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "x\n";
    return text;
  };
  EXPECT_THAT(long_file("src/io/x.cpp", of_lines(400)), IsEmpty());
  EXPECT_THAT(long_file("src/io/x.cpp", of_lines(401)),
              ElementsAre("src/io/x.cpp: 401 lines, and 400 are the most"));
  EXPECT_THAT(long_file("tools/x.cpp", of_lines(200)), IsEmpty());
  EXPECT_THAT(long_file("tools/x.cpp", of_lines(201)), SizeIs(1));
  std::vector<std::string> paths;
  for (int i = 0; i < 40; ++i) paths.push_back("src/io/" + std::to_string(i) + ".h");
  paths.push_back("src/io/deep/x.h");
  EXPECT_THAT(full_folders(paths), IsEmpty());
  paths.push_back("src/io/x.txt");
  EXPECT_THAT(full_folders(paths), ElementsAre("src/io: 41 files"));
}

}  // namespace
}  // namespace llmq::house
