// llm-compressor's dialect: its own recipes, and the table of keys row by row.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/io.h"
#include "quant/recipe/llmcompressor_keys.h"
#include "quant/recipe/recipe.h"

namespace llmq {
namespace {

using llmcompressor::Answer;
using llmcompressor::KeyRow;
using llmcompressor::Place;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string dialect_error(const std::string& text) {
  try {
    Recipe::parse(text, "r.yaml");
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(exit_code(e.kind()), 2);
    return e.what();
  }
}

std::string fixture(const std::string& name) {
  return read_text(system_io(), std::string(LLMQ_SOURCE_DIR) + "/tests/fixtures/llmcompressor/" + name);
}

// What a recipe asks for, without what was noted beside it.
std::string job_of(const std::string& text) {
  Json json = Recipe::parse(text, "r.yaml").to_json();
  json.erase("notes");
  return json.dump();
}

// Recipes with "$" where a key may stand.
constexpr const char
    *kStage = "$\nGPTQModifier: {scheme: W4A16}\n",
    *kGptq = "GPTQModifier:\n  scheme: W4A16\n  $\n", *kBareGptq = "GPTQModifier:\n  $\n",
    *kRtn = "QuantizationModifier:\n  scheme: W4A16\n  $\n",
    *kAwq = "AWQModifier:\n  $\nQuantizationModifier: {scheme: W4A16}\n",
    *kSmooth = "SmoothQuantModifier:\n  $\nQuantizationModifier: {scheme: W8A8}\n",
    *kGroup = "GPTQModifier:\n  config_groups:\n    g:\n      weights: {num_bits: 8}\n      $\n",
    *kBareGroup = "GPTQModifier:\n  config_groups:\n    g:\n      $\n",
    *kBlocks =
        "QuantizationModifier:\n  config_groups:\n    g:\n      input_activations: {type: float, "
        "strategy: group, group_size: 128, dynamic: true}\n      weights:\n        type: "
        "float\n        strategy: block\n        $\n",
    *kBlockInputs =
        "QuantizationModifier:\n  config_groups:\n    g:\n      weights: {type: float, "
        "strategy: block, block_structure: [128, 128]}\n      input_activations:\n        "
        "type: float\n        strategy: group\n        dynamic: true\n        $\n",
    *kKv = "GPTQModifier:\n  scheme: W4A16\n  kv_cache_scheme:\n    num_bits: 8\n    $\n",
    *kBareKv = "GPTQModifier:\n  scheme: W4A16\n  kv_cache_scheme:\n    $\n";

std::string weights_beside(const std::string& arguments) {
  return "GPTQModifier:\n  config_groups:\n    g:\n      weights:\n" +
         (arguments.empty() ? "" : "        " + arguments + "\n") + "        $\n";
}

std::string inputs_beside(const std::string& arguments) {
  return "GPTQModifier:\n  config_groups:\n    g:\n      weights: {num_bits: 8}\n      input_activations:\n" +
         (arguments.empty() ? "" : "        " + arguments + "\n") + "        $\n";
}

// Two values of each key, and a recipe in which it may stand.
struct KeyCase {
  Place place;
  const char* key;
  std::string around;
  const char *one, *other;
};

std::vector<KeyCase> key_cases() {
  const char *mapped = R"([[["re:.*fc1"], "re:.*norm"]])",
             *mapped_otherwise = R"([[["re:.*q_proj"], "re:.*norm"]])";
  return {
      {Place::kStage, "run_type", kStage, "train", "twice"},
      {Place::kStage, "args", kStage, "{a: 1}", "{a: 2}"},
      {Place::kModifier, "index", kGptq, "1", "2"},
      {Place::kModifier, "group", kGptq, "a", "b"},
      {Place::kModifier, "start", kGptq, "0.0", "1.5"},
      {Place::kModifier, "end", kGptq, "1", "2"},
      {Place::kModifier, "update", kGptq, "1", "2"},
      {Place::kModifier, "requires_calibration_data", kGptq, "true", "false"},
      {Place::kModifier, "sequential_targets", kGptq, "[LlamaDecoderLayer]", "[Linear]"},
      {Place::kModifier, "sequential_update", kGptq, "false", "no"},
      {Place::kQuantizer, "targets", kRtn, "Linear", "['re:.*mlp.*']"},
      {Place::kQuantizer, "ignore", kRtn, "[lm_head]", "['re:.*k_proj']"},
      {Place::kQuantizer, "scheme", kBareGptq, "W4A16", "{W8A16: ['re:.*mlp.*']}"},
      {Place::kQuantizer, "config_groups", kBareGptq, "{a: {weights: {num_bits: 4}}}",
       "{a: {weights: {num_bits: 3}}}"},
      {Place::kQuantizer, "kv_cache_scheme", kGptq, "{type: float}", "{type: int}"},
      {Place::kQuantizer, "weight_observer", kGptq, "mse", "memoryless_minmax"},
      {Place::kQuantizer, "input_observer", kGptq, "mse", "minmax"},
      {Place::kQuantizer, "output_observer", kGptq, "mse", "minmax"},
      {Place::kQuantizer, "observer", kGptq, "{weights: mse}", "{weights: imatrix_mse}"},
      {Place::kQuantizer, "bypass_divisibility_checks", kGptq, "true", "True"},
      {Place::kAwq, "duo_scaling", kAwq, "true", "false"},
      {Place::kAwq, "n_grid", kAwq, "10", "30"},
      {Place::kAwq, "mappings", kAwq, "[{smooth_layer: a, balance_layers: [b]}]", "[{smooth_layer: b}]"},
      {Place::kAwq, "offload_device", kAwq, "cpu", "cuda"},
      {Place::kGptq, "dampening_frac", kGptq, "0.02", "0.9"},
      {Place::kGptq, "actorder", kGptq, "group", "static"},
      {Place::kGptq, "block_size", kGptq, "64", "256"},
      {Place::kGptq, "batched_quantization", kGptq, "auto", "4"},
      {Place::kGptq, "offload_hessians", kGptq, "true", "false"},
      {Place::kSmoothQuant, "smoothing_strength", kSmooth, "0.7", "0.8"},
      {Place::kSmoothQuant, "algorithm", kSmooth, "smoothquant", "log_equalization"},
      {Place::kSmoothQuant, "mappings", kSmooth, mapped, mapped_otherwise},
      {Place::kSmoothQuant, "ignore", kSmooth, "[model.decoder.final_layer_norm]", "[a]"},
      {Place::kSmoothQuant, "num_calibration_steps", kSmooth, "8", "16"},
      {Place::kSmoothQuant, "calibration_function", kSmooth, "f", "g"},
      {Place::kGroup, "targets", kGroup, "[Linear]", "['re:.*mlp.*']"},
      {Place::kGroup, "weights", kBareGroup, "{num_bits: 4}", "{num_bits: 3}"},
      {Place::kGroup, "input_activations", kGroup, "{strategy: token, dynamic: true}", "{strategy: tensor}"},
      {Place::kGroup, "output_activations", kGroup, "{num_bits: 8}", "{num_bits: 4}"},
      {Place::kGroup, "format", kGroup, "pack-quantized", "int-quantized"},
      {Place::kWeights, "num_bits", weights_beside(""), "3", "4"},
      {Place::kWeights, "type", weights_beside("strategy: channel"), "int", "float"},
      {Place::kWeights, "symmetric", weights_beside("num_bits: 4"), "true", "false"},
      {Place::kWeights, "strategy", weights_beside("num_bits: 4"), "channel", "tensor"},
      {Place::kWeights, "group_size", weights_beside("num_bits: 4"), "32", "64"},
      {Place::kWeights, "block_structure", kBlocks, "[128, 128]", "[64, 128]"},
      {Place::kWeights, "dynamic", weights_beside("num_bits: 4"), "false", "true"},
      {Place::kWeights, "actorder", weights_beside("num_bits: 4"), "group", "weight"},
      {Place::kWeights, "observer", weights_beside("num_bits: 4"), "mse", "memoryless_minmax"},
      {Place::kWeights, "observer_kwargs", weights_beside("num_bits: 4"), "{grid: 20}", "{grid: 30}"},
      {Place::kWeights, "scale_dtype", weights_beside("num_bits: 4"), "float16", "torch.uint8"},
      {Place::kWeights, "zp_dtype", weights_beside("num_bits: 4"), "torch.int8", "float8_e4m3fn"},
      {Place::kInputs, "num_bits", inputs_beside(""), "8", "4"},
      {Place::kInputs, "type", inputs_beside(""), "int", "float"},
      {Place::kInputs, "symmetric", inputs_beside(""), "true", "false"},
      {Place::kInputs, "strategy", inputs_beside("dynamic: true"), "token", "tensor"},
      {Place::kInputs, "group_size", kBlockInputs, "128", "64"},
      {Place::kInputs, "block_structure", inputs_beside("num_bits: 8"), "[1, 128]", "[1, 64]"},
      {Place::kInputs, "dynamic", inputs_beside("strategy: tensor"), "false", "true"},
      {Place::kInputs, "actorder", inputs_beside("num_bits: 8"), "static", "group"},
      {Place::kInputs, "observer", inputs_beside("num_bits: 8"), "minmax", "static_minmax"},
      {Place::kInputs, "observer_kwargs", inputs_beside("num_bits: 8"), "{grid: 20}", "{grid: 30}"},
      {Place::kInputs, "scale_dtype", inputs_beside("num_bits: 8"), "float16", "float32"},
      {Place::kInputs, "zp_dtype", inputs_beside("num_bits: 8"), "torch.int8", "float8_e4m3fn"},
      {Place::kKvCache, "num_bits", kBareKv, "8", "4"},
      {Place::kKvCache, "type", kKv, "float", "int"},
      {Place::kKvCache, "symmetric", kKv, "true", "false"},
      {Place::kKvCache, "strategy", kKv, "tensor", "attn_head"},
      {Place::kKvCache, "group_size", kKv, "64", "128"},
      {Place::kKvCache, "block_structure", kKv, "[1, 128]", "[1, 64]"},
      {Place::kKvCache, "dynamic", kKv, "false", "true"},
      {Place::kKvCache, "actorder", kKv, "static", "group"},
      {Place::kKvCache, "observer", kKv, "minmax", "static_minmax"},
      {Place::kKvCache, "observer_kwargs", kKv, "{grid: 20}", "{grid: 30}"},
      {Place::kKvCache, "scale_dtype", kKv, "float16", "float32"},
      {Place::kKvCache, "zp_dtype", kKv, "torch.int8", "float8_e4m3fn"},
  };
}

// The recipe with the key, and without it where `value` is empty.
std::string with_key(const KeyCase& one, const std::string& value) {
  std::string text = one.around;
  const std::size_t at = text.find('$');
  return text.replace(at, 1, value.empty() ? "" : std::string(one.key) + ": " + value);
}

std::string line_of(const KeyCase& one) {
  return std::to_string(1 + std::count(one.around.begin(), one.around.begin() + one.around.find('$'), '\n')) +
         ":";
}

// Two values give two jobs, or the second is refused at its line, by its name; nothing is noted.
void expect_honoured(const KeyCase& one) {
  const Recipe read = Recipe::parse(with_key(one, one.one), "r.yaml");
  EXPECT_THAT(read.notes, IsEmpty());
  const std::string error = dialect_error(with_key(one, one.other));
  if (error.empty()) {
    EXPECT_NE(job_of(with_key(one, one.one)), job_of(with_key(one, one.other)));
    return;
  }
  EXPECT_THAT(error, HasSubstr("r.yaml: " + line_of(one)));
  EXPECT_THAT(error, HasSubstr(one.key));
}

// The job is that without the key, and a warning says where the key stands, what it asks and what is done.
void expect_noted(const KeyCase& one, const KeyRow& row, const char* value) {
  const Recipe read = Recipe::parse(with_key(one, value), "r.yaml");
  ASSERT_EQ(read.notes.size(), 1u) << read.to_json().dump();
  EXPECT_THAT(read.notes[0], ::testing::StartsWith(line_of(one)));
  for (const std::string& part : {std::string(one.key) + ": ", std::string(value), std::string(row.words)})
    EXPECT_THAT(read.notes[0], HasSubstr(part));
  EXPECT_EQ(job_of(with_key(one, value)), job_of(with_key(one, "")));
}

void expect_refused(const KeyCase& one, const KeyRow& row) {
  const std::string error = dialect_error(with_key(one, one.one));
  for (const std::string& part : {"r.yaml: " + line_of(one), std::string(one.key), std::string(row.words)})
    EXPECT_THAT(error, HasSubstr(part));
  EXPECT_EQ(job_of(with_key(one, "null")), job_of(with_key(one, "")));
}

// Whoever adds a row adds a case; a key that is read and dropped fails here.
TEST(LlmCompressorTable, EveryKeyIsHonouredNotedOrRefused) {
  std::map<std::pair<Place, std::string>, KeyCase> cases;
  for (const KeyCase& one : key_cases())
    EXPECT_TRUE(cases.emplace(std::pair{one.place, one.key}, one).second) << one.key;
  for (const KeyRow& row : llmcompressor::key_rows()) {
    SCOPED_TRACE(std::string(llmcompressor::place_name(row.place)) + ": " + std::string(row.key));
    const auto found = cases.find({row.place, std::string(row.key)});
    ASSERT_NE(found, cases.end()) << "the row has no case";
    const KeyCase& one = found->second;
    EXPECT_EQ(row.read != nullptr, row.answer == Answer::kHonoured);
    EXPECT_FALSE(row.words.empty());
    if (row.answer == Answer::kHonoured) expect_honoured(one);
    if (row.answer == Answer::kNoted) expect_noted(one, row, one.one), expect_noted(one, row, one.other);
    if (row.answer == Answer::kRefused) expect_refused(one, row);
  }
  EXPECT_EQ(cases.size(), llmcompressor::key_rows().size());
}

// tests/interop/make_llmcompressor_recipes.py wrote the list.
TEST(LlmCompressorTable, KnowsEveryModifierAndFieldOfItsVersion) {
  const std::map<std::string, std::vector<Place>> places = {
      {"Modifier", {Place::kModifier}},
      {"QuantizationMixin", {Place::kQuantizer}},
      {"AWQModifier", {Place::kAwq, Place::kModifier}},
      {"GPTQModifier", {Place::kGptq, Place::kModifier}},
      {"SmoothQuantModifier", {Place::kSmoothQuant, Place::kModifier}},
      {"QuantizationScheme", {Place::kGroup}},
      {"QuantizationArgs", {Place::kWeights}},
  };
  const auto has_row = [](Place place, const std::string& key) {
    const auto rows = llmcompressor::key_rows();
    return std::any_of(rows.begin(), rows.end(),
                       [&](const KeyRow& row) { return row.place == place && row.key == key; });
  };
  std::istringstream lines(fixture("fields.txt"));
  std::set<std::string> modifiers;
  std::size_t fields = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    if (space == std::string::npos && name.ends_with("Modifier") && name != "Modifier")
      modifiers.insert(name);
    const auto of_class = places.find(name);
    if (space == std::string::npos || of_class == places.end()) continue;
    ++fields;
    const std::string key = line.substr(space + 1);
    EXPECT_TRUE(std::any_of(of_class->second.begin(), of_class->second.end(), [&](Place place) {
      return has_row(place, key);
    })) << line;
    if (name != "QuantizationArgs") continue;
    EXPECT_TRUE(has_row(Place::kInputs, key) && has_row(Place::kKvCache, key)) << line;
  }
  EXPECT_GT(fields, 45u);
  std::set<std::string> known;
  for (const llmcompressor::ModifierRow& row : llmcompressor::modifier_rows()) known.emplace(row.name);
  EXPECT_EQ(modifiers, known);
}

TEST(LlmCompressorTable, EveryModifierIsReadOrRefusedByItsName) {
  for (const llmcompressor::ModifierRow& row : llmcompressor::modifier_rows()) {
    const std::string error =
        dialect_error("quant_stage:\n  " + std::string(row.name) + ": {scheme: W4A16}\n");
    if (row.method.empty()) {
      EXPECT_THAT(error,
                  HasSubstr("r.yaml: 2:3: modifier '" + std::string(row.name) + "' is not read by llmq"));
      EXPECT_THAT(error, HasSubstr(std::string(row.words)));
    } else if (row.method != "smoothquant") {
      EXPECT_EQ(error, "");
    }
  }
  EXPECT_THAT(dialect_error("quant_stage:\n  NewModifier: {}\n"), HasSubstr("2:3: modifier 'NewModifier'"));
}

// Users read the table there.
TEST(LlmCompressorTable, ThePageOfTheGuideIsTheTable) {
  std::string table = "| where | key | | what it is here, or what is done instead |\n|---|---|---|---|\n";
  std::string_view place;
  for (const KeyRow& row : llmcompressor::key_rows()) {
    const std::string_view here = llmcompressor::place_name(row.place);
    const char* const answer = row.answer == Answer::kHonoured ? "honoured"
                               : row.answer == Answer::kNoted  ? "noted"
                                                               : "refused";
    table += fmt::format("| {} | `{}` | {} | {} |\n", here == place ? "" : here, row.key, answer, row.words);
    place = here;
  }
  const std::string page =
      read_text(system_io(), std::string(LLMQ_SOURCE_DIR) + "/docs/guides/llm-compressor.md");
  EXPECT_THAT(page, HasSubstr(table));
}

// What a recipe of llm-compressor becomes, in a line.
std::string outcome_of(const std::string& text) {
  try {
    const Recipe r = Recipe::parse(text, "r.yaml");
    const Json json = r.to_json();
    std::string words;
    for (const std::string& method : r.methods) words += (words.empty() ? "" : ",") + method;
    const auto scheme = [](const Json& one) {
      std::string listed;
      for (const Json::Member& m : one.members())
        listed += (listed.empty() ? "" : " ") + m.first + "=" +
                  (m.second.is_string() ? m.second.as_string() : m.second.dump());
      return listed;
    };
    if (r.scheme) words += " {" + scheme(json.at("scheme")) + "}";
    for (const Json& one : json.at("overrides").items())
      words += " " + one.at("match").as_string() + " {" + scheme(one.at("scheme")) + "}";
    if (!r.targets.empty()) words += " targets " + json.at("targets").dump();
    if (r.kv_cache) words += " kv_cache " + json.at("kv_cache").at("dtype").as_string();
    if (!(r.gptq == GptqOptions{}))
      words += " order " + json.at("gptq").at("order").as_string() + fmt::format(" damp {:g}", r.gptq.damp);
    if (r.notes.empty()) return words;
    return words + fmt::format(" (noted: {})", r.notes.size());
  } catch (const Error& e) {
    return e.what();
  }
}

// llm-compressor's own recipes; outcomes.txt has a line for each.
TEST(LlmCompressorRecipe, EveryExampleOfItsOwnWorksOrIsRefusedByName) {
  std::istringstream lines(fixture("recipes.txt")), expected(fixture("outcomes.txt"));
  std::string origin, text, found;
  std::size_t read = 0, refused = 0;
  const auto finish = [&] {
    if (origin.empty()) return;
    const std::string outcome = outcome_of(text);
    (outcome.starts_with("r.yaml: ") ? refused : read) += 1;
    std::string line;
    std::getline(expected, line);
    found += origin + ": " + outcome + "\n";
    EXPECT_EQ(line, origin + ": " + outcome);
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# == ")) {
      finish();
      origin = line.substr(5);
      text.clear();
    } else {
      text += line + "\n";
    }
  }
  finish();
  EXPECT_GT(read, 30u);
  EXPECT_GT(refused, 30u);
  if (HasFailure()) std::cout << found;
}

