// Recipes: what is read, where an error points, and both dialects.
#include "quant/recipe/recipe.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/error.h"
#include "base/yaml.h"
#include "tests/unit/quant/recipe_error.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::recipe_error;

TEST(Recipe, ReadsEveryKeyOfItsOwnForm) {
  const Recipe r = Recipe::parse(
      "version: 1\nmodel: m\nadapter: a/b\noutput: {dir: out/x, versioned: true, keep: 5}\nmethod: "
      "[smoothquant, gptq]\n"
      "scheme: {weights: {bits: 8, group_size: 64, symmetric: false}, activations: {bits: 8, dynamic: "
      "true}}\nformat: gptq_v2\n"
      "calibration: {text: [a.txt, builtin:c4], samples: 3, sequence_length: 7, seed: 9, shuffle: false, "
      "chat_template: true}\n"
      "ignore: [lm_head, 're:.*k_proj']\noverrides: [{match: 're:.*down_proj', scheme: w8a16_g128}]\n"
      "awq: {grid: 100, duo_scaling: false, clip: false, loss: gram, salient_fp16: 0.01}\n"
      "gptq: {damp: 0.01, order: gar, refit_scales: true, scale_search: importance}\nsmoothquant: {alpha: "
      "0.5}\n"
      "evaluate: {text: builtin:wikitext-2, max_delta_ppl: 0.5}\n",
      "r.yaml");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.adapter, "a/b");
  EXPECT_EQ(r.output, "out/x");
  EXPECT_TRUE(r.versioned);
  EXPECT_EQ(r.keep, 5);
  EXPECT_THAT(r.methods, ElementsAre("smoothquant", "gptq"));
  ASSERT_TRUE(r.scheme);
  EXPECT_EQ(r.scheme->bits, 8);
  EXPECT_EQ(r.scheme->activation_bits, 8);
  EXPECT_EQ(r.scheme->group_size, 64);
  EXPECT_EQ(r.scheme->symmetric, false);
  EXPECT_EQ(r.format, "gptq_v2");
  EXPECT_THAT(r.calibration.text, ElementsAre("a.txt", "builtin:c4"));
  EXPECT_EQ(r.calibration.samples, 3);
  EXPECT_EQ(r.calibration.sequence_length, 7);
  EXPECT_EQ(r.calibration.seed, 9u);
  EXPECT_FALSE(r.calibration.shuffle);
  EXPECT_TRUE(r.calibration.chat_template);
  EXPECT_THAT(r.ignore, ElementsAre("lm_head", "re:.*k_proj"));
  ASSERT_EQ(r.overrides.size(), 1u);
  EXPECT_EQ(r.overrides[0].scheme->bits, 8);
  EXPECT_EQ(r.awq.grid, 100);
  EXPECT_EQ(r.awq.duo_scaling, AwqOptions::Duo::kNo);
  EXPECT_FALSE(r.awq.clip);
  EXPECT_EQ(r.awq.salient_fp16, 0.01);
  ASSERT_TRUE(r.evaluate);
  EXPECT_EQ(r.evaluate->max_delta_ppl, 0.5);
}

TEST(Recipe, ReadsEveryKeyOfEvaluate) {
  const Recipe r = Recipe::parse(
      "evaluate: {text: t.txt, max_ppl: 20, max_delta_ppl: -0.5, max_kl: 0.25, max_windows: 8}\n", "r.yaml");
  ASSERT_TRUE(r.evaluate);
  EXPECT_EQ(r.evaluate->text, "t.txt");
  EXPECT_EQ(r.evaluate->max_ppl, 20);
  EXPECT_EQ(r.evaluate->max_delta_ppl, -0.5);
  EXPECT_EQ(r.evaluate->max_kl, 0.25);
  EXPECT_EQ(r.evaluate->max_windows, 8);
  const Recipe some = Recipe::parse("evaluate: {max_kl: 0.25}\n", "r.yaml");
  EXPECT_FALSE(some.evaluate->max_ppl);
  EXPECT_FALSE(some.evaluate->max_delta_ppl);
  EXPECT_EQ(some.evaluate->max_windows, 0);
}

