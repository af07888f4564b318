// The rules of the house that a compiler does not see, checked over the source tree:
//   - a folder of src/ includes itself and folders below it only (the order of src/CMakeLists.txt, and the
//   exceptions below);
//   - kernels/ include kernels/common and src/base only; CPU and device kernels do not know each other;
//   - src/ and tools/ hold no platform or feature #if: choices are made by files that are linked or not;
//   - every .cpp of src/, kernels/, tools/ and tests/ is found by a glob or a name of the CMakeLists.txt
//   above it: no leftovers.
// Sizes, names and words: the files beside this one. Each check is a function over text, so that the tests
// below it can show that it catches what it should.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "unit/house/source_text.h"

namespace llmq::house {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// What a folder may include besides itself.
const std::map<std::string, Names>& allowed() {
  static const std::map<std::string, Names> table = {
      {"base", {}},
      {"ranks", {"base"}},
      {"jinja", {"base"}},
      {"http", {"base"}},
      {"tensor", {"base", "kernels/common"}},
      {"device", {"base", "tensor", "kernels/common", "kernels/cpu", "kernels/cuda"}},
      {"io", {"base", "tensor"}},
      {"tokenizer", {"base", "tensor", "io", "jinja"}},
      {"grammar", {"base", "tokenizer"}},
      {"model", {"base", "tensor", "device", "io", "kernels/common"}},
      {"calibration", {"base", "ranks", "tensor", "device", "io", "tokenizer", "model"}},
      // Its pages are templates.
      {"export",
       {"base", "ranks", "jinja", "tensor", "device", "io", "tokenizer", "model", "kernels/common"}},
      // Plans ask the table of formats, a pipeline hands finished matrices to a writer.
      {"quant",
       {"base", "ranks", "tensor", "device", "io", "tokenizer", "model", "calibration", "export",
        "kernels/common"}},
      {"runtime", {"base", "tensor", "device", "io", "tokenizer", "grammar", "model", "kernels/common"}},
      {"serve", {"base", "http", "tensor", "device", "io", "tokenizer", "grammar", "model", "runtime"}},
      // It measures servers, too.
      {"evaluate",
       {"base", "ranks", "http", "tensor", "device", "io", "tokenizer", "model", "runtime", "export"}},
      // What a command asks for, from its values to what is published and reported.
      {"job",
       {"base", "ranks", "tensor", "device", "io", "tokenizer", "model", "calibration", "export", "quant",
        "runtime", "evaluate"}},
      {"kernels/common", {"base"}},
      {"kernels/cpu", {"base", "kernels/common"}},
      {"kernels/cuda", {"base", "kernels/common"}},
  };
  return table;
}

// Methods see memory, not files (quant/pipeline/pipeline reads and writes for them).
bool is_method(const std::string& path) { return path.starts_with("src/quant/methods/"); }

// Nor do they see who asks for them, plans them or runs them.
bool is_closed_to_methods(const std::string& include) {
  static const std::regex closed("^(?:src/)?(?:io|quant/recipe|quant/plan|quant/pipeline)/.*");
  return std::regex_match(include, closed);
}

// The folder a path of the tree belongs to: "src/quant/methods/awq/x.cpp" -> "quant", "kernels/cpu/x.cpp" ->
// "kernels/cpu", else "".
std::string folder_of(const std::string& path) {
  static const std::regex pattern("^(?:src/(\\w+)|(kernels/\\w+))/.*");
  std::smatch match;
  if (!std::regex_match(path, match, pattern)) return "";
  return match[1].matched ? match[1].str() : match[2].str();
}

// The folder that #include "a/b.h" means: sources are found below src/ and below the root.
std::string included_folder(const std::string& include) {
  return folder_of(include.starts_with("kernels/") || include.starts_with("src/") ? include
                                                                                  : "src/" + include);
}

// "src/io/x.cpp:3: ..." for each quoted include that points up or sideways.
Findings bad_includes(const std::string& path, const std::string& text) {
  static const std::regex quoted("^\\s*#\\s*include\\s*\"([^\"]+)\".*");
  const std::string folder = folder_of(path);
  Findings found;
  const auto report = [&](std::size_t line, const std::string& what) {
    found.push_back(at_line(path, line, what));
  };
  const auto entry = allowed().find(folder);
  if (entry == allowed().end())
    return {path + ":1: the folder '" + folder + "' is not in the table of allowed includes"};
  const std::vector<std::string> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_match(lines[i], match, quoted)) continue;
    const std::string include = match[1], target = included_folder(include);
    if (include.find("..") != std::string::npos)
      report(i, "includes are written from src/ or the root, found " + include);
    else if (target.empty())
      report(i, "'" + include + "' is in no folder of the house");
    else if (target != folder && !entry->second.contains(target))
      report(i, folder + " may not include " + target);
    else if (is_method(path) && is_closed_to_methods(include))
      report(i, "a quantization method may not include " + include);
  }
  return found;
}