TEST(LlmCompressorRecipe, TransformAndQuantizerAreAwq) {
  const Recipe r = Recipe::parse(
      "quant_stage:\n  quant_modifiers:\n    AWQModifier: {duo_scaling: both, n_grid: 30, mappings: null}\n  "
      "  QuantizationModifier:\n"
      "      ignore: [lm_head, 're:.*vision.*']\n      config_groups:\n        group_0:\n"
      "          weights: {num_bits: 4, type: int, symmetric: false, strategy: group, group_size: 64}\n"
      "          input_activations: null\n          targets: [Linear]\n",
      "r.yaml");
  EXPECT_THAT(r.methods, ElementsAre("awq"));
  EXPECT_EQ(r.awq.grid, 30);
  EXPECT_EQ(r.awq.duo_scaling, AwqOptions::Duo::kBoth);
  ASSERT_TRUE(r.scheme);
  EXPECT_EQ(r.scheme->bits, 4);
  EXPECT_EQ(r.scheme->group_size, 64);
  EXPECT_EQ(r.scheme->symmetric, false);
  EXPECT_TRUE(r.targets.empty());
  EXPECT_THAT(r.ignore, ElementsAre("lm_head", "re:.*vision.*"));
}

TEST(LlmCompressorRecipe, PresetsMeanWhatCompressedTensorsSays) {
  const auto read = [](const std::string& preset) {
    return Recipe::parse(
        "QuantizationModifier: {scheme: " + preset + ", targets: Linear, ignore: [lm_head]}\n", "r.yaml");
  };
  EXPECT_THAT(read("W4A16").methods, ElementsAre("rtn"));
  EXPECT_EQ(read("W4A16").scheme, (SchemeRequest{4, 16, Granularity::kGroup, 128, true}));
  EXPECT_EQ(read("w4a16_asym").scheme, (SchemeRequest{4, 16, Granularity::kGroup, 128, false}));
  EXPECT_EQ(read("W8A16").scheme, (SchemeRequest{8, 16, Granularity::kGroup, 128, true}));
  EXPECT_EQ(read("W8A8").scheme, (SchemeRequest{8, 8, Granularity::kChannel, std::nullopt, true}));
  EXPECT_EQ(read("FP8").scheme, parse_scheme("fp8_static"));
  EXPECT_EQ(read("FP8_DYNAMIC").scheme, parse_scheme("fp8"));
  EXPECT_EQ(read("FP8_BLOCK").scheme, parse_scheme("fp8_block"));
  EXPECT_THAT(dialect_error("QuantizationModifier:\n  scheme: NVFP4\n"),
              HasSubstr("r.yaml: 2:11: preset 'NVFP4' is not written by llmq"));
}