TEST(Recipe, ReadsWhatTheModelCardSays) {
  const Recipe r = Recipe::parse(
      "base_model: Qwen/Qwen3-32B\nlicense: apache-2.0\ndatasets: "
      "HuggingFaceH4/ultrachat_200k\nquantized_by: 'A: B'\n",
      "r.yaml");
  EXPECT_EQ(r.card.base_model, "Qwen/Qwen3-32B");
  EXPECT_EQ(r.card.license, "apache-2.0");
  EXPECT_THAT(*r.card.datasets, ElementsAre("HuggingFaceH4/ultrachat_200k"));
  EXPECT_EQ(r.card.quantized_by, "A: B");
  EXPECT_THAT(*Recipe::parse("datasets: [a/b, c/d]\n", "r.yaml").card.datasets, ElementsAre("a/b", "c/d"));
  EXPECT_FALSE(Recipe::parse("version: 1\n", "r.yaml").card.datasets);
  EXPECT_THAT(recipe_error("license: Apache 2.0\n"),
              HasSubstr("1:10: 'Apache 2.0' is not how the hub names a licence"));
  EXPECT_THAT(recipe_error("datasets: [a/b, c4]\n"), HasSubstr("1:17: 'c4' is not a name of the hub"));
  EXPECT_THAT(recipe_error("base_model: ./local\n"), HasSubstr("1:13"));
}

TEST(Recipe, LeavesDefaultsWhereNothingIsSaid) {
  const Recipe r = Recipe::parse("version: 1\n", "r.yaml");
  EXPECT_FALSE(r.scheme);
  EXPECT_FALSE(r.evaluate);
  EXPECT_THAT(r.ignore, ElementsAre("lm_head"));
  EXPECT_EQ(r.format, "compressed-tensors");
  EXPECT_EQ(r.awq, AwqOptions{});
  EXPECT_EQ(r.calibration, CalibrationRequest{});
}

