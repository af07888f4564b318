// llm-compressor's dialect: the table of keys, row by row.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "quant/recipe/llmcompressor_keys.h"
#include "quant/recipe/recipe.h"
#include "tests/unit/quant/recipe_error.h"

namespace llmq {
namespace {

using llmcompressor::Answer;
using llmcompressor::KeyRow;
using llmcompressor::Place;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::llmcompressor_fixture;
using testing::recipe_error;

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
  const std::string error = recipe_error(with_key(one, one.other));
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
  const std::string error = recipe_error(with_key(one, one.one));
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
  std::istringstream lines(llmcompressor_fixture("fields.txt"));
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
        recipe_error("quant_stage:\n  " + std::string(row.name) + ": {scheme: W4A16}\n");
    if (row.method.empty()) {
      EXPECT_THAT(error,
                  HasSubstr("r.yaml: 2:3: modifier '" + std::string(row.name) + "' is not read by llmq"));
      EXPECT_THAT(error, HasSubstr(std::string(row.words)));
    } else if (row.method != "smoothquant") {
      EXPECT_EQ(error, "");
    }
  }
  EXPECT_THAT(recipe_error("quant_stage:\n  NewModifier: {}\n"), HasSubstr("2:3: modifier 'NewModifier'"));
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

}  // namespace
}  // namespace llmq