TEST(LlmCompressorRecipe, ReadsTheDocumentedExampleAndNotesWhatIsNotFollowed) {
  const Recipe r = Recipe::parse(
      "quant_stage:\n  quant_modifiers:\n"
      "    SmoothQuantModifier: {smoothing_strength: 0.8, mappings: [[['re:.*q_proj', 're:.*k_proj', "
      "'re:.*v_proj'], 're:.*input_layernorm']]}\n"
      "    GPTQModifier:\n      ignore: [lm_head]\n      actorder: group\n      dampening_frac: 0.01\n      "
      "block_size: 128\n"
      "      config_groups:\n        group_0:\n          weights: {num_bits: 4, type: int, symmetric: true, "
      "strategy: group, group_size: 128}\n"
      "          input_activations: null\n          targets: [Linear]\n",
      "r.yaml");
  EXPECT_THAT(r.methods, ElementsAre("smoothquant", "gptq"));
  EXPECT_EQ(r.smoothquant.alpha, 0.8);
  EXPECT_EQ(r.gptq.order, RoundingOrder::kAct);
  ASSERT_EQ(r.notes.size(), 2u);
  EXPECT_EQ(r.notes[0],
            "3:52: SmoothQuantModifier.mappings: [[[\"re:.*q_proj\", \"re:.*k_proj\", \"re:.*v_proj\"], "
            "\"re:.*input... is not followed: scales are folded wherever the model's family allows");
  EXPECT_THAT(r.notes[1], HasSubstr("8:7: GPTQModifier.block_size: 128 is not followed"));
}