// Conditionals on anything but what a compiler is or whether CUDA compiles the file (kernels/ apart).
Findings bad_conditionals(const std::string& path, const std::string& text) {
  static const std::regex conditional("^\\s*#\\s*(if|ifdef|ifndef|elif)\\b.*");
  Findings found;
  const std::vector<std::string> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (std::regex_match(lines[i], conditional)) found.push_back(at_line(path, i, lines[i]));
  return found;
}

// Folders that llmq_test(NAME LABEL ...) globs, as "label/name".
Names declared_tests(const std::string& cmake) {
  static const std::regex call("llmq_test\\((\\w+) (\\w+)");
  Names names;
  for (std::sregex_iterator match(cmake.begin(), cmake.end(), call), end; match != end; ++match)
    names.insert((*match)[2].str() + "/" + (*match)[1].str());
  return names;
}

// Whether the CMakeLists.txt `cmake` builds `path`, relative to its own folder: by "sub/*.cpp" (or a narrower
// glob that ends the name), by name, by llmq_library() that globs the folder itself, by llmq_test() or by
// llmq_fuzz().
bool is_built(const std::string& path, const std::string& cmake) {
  const fs::path relative = path;
  const std::string sub = relative.parent_path().generic_string(), name = relative.filename().string();
  const std::string prefix = sub.empty() ? "" : sub + "/";
  static const std::regex glob("[\\w./{}$-]*\\*\\w*\\.cpp"),
      whole_folder("llmq_library\\((?![^)]*SOURCES)[^)]*\\)");
  if (cmake.find(path) != std::string::npos || (sub.empty() && std::regex_search(cmake, whole_folder)))
    return true;
  if (name.ends_with("_test.cpp") && declared_tests(cmake).contains(sub)) return true;
  if (name.starts_with("fuzz_") &&
      cmake.find("llmq_fuzz(" + name.substr(5, name.size() - 9) + " ") != std::string::npos)
    return true;
  for (std::sregex_iterator match(cmake.begin(), cmake.end(), glob), end; match != end; ++match) {
    const std::string text = match->str();
    const std::size_t star = text.find('*');
    if (text.substr(0, star) == prefix && name.ends_with(text.substr(star + 1))) return true;
  }
  return false;
}

TEST(House, IncludesPointDown) {
  Findings found;
  const std::vector<Source> sources = sources_of({"src", "kernels"});
  for (const Source& source : sources) append(found, bad_includes(source.path, source.text));
  EXPECT_THAT(found, IsEmpty());
  EXPECT_GT(sources.size(), 30u) << "the walk found too little of " << LLMQ_SOURCE_DIR;
}

TEST(House, NoConditionalsOutsideKernels) {
  Findings found;
  for (const Source& source : sources_of({"src", "tools"}))
    append(found, bad_conditionals(source.path, source.text));
  EXPECT_THAT(found, IsEmpty());
}

TEST(House, EverySourceIsBuilt) {
  for (const Source& source : sources_of({"src", "kernels", "tools", "tests"})) {
    if (!source.path.ends_with(".cpp")) continue;
    fs::path folder = (root() / source.path).parent_path();
    while (!fs::exists(folder / "CMakeLists.txt")) folder = folder.parent_path();
    const std::string relative = fs::relative(root() / source.path, folder).generic_string();
    EXPECT_TRUE(is_built(relative, read_whole(folder / "CMakeLists.txt")))
        << source.path << " is built by nothing";
  }
}

