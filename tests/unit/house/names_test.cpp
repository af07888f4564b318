// What may be named where:
//   - a linear has an id; only families name one, and GGUF, whose tensors have names of their own
//   (docs/adr/0017-a-block-is-data.md);
//   - src/io reads files, whatever architecture they hold;
//   - who writes a GGUF or reads one as a model asks a family's table (model/gguf/gguf_family.h), never which
//   architecture there is;
//   - nobody asks an object what it is by dynamic_cast, backends apart, who ask whether a weight is theirs.
// Words of comments are free. Each exception has its reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "unit/house/source_text.h"

namespace llmq::house {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<Exception>& may_name_linears() {
  static const std::vector<Exception> list = {
      {"src/model/families/", "a family says what its block consists of"},
      {"src/model/structures/", "so do the structures that families share"},
      {"src/model/gguf/", "a GGUF's tensors to the names of a family's"},
      {"src/export/gguf/", "the names of a family's to a GGUF's"},
      {"src/export/formats/fused_linears.cpp", "vLLM has names of its own for linears that it fuses"},
      {"src/quant/recipe/recipe.cpp", "a message shows how an override is written"},
  };
  return list;
}

const std::vector<Exception>& may_cast() {
  static const std::vector<Exception> list = {
      {"src/device/", "a backend asks whether a weight, a buffer or a peer is one of its own"},
      {"src/quant/methods/gptq/gptq.cpp", "what a method prepared of an input is opaque to who keeps it"},
      {"src/model/packed/unpacked.cpp",
       "a checkpoint knows no adapter, and its plan asks which numbers have one"},
  };
  return list;
}

// Lines whose code (literals included) holds the pattern.
Findings lines_with(const std::string& path, const std::string& text, const std::regex& pattern,
                    const std::string& what) {
  Findings found;
  const std::vector<std::string> lines = lines_without(text, Kind::kComment);
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (std::smatch match; std::regex_search(lines[i], match, pattern))
      found.push_back(at_line(path, i, what + " " + match[1].str()));
  return found;
}

Findings named_linears(const std::string& path, const std::string& text) {
  static const std::regex linear(
      "(?:^|[^A-Za-z0-9])((?:q|k|v|o|gate|up|down|qkv|gate_up|out)_proj|fc1|fc2)(?![A-Za-z0-9_])");
  return lines_with(path, text, linear, "names the linear");
}

// "llama.cpp" and its programs, such as llama-imatrix, are no architectures.
Findings named_architectures(const std::string& path, const std::string& text) {
  static const std::regex architecture(
      "(?:^|[^A-Za-z])([Ll]lama|[Qq]wen|[Mm]istral|[Mm]inistral|[Mm]ixtral|[Pp]hi|[Oo]pt|OPT|[Oo]lmoe?|OLMoE?"
      "|[Gg]ranite|[Gg]lm4?|GLM|[Mm]ini[Mm]ax|[Cc]ohere2?|[Gg]emma[0-9]?|[Gg]pt_?[Oo]ss|[Ff]alcon|[Dd]eep[Ss]"
      "eek|[Kk]imi|[Ee]rnie|ERNIE)"
      "(?![a-z]|\\.cpp|-[a-z])");
  return lines_with(path, text, architecture, "names the architecture");
}

// Comparisons with the name of an architecture or a family. Pre-tokenizers, which llama.cpp names after
// models, have names of their own ("llama-bpe", "llama3").
Findings compared_architectures(const std::string& path, const std::string& text) {
  const std::string name =
      "\"(llama(4(_text)?)?|mistral|ministral3|mixtral|qwen[23]|qwen[23]_moe|qwen3_next|qwen3_5(_moe)?(_text)"
      "?|phi3|opt|"
      "olmo[23]|olmoe|smollm3|seed_oss|"
      "starcoder2|granite|glm4|glm4_moe|minimax_m2|cohere2?|gemma2|gemma[34]_text|gemma[34]|gpt_oss|falcon|"
      "deepseek_v[23]|kimi_k2|glm4_moe_lite|ernie4_5)["
      "\".]";
  static const std::regex compared("(?:[=!]=\\s*|(?:starts_with|find|contains|compare)\\(\\s*)" + name + "|" +
                                   name + "\\s*[=!]=");
  return lines_with(path, text, compared, "asks for the architecture");
}

Findings casts(const std::string& path, const std::string& text) {
  static const std::regex cast("\\b(dynamic_cast)\\b");
  return lines_with(path, text, cast, "asks by");
}

Findings retired_enums(const std::string& path, const std::string& text) {
  static const std::regex retired("\\b(LinearRole|InputSite)\\b");
  return lines_with(path, text, retired, "has the retired");
}

using Check = Findings (*)(const std::string&, const std::string&);

// What `check` finds outside the exceptions, and exceptions whose file is there and no longer needs one.
Findings breaches(const std::vector<Source>& sources, Check check, const std::vector<Exception>& exceptions) {
  Findings found;
  for (const Source& source : sources) {
    const Findings here = check(source.path, source.text);
    if (!is_excepted(source.path, exceptions)) append(found, here);
    for (const Exception& one : exceptions)
      if (one.path == source.path && here.empty()) found.push_back(one.path + ": needs no exception");
  }
  return found;
}

TEST(House, LinearsAreNamedByFamilies) {
  EXPECT_THAT(breaches(sources_of({"src", "tools"}), named_linears, may_name_linears()), IsEmpty());
}

TEST(House, FilesAreReadWithoutArchitectures) {
  EXPECT_THAT(breaches(sources_of({"src/io"}), named_architectures, {}), IsEmpty());
}

TEST(House, GgufAsksTheFamilysTable) {
  EXPECT_THAT(breaches(sources_of({"src/export/gguf", "src/model/gguf"}), compared_architectures, {}),
              IsEmpty());
}

TEST(House, NobodyAsksWhatAnObjectIs) {
  EXPECT_THAT(breaches(sources_of({"src", "kernels", "tools"}), casts, may_cast()), IsEmpty());
}

TEST(House, RolesAndInputsOfOneBlockAreGone) {
  std::vector<Source> sources = sources_of({"src", "kernels", "tools", "tests"});
  std::erase_if(sources, [](const Source& s) { return s.path.starts_with("tests/unit/house/"); });
  EXPECT_THAT(breaches(sources, retired_enums, {}), IsEmpty());
}

TEST(House, ExceptionsAreFew) {
  const auto files = std::count_if(may_name_linears().begin(), may_name_linears().end(),
                                   [](const Exception& one) { return !one.path.ends_with('/'); });
  EXPECT_LE(files, 8);
}

TEST(HouseCheck, CatchesNamedLinears) {
  EXPECT_THAT(named_linears("src/quant/x.cpp", "int a;\nif (leaf == \"q_proj\") {}\n"),
              ElementsAre("src/quant/x.cpp:2: names the linear q_proj"));
  for (const char* name : {"k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj",
                           "gate_up_proj", "fc1", "fc2", "out_proj"})
    EXPECT_THAT(named_linears("tools/x.cpp", "f(\"re:.*" + std::string(name) + "$\");\n"), SizeIs(1)) << name;
  EXPECT_THAT(named_linears("tools/x.cpp", "f(\"self_attn.q_proj.weight\", mlp_fc1);\n"), SizeIs(1));
  EXPECT_THAT(named_linears("src/x.cpp", "// q_proj\nint x; /* fc1\n down_proj */ {0x1fc2, 0xfc1}, fc10;\n"),
              IsEmpty());
  EXPECT_THAT(named_linears("src/x.cpp", "f(\"http://x/q_proj\");\n"), SizeIs(1));
}

TEST(HouseCheck, CatchesArchitectures) {
  for (const char* line :
       {"arch == \"llama\"", "is_mistral(x)", "\"LlamaForCausalLM\"", "\"qwen2\"", "Phi3", "\"opt\"",
        "\"llama.rope.freq_base\"", "\"a Mistral model\"", "\"mixtral\"", "OLMoE"})
    EXPECT_THAT(named_architectures("src/io/x.cpp", line), SizeIs(1)) << line;
  for (const char* line : {"// Llama's rows", "std::optional<int> options", "\"llama.cpp does\"",
                           "\"make it again with llama-imatrix\"", "std::nullopt"})
    EXPECT_THAT(named_architectures("src/io/x.cpp", line), IsEmpty()) << line;
}

TEST(HouseCheck, CatchesComparedArchitectures) {
  for (const char* line : {"if (architecture == \"llama\" && a)", "architecture != \"qwen2\"",
                           "\"phi3\" == family", "key.starts_with(\"llama.rope\")", "x == \"opt\""})
    EXPECT_THAT(compared_architectures("src/export/gguf/x.cpp", line), SizeIs(1)) << line;
  for (const char* line : {"pre == \"llama-bpe\" || pre == \"llama3\"", "bpe ? \"gpt2\" : \"llama\"",
                           "// architecture == \"llama\"", "regex == kQwen2Pattern ? \"qwen2\" : \"\""})
    EXPECT_THAT(compared_architectures("src/export/gguf/x.cpp", line), IsEmpty()) << line;
}

TEST(HouseCheck, CatchesCastsAndRetiredEnums) {
  EXPECT_THAT(casts("src/quant/x.cpp", "// dynamic_cast\nauto* y = dynamic_cast<Y*>(x);\n"),
              ElementsAre("src/quant/x.cpp:2: asks by dynamic_cast"));
  EXPECT_THAT(retired_enums("src/x.h", "LinearRole a; InputSite b;\nInputSites c;\n"), SizeIs(1));
}

TEST(HouseCheck, CatchesExceptionsThatNobodyNeeds) {
  const std::vector<Source> sources = {{"src/a/x.cpp", "dynamic_cast<X*>(y)"}, {"src/b/x.cpp", "int x;"}};
  EXPECT_THAT(breaches(sources, casts, {}), SizeIs(1));
  EXPECT_THAT(breaches(sources, casts, {{"src/a/", "why"}}), IsEmpty());
  EXPECT_THAT(breaches(sources, casts, {{"src/a/x.cpp", "why"}, {"src/c/x.cpp", "gone"}}), IsEmpty());
  EXPECT_THAT(breaches(sources, casts, {{"src/a/", "why"}, {"src/b/x.cpp", "why"}}),
              ElementsAre("src/b/x.cpp: needs no exception"));
}

}  // namespace
}  // namespace llmq::house