TEST(LlmCompressorRecipe, SeveralGroupsBecomeOverrides) {
  const Recipe r = Recipe::parse(
      "QuantizationModifier:\n  config_groups:\n    a: {weights: {num_bits: 4, strategy: group, group_size: "
      "32}, targets: [Linear]}\n"
      "    b: {weights: {num_bits: 8, strategy: channel}, targets: ['re:.*down_proj']}\n",
      "r.yaml");
  EXPECT_EQ(r.scheme->group_size, 32);
  ASSERT_EQ(r.overrides.size(), 1u);
  EXPECT_EQ(r.overrides[0].match, "re:.*down_proj");
  EXPECT_EQ(r.overrides[0].scheme.granularity, Granularity::kChannel);
  EXPECT_TRUE(r.targets.empty());
}

// PyYAML's other spellings stand in recipes that people have; llmq's own form stays strict.
TEST(LlmCompressorRecipe, ReadsTrueAndFalseAsPyYamlDoes) {
  for (const char* word : {"true", "True", "TRUE", "false", "False", "FALSE"}) {
    const Recipe r = Recipe::parse(
        "QuantizationModifier: {config_groups: {a: {weights: {num_bits: 4, strategy: group, group_size: 32, "
        "dynamic: False, symmetric: " +
            std::string(word) + "}, targets: [Linear]}}}\n",
        "r.yaml");
    const bool expected = word[0] == 't' || word[0] == 'T';
    EXPECT_EQ(r.scheme->symmetric, expected) << word;
    const Recipe duo =
        Recipe::parse("AWQModifier: {duo_scaling: " + std::string(word) + ", scheme: W4A16}\n", "r.yaml");
    EXPECT_EQ(duo.awq.duo_scaling, expected ? AwqOptions::Duo::kYes : AwqOptions::Duo::kNo) << word;
  }
  EXPECT_THAT(dialect_error("QuantizationModifier: {config_groups: {a: {weights: {symmetric: 'True'}}}}\n"),
              HasSubstr("1:65: expected true or false"));
  EXPECT_THAT(dialect_error("calibration: {shuffle: True}\n"), HasSubstr("1:24"));
}