TEST(HouseCheck, CatchesUpwardAndSidewaysIncludes) {
  EXPECT_THAT(bad_includes("src/io/x.cpp", "#include \"model/model_spec.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("src/io/x.cpp", "// c\n  #  include   \"tokenizer/tokenizer.h\"  // y\n"),
              ::testing::ElementsAre("src/io/x.cpp:2: io may not include tokenizer"));
  EXPECT_THAT(bad_includes("src/runtime/engine.cpp", "#include \"quant/methods/method.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("src/base/x.h", "#include \"src/tensor/dtype.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("src/io/x.cpp", "#include \"../model/model_spec.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("src/io/x.cpp", "#include \"x.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("src/novel/x.cpp", ""), SizeIs(1));
  EXPECT_THAT(
      bad_includes("src/io/x.cpp", "#include <vector>\n#include \"io/y.h\"\n#include \"base/io.h\"\n"),
      IsEmpty());
}

TEST(HouseCheck, KeepsKernelsAndMethodsApart) {
  EXPECT_THAT(bad_includes("kernels/cpu/avx2/x.cpp", "#include \"tensor/dtype.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("kernels/cpu/x.cpp", "#include \"kernels/cuda/y.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("kernels/common/x.h", "#include \"kernels/cpu/y.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("kernels/cpu/x.cpp",
                           "#include \"kernels/common/code_value.h\"\n#include \"base/half.h\"\n"),
              IsEmpty());
  EXPECT_THAT(bad_includes("src/quant/methods/awq/search.cpp", "#include \"io/checkpoint.h\"\n"), SizeIs(1));
  EXPECT_THAT(bad_includes("src/quant/methods/rtn.cpp", "#include \"io/checkpoint.h\"\n"), SizeIs(1));
  for (const char* above : {"recipe/recipe.h", "plan/plan.h", "pipeline/pipeline.h"})
    EXPECT_THAT(
        bad_includes("src/quant/methods/rtn.cpp",
                     "#include \"quant/methods/method.h\"\n#include \"quant/" + std::string(above) + "\"\n"),
        SizeIs(1));
  EXPECT_THAT(bad_includes("src/quant/pipeline/pipeline.cpp",
                           "#include \"io/checkpoint.h\"\n#include \"export/output/model_writer.h\"\n"),
              IsEmpty());
}

TEST(HouseCheck, CatchesConditionals) {
  EXPECT_THAT(bad_conditionals("src/io/x.cpp",
                               "int x;\n#ifdef LLMQ_CUDA\n#endif\n # if defined(__AVX2__)\n#pragma once\n"),
              SizeIs(2));
}

TEST(HouseCheck, CatchesSourcesThatNothingBuilds) {
  const std::string tests = "llmq_test(io unit LIBRARIES llmq_io)\nllmq_test(cpu kernels)\n";
  EXPECT_TRUE(is_built("unit/io/a_test.cpp", tests));
  EXPECT_FALSE(is_built("unit/a_test.cpp", tests));
  EXPECT_FALSE(is_built("unit/io/a.cpp", tests));
  EXPECT_FALSE(is_built("unit/io/deep/a_test.cpp", tests));
  EXPECT_FALSE(is_built("unit/model/a_test.cpp", tests));
  EXPECT_TRUE(is_built("a.cpp", "llmq_library(io DEPENDS llmq_tensor)"));
  EXPECT_FALSE(is_built("sub/a.cpp", "llmq_library(io DEPENDS llmq_tensor)"));
  EXPECT_FALSE(
      is_built("a.cpp", "file(GLOB X cpu/*.cpp)\nllmq_library(device SOURCES ${X} DEPENDS llmq_tensor)"));
  EXPECT_TRUE(
      is_built("cpu/a.cpp", "file(GLOB X cpu/*.cpp)\nllmq_library(device SOURCES ${X} DEPENDS llmq_tensor)"));
  EXPECT_TRUE(is_built("a_test.cpp", "file(GLOB X CONFIGURE_DEPENDS *_test.cpp)"));
  EXPECT_FALSE(is_built("a.cpp", "file(GLOB X CONFIGURE_DEPENDS *_test.cpp)"));
  EXPECT_TRUE(is_built("fuzz_gguf.cpp", "llmq_fuzz(gguf LIBRARIES llmq_io)"));
  EXPECT_FALSE(is_built("fuzz_gguf.cpp", "llmq_fuzz(json LIBRARIES llmq_base)"));
  EXPECT_TRUE(is_built("program.cpp", "add_executable(x program.cpp)"));
}

}  // namespace
}  // namespace llmq::house