TEST(Recipe, PointsAtWhatIsWrong) {
  EXPECT_THAT(recipe_error("version: 1\nmetod: awq\n"),
              HasSubstr("r.yaml: 2:1: unknown key 'metod'; did you mean 'method'?"));
  EXPECT_THAT(recipe_error("awq:\n  grid: 20\n  shrink: 1\n"),
              HasSubstr("r.yaml: 3:3: unknown key 'awq.shrink'; known here are grid"));
  EXPECT_THAT(recipe_error("version: 2\n"), HasSubstr("1:10"));
  EXPECT_THAT(recipe_error("method: owq\n"), HasSubstr("1:9"));
  EXPECT_THAT(recipe_error("calibration: {samples: 0}\n"), HasSubstr("1:24"));
  EXPECT_THAT(recipe_error("calibration: {samples: '64'}\n"), HasSubstr("1:24"));
  EXPECT_THAT(recipe_error("calibration: {shuffle: yes}\n"), HasSubstr("1:24"));
  EXPECT_THAT(recipe_error("calibration: [1]\n"), HasSubstr("1:14"));
  EXPECT_THAT(recipe_error("model: a\nmodel: b\n"), HasSubstr("2:1"));
  EXPECT_THAT(recipe_error("scheme: w9a16\n"), HasSubstr("r.yaml: 1:9"));
  EXPECT_THAT(recipe_error("scheme: {weights: {bits: 4, groups: 64}}\n"), HasSubstr("1:29"));
  EXPECT_THAT(recipe_error("overrides: [{match: x}]\n"), HasSubstr("lacks 'scheme'"));
  EXPECT_THAT(recipe_error("mixed: {schemes: [fp8]}\n"), HasSubstr("nothing to choose from"));
  EXPECT_THAT(recipe_error("mixed: {schemes: [fp8, bf16, dense]}\n"), HasSubstr("stands twice"));
  EXPECT_THAT(recipe_error("smoothquant: {alpha: 1.5}\n"), HasSubstr("1:22"));
  EXPECT_THAT(recipe_error("smoothquant: {alpha: -0.1}\n"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(recipe_error("smoothquant: {alpha: best}\n"), HasSubstr("1:22"));
  EXPECT_THAT(recipe_error("awq: {salient_fp16: 1.5}\n"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(recipe_error("activations: {range: all}\n"), HasSubstr("max, percentile"));
  EXPECT_THAT(recipe_error("activations: {percentile: 101}\n"), HasSubstr("from 50 to 100"));
  EXPECT_THAT(recipe_error("- awq\n"), HasSubstr("a recipe is a mapping"));
}

TEST(Recipe, AlphaIsANumberOrSearched) {
  EXPECT_FALSE(Recipe::parse("version: 1\n", "r.yaml").smoothquant.alpha);
  EXPECT_FALSE(Recipe::parse("smoothquant: {alpha: search}\n", "r.yaml").smoothquant.alpha);
  EXPECT_EQ(Recipe::parse("smoothquant: {alpha: 0.8}\n", "r.yaml").smoothquant.alpha, 0.8);
}

TEST(Recipe, SetEditsOneKeyAndListsThoseThatExist) {
  Recipe r = Recipe::parse("version: 1\nmethod: awq\n", "r.yaml");
  r.set("calibration.samples=64");
  r.set("calibration={shuffle: false}");
  r.set("scheme=w4a16_g64_asym");
  r.set("model=/a b: c/m");
  r.set("method=rtn");
  r.set("awq.duo_scaling=true");
  r.set("ignore=[a, b]");
  EXPECT_EQ(r.calibration.samples, 64);
  EXPECT_FALSE(r.calibration.shuffle);
  EXPECT_EQ(r.scheme->group_size, 64);
  EXPECT_EQ(r.model, "/a b: c/m");
  EXPECT_THAT(r.methods, ElementsAre("rtn"));
  EXPECT_EQ(r.awq.duo_scaling, AwqOptions::Duo::kYes);
  EXPECT_THAT(r.ignore, ElementsAre("a", "b"));
  try {
    r.set("awq.grids=3");
    ADD_FAILURE() << "an unknown key was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_THAT(e.what(), HasSubstr("there are grid, duo_scaling, clip, salient_fp16, loss"));
  }
  EXPECT_THROW(r.set("output=a\xcb"), Error);
  EXPECT_THROW(r.set("grid"), Error);
  EXPECT_THROW(r.set("=1"), Error);
  EXPECT_THROW(r.set("calibration.samples=many"), Error);
}

TEST(Recipe, JsonIsWholeAndStable) {
  const Recipe r = Recipe::parse("method: awq\nscheme: w4a16_g64_asym\n", "r.yaml");
  const std::string json = r.to_json().dump();
  EXPECT_EQ(json, Recipe::parse("scheme: w4a16_g64_asym\nmethod: awq\n", "r.yaml").to_json().dump());
  for (const char* part :
       {"\"group_size\":64", "\"seed\":42", "\"duo_scaling\":\"both\"", "\"ignore\":[\"lm_head\"]"})
    EXPECT_THAT(json, HasSubstr(part));
}

TEST(Presets, EveryFileUnderRecipesIsRead) {
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LLMQ_SOURCE_DIR) + "/recipes")) {
    const Recipe r = Recipe::load(system_io(), entry.path());
    EXPECT_FALSE(r.model.empty()) << entry.path();
    EXPECT_FALSE(r.output.empty()) << entry.path();
    EXPECT_TRUE(r.scheme) << entry.path();
    ++read;
  }
  EXPECT_GE(read, 7);
}

// What a report holds means the same when it is read back: every key away from its default, and what was left
// open left open.
TEST(Recipe, ReadsBackWhatAReportHolds) {
  for (const char* text :
       {"version: 1\nmodel: m\noutput: o\nmethod: rtn\n",
        "model: 'C:\\m \"x\" \u00fc'\nadapter: 'a b'\noutput: out/x\nmethod: [smoothquant, gptq]\n"
        "scheme: {weights: {bits: 8, group_size: 64, symmetric: false}, activations: {bits: 8, dynamic: "
        "false}}\n"
        "format: gptq_v2\n"
        "calibration: {text: [a.txt, builtin:c4], samples: 3, sequence_length: 7, seed: 9, shuffle: false, "
        "chat_template: true}\nkv_cache: {dtype: fp8}\nignore: []\n"
        "overrides: [{match: 're:.*down_proj', scheme: w8a16_channel_sym}, {match: q, scheme: fp8_block}, "
        "{match: "
        "o, scheme: dense}]\n"
        "portable: true\nvision: w8a16_g64_sym\ntarget_bits: 4.3\nmixed: {bits: [3, 16], samples: 2}\n"
        "awq: {grid: 100, duo_scaling: false, clip: false, salient_fp16: 0.00001}\n"
        "gptq: {damp: 0.03, order: act, refit_scales: false, retry_scales: false, scale_search: minmax, "
        "full_range: false, descent_sweeps: 5, upstream_share: 0.25}\nsmoothquant: {alpha: search}\n"
        "gguf: {importance: x.dat, search: best, imatrix_out: y}\n"
        "activations: {range: percentile, percentile: 99.5}\n"
        "evaluate: {text: t, max_ppl: 9.5, max_delta_ppl: -1, max_kl: 0.5, max_windows: 3}\n"
        "base_model: a/b\nlicense: mit\ndatasets: [c/d]\nquantized_by: somebody\n",
        "method: rtn\ntarget_bits: 5\nmixed: {schemes: [w4a16_g32_asym, nvfp4a16, fp8, dense], samples: 2}\n",
        "model: m\nformat: gguf\nscheme: q4_k_m\nmethod: imatrix\nawq: {duo_scaling: true}\n",
        "quant_stage:\n  quant_modifiers:\n    QuantizationModifier:\n      targets: [Linear]\n      scheme: "
        "W8A8\n"
        "      ignore: [lm_head]\n"}) {
    Recipe recipe = Recipe::parse(text, "r.yaml");
    const Json report = Json::parse(recipe.to_json().dump(), "report.json");
    Recipe read = Recipe::from_json(report, "manifest.json");
    EXPECT_EQ(read.source, "manifest.json");
    read.source = recipe.source;
    EXPECT_EQ(read.to_json().dump(1), recipe.to_json().dump(1));
  }
}

TEST(Recipe, RefusesAReportOfSomethingElse) {
  const auto refused = [](const Json& json) -> std::string {
    try {
      Recipe::from_json(json, "manifest.json");
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(exit_code(e.kind()), 2);
      return e.what();
    }
  };
  Json json = Recipe::parse("method: rtn\nscheme: w4a16\n", "r").to_json();
  json["invented"] = 1;
  EXPECT_THAT(refused(json), HasSubstr("invented"));
  json.erase("invented");
  json["scheme"]["bits"] = 99;
  EXPECT_THAT(refused(json), HasSubstr("manifest.json"));
  json["scheme"] = Json::object({{"kind", "x"}});
  EXPECT_THAT(refused(json), HasSubstr("kind"));
  for (const Json& wrong : {Json(), Json(5), Json::array(), Json("method: rtn")})
    EXPECT_NE(refused(wrong), "") << wrong.dump();
}

// What `path: value` changes, besides naming what is made of what.
bool is_a_choice(const std::string& path) {
  for (const char* named : {"version", "model", "output", "method", "scheme"})
    if (path == named) return true;
  return false;
}

// "[a, b]" and "a" as --set takes them.
std::string value_text(const Yaml& value) {
  if (value.kind() != Yaml::Kind::kSequence) return value.as_string();
  std::string text;
  for (const Yaml& item : value.items()) text += (text.empty() ? "" : ", ") + item.as_string();
  return "[" + text + "]";
}

// Keys of `mapping` that say what a recipe without them does.
void find_repeated_defaults(const Yaml& mapping, const std::string& prefix, const std::string& file,
                            std::vector<std::string>& found) {
  for (const Yaml::Member& member : mapping.members()) {
    const std::string path = prefix + member.key;
    if (member.value.kind() == Yaml::Kind::kMapping) {
      find_repeated_defaults(member.value, path + ".", file, found);
      continue;
    }
    if (is_a_choice(path) || path == "overrides") continue;
    Recipe plain, set;
    for (Recipe* const recipe : {&plain, &set})
      if (prefix == "evaluate.") recipe->set("evaluate={}");
    set.set(path + "=" + value_text(member.value));
    if (set.to_json() == plain.to_json()) found.push_back(file + ": " + path);
  }
}

TEST(Recipe, PresetsStateOnlyWhatDiffersFromTheDefault) {
  std::vector<std::string> found;
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LLMQ_SOURCE_DIR) + "/recipes")) {
    const std::string text = read_text(system_io(), entry.path(), 1 << 20), name = entry.path().filename();
    EXPECT_FALSE(Recipe::parse(text, name).methods.empty()) << name;
    find_repeated_defaults(Yaml::parse(text, name), "", name, found);
    ++files;
  }
  EXPECT_THAT(found, ::testing::IsEmpty());
  EXPECT_GT(files, 10u);
  find_repeated_defaults(Yaml::parse("awq: {grid: 20, clip: false}\nevaluate: {max_kl: 0.1}\n", "r.yaml"), "",
                         "r.yaml", found);
  EXPECT_THAT(found, ElementsAre("r.yaml: awq.grid"));
}

}  // namespace
}  // namespace llmq