TEST(LlmCompressorRecipe, RefusesWhatItCannotHonour) {
  EXPECT_THAT(dialect_error("quant_stage:\n  SparseGPTModifier: {}\n"),
              HasSubstr("2:3: modifier 'SparseGPTModifier' is not read by llmq"));
  EXPECT_THAT(dialect_error("GPTQModifier: {dampening: 1}\n"),
              HasSubstr("1:16: unknown key 'GPTQModifier.dampening'"));
  EXPECT_THAT(
      dialect_error(
          "QuantizationModifier: {config_groups: {a: {weights: {type: float}, targets: [Linear]}}}\n"),
      HasSubstr("'float'"));
  EXPECT_THAT(dialect_error("quant_stage: {}\n"), HasSubstr("holds no modifier"));
  EXPECT_THAT(dialect_error("quant_stage: 3\n"), HasSubstr("1:14"));
}

// As llm-compressor resolves it: the modifier's order, or that of the weights, which must not differ.
TEST(LlmCompressorRecipe, ColumnsHaveOneOrder) {
  const auto order = [](const std::string& modifier, const std::string& weights) {
    const Recipe r = Recipe::parse(
        "GPTQModifier:\n  " + modifier +
            "\n  config_groups:\n    g: {targets: [Linear], weights: {num_bits: 4, " + weights + "}}\n",
        "r.yaml");
    EXPECT_THAT(r.notes, IsEmpty());
    return r.gptq.order;
  };
  EXPECT_EQ(order("actorder: weight", "symmetric: true"), RoundingOrder::kStatic);
  EXPECT_EQ(order("actorder: static", "actorder: weight"), RoundingOrder::kStatic);
  EXPECT_EQ(order("targets: Linear", "actorder: dynamic"), RoundingOrder::kAct);
  EXPECT_EQ(order("actorder: null", "actorder: False"), RoundingOrder::kNone);
  EXPECT_EQ(order("targets: Linear", "actorder: null"), GptqOptions{}.order);
  EXPECT_THAT(
      dialect_error("GPTQModifier:\n  actorder: null\n  config_groups:\n    g:\n      weights:\n        "
                    "actorder: static\n"),
      HasSubstr("r.yaml: 6:9: weights.actorder is another than one before it"));
  const Recipe plain = Recipe::parse(
      "QuantizationModifier: {config_groups: {g: {weights: {num_bits: 4, actorder: weight}}}}\n", "r.yaml");
  ASSERT_EQ(plain.notes.size(), 1u);
  EXPECT_THAT(plain.notes[0], HasSubstr("actorder: weight is not followed: nothing but GPTQModifier"));
}

TEST(LlmCompressorRecipe, ASchemeOfOneModifierIsRoundedByAnother) {
  const Recipe r = Recipe::parse(
      "quant_stage:\n  quant_modifiers:\n    QuantizationModifier: {ignore: [lm_head], scheme: W4A16_ASYM}\n "
      "   "
      "GPTQModifier: {dampening_frac: 0.001}\n",
      "r.yaml");
  EXPECT_THAT(r.methods, ElementsAre("gptq"));
  EXPECT_EQ(r.gptq.damp, 0.001);
  EXPECT_EQ(r.scheme, parse_scheme("w4a16_g128_asym"));
  EXPECT_THAT(dialect_error("QuantizationModifier: {scheme: W4A16}\nGPTQModifier: {scheme: W8A16}\n"),
              HasSubstr("2:1: GPTQModifier brings a scheme, and so does QuantizationModifier"));
  EXPECT_THAT(dialect_error("QuantizationModifier: {scheme: W4A16}\nGPTQModifier: {ignore: [a]}\n"),
              HasSubstr("2:16: GPTQModifier.ignore belongs to a scheme"));
}

TEST(LlmCompressorRecipe, AModifierOfSeveralGroupsStandsOnce) {
  EXPECT_THAT(
      dialect_error("a_modifiers:\n  GPTQModifier: {scheme: W4A16, dampening_frac: 0.1}\nb_modifiers:\n  "
                    "GPTQModifier: {dampening_frac: 0.2}\n"),
      HasSubstr("r.yaml: 4:3: GPTQModifier stands twice"));
}

// Nothing that a recipe leaves to the original is quantized by default.
TEST(LlmCompressorRecipe, ARecipeWithoutAnySchemeIsRefused) {
  for (const char* text :
       {"SmoothQuantModifier: {smoothing_strength: 0.5}\n", "AWQModifier:\n", "GPTQModifier: {}\n"})
    EXPECT_THAT(dialect_error(text), HasSubstr("r.yaml: 1:1: no modifier says how weights are quantized"))
        << text;
  EXPECT_THAT(dialect_error("QuantizationModifier:\n  kv_cache_scheme: {type: float}\n"),
              HasSubstr("r.yaml: 2:3: kv_cache_scheme alone leaves all weights as they are"));
  EXPECT_THAT(dialect_error("QuantizationModifier: {targets: Linear}\n"),
              HasSubstr("1:1: QuantizationModifier quantizes nothing"));
}

TEST(LlmCompressorRecipe, KeysAndValuesMayComeFromAModifierOfTheirOwn) {
  const Recipe r = Recipe::parse(
      "QuantizationModifier:\n  ignore: [lm_head]\n  kv_cache_scheme: {num_bits: 8, type: float, strategy: "
      "tensor, "
      "dynamic: false, symmetric: true}\nGPTQModifier: {scheme: W4A16}\n",
      "r.yaml");
  EXPECT_EQ(r.kv_cache, KvCacheType::kFloat8);
  EXPECT_THAT(r.methods, ElementsAre("gptq"));
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_THAT(r.notes[0], HasSubstr("2:3: QuantizationModifier.ignore: [lm_head] is not followed"));
  EXPECT_THAT(
      dialect_error("QuantizationModifier: {kv_cache_scheme: {type: int}}\nGPTQModifier: {scheme: W4A16, "
                    "kv_cache_scheme: {type: int}}\n"),
      HasSubstr("2:31: GPTQModifier.kv_cache_scheme is the second"));
}

TEST(LlmCompressorRecipe, FoldsStandBeforeWhatRoundsAndAreOne) {
  EXPECT_THAT(dialect_error("GPTQModifier: {scheme: W4A16}\nSmoothQuantModifier: {}\n"),
              HasSubstr("2:1: SmoothQuantModifier stands behind what rounds"));
  EXPECT_THAT(dialect_error("SmoothQuantModifier: {}\nAWQModifier: {}\nGPTQModifier: {scheme: W4A16}\n"),
              HasSubstr("2:1: AWQModifier is a second fold"));
  EXPECT_THAT(dialect_error("GPTQModifier: {scheme: FP8}\n"),
              HasSubstr("1:1: GPTQModifier chooses integer codes"));
  EXPECT_THAT(dialect_error("AWQModifier: {}\nQuantizationModifier: {scheme: FP8_BLOCK}\n"),
              HasSubstr("1:1: AWQModifier chooses integer codes"));
}

// Names before patterns, and of patterns the first of the alphabet; llmq's overrides the last that matches.
TEST(LlmCompressorRecipe, OfSeveralGroupsTheOneThatLlmCompressorPrefersWins) {
  const auto group = [](const char* name, int bits, const char* target) {
    return fmt::format("    {}: {{weights: {{num_bits: {}}}, targets: ['{}']}}\n", name, bits, target);
  };
  const Recipe r = Recipe::parse(
      "QuantizationModifier:\n  config_groups:\n" + group("a", 3, "model.layers.0.mlp.up_proj") +
          group("b", 4, "re:.*mlp.*") + group("c", 5, "Linear") + group("d", 6, "re:.*up_proj"),
      "r.yaml");
  std::vector<std::string> order;
  for (const SchemeOverride& one : r.overrides) order.push_back(one.match);
  EXPECT_THAT(order, ElementsAre("re:.*up_proj", "re:.*mlp.*", "model.layers.0.mlp.up_proj"));
  EXPECT_EQ(r.scheme->bits, 5);
  EXPECT_THAT(r.targets, IsEmpty());
}

TEST(LlmCompressorRecipe, TargetsAreLinears) {
  const Recipe r =
      Recipe::parse("GPTQModifier: {scheme: W4A16, targets: [Linear, 're:.*mlp.*']}\n", "r.yaml");
  EXPECT_THAT(r.targets, IsEmpty());
  EXPECT_THAT(dialect_error("GPTQModifier:\n  scheme: W4A16\n  targets: [Linear, Embedding]\n"),
              HasSubstr("3:12: target 'Embedding' is a class of modules"));
  EXPECT_THAT(dialect_error("GPTQModifier:\n  scheme: W4A16\n  ignore: [Linear]\n"),
              HasSubstr("3:3: GPTQModifier.ignore names every linear"));
}

TEST(LlmCompressorRecipe, FloatsAreOneOfThreeSchemesOrRefusedWhereTheyDiffer) {
  const auto recipe = [](const std::string& weights, const std::string& inputs) {
    return "QuantizationModifier:\n  config_groups:\n    g:\n      targets: [Linear]\n      weights: {type: "
           "float, " +
           weights + "}\n      input_activations: " + inputs + "\n";
  };
  const auto read = [&](const std::string& weights, const std::string& inputs) {
    return *Recipe::parse(recipe(weights, inputs), "r.yaml").scheme;
  };
  const std::string token = "{type: float, strategy: token, dynamic: true}",
                    tensor = "{type: float, strategy: tensor}";
  EXPECT_EQ(read("strategy: channel", token), parse_scheme("fp8"));
  EXPECT_EQ(read("strategy: tensor", tensor), parse_scheme("fp8_static"));
  EXPECT_EQ(read("num_bits: 8", "{num_bits: 8, type: FLOAT}"), parse_scheme("fp8_static"));
  EXPECT_EQ(read("strategy: block, block_structure: 128x128",
                 "{type: float, strategy: group, group_size: 128, dynamic: true}"),
            parse_scheme("fp8_block"));
  EXPECT_THAT(dialect_error(recipe("strategy: channel", "null")),
              HasSubstr("5:23: weights.type: 'float' weights go with"));
  EXPECT_THAT(dialect_error(recipe("strategy: tensor", token)),
              HasSubstr("6:50: input_activations.strategy"));
  EXPECT_THAT(dialect_error(recipe("num_bits: 4, strategy: tensor_group, group_size: 16", token)),
              HasSubstr("weights.num_bits: floats of 4 bits"));
  EXPECT_THAT(dialect_error(recipe("strategy: group, group_size: 32", token)),
              HasSubstr("weights.strategy: floats by 'group'"));
  EXPECT_THAT(dialect_error(recipe("strategy: channel, symmetric: false", token)),
              HasSubstr("weights.symmetric"));
  EXPECT_THAT(dialect_error(recipe("strategy: channel", "{type: int, strategy: token, dynamic: true}")),
              HasSubstr("input_activations.type"));
}

}  // namespace
}  // namespace llmq
