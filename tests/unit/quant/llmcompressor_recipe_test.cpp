// llm-compressor's dialect: its own recipes, and what becomes of several modifiers together.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <sstream>

#include "quant/recipe/recipe.h"
#include "tests/unit/quant/recipe_error.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::llmcompressor_fixture;
using testing::recipe_error;

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
  std::istringstream lines(llmcompressor_fixture("recipes.txt")),
      expected(llmcompressor_fixture("outcomes.txt"));
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
  EXPECT_EQ(read("NVFP4").scheme, parse_scheme("nvfp4"));
  EXPECT_EQ(read("MXFP4").scheme, parse_scheme("mxfp4a4"));
  EXPECT_EQ(read("MXFP8").scheme, parse_scheme("mxfp8"));
  EXPECT_THAT(recipe_error("QuantizationModifier:\n  scheme: W4AFP8\n"),
              HasSubstr("r.yaml: 2:11: preset 'W4AFP8' is not written by llmq"));
}

TEST(LlmCompressorRecipe, FloatsInGroupsMayHaveRoundedInputs) {
  const auto said = [](const std::string& weights, const std::string& inputs) {
    return "QuantizationModifier: {config_groups: {g: {targets: [Linear], weights: {type: float, " + weights +
           "}" + (inputs.empty() ? "" : ", input_activations: {type: float, " + inputs + "}") + "}}}\n";
  };
  const auto read = [&](const std::string& weights, const std::string& inputs) {
    return Recipe::parse(said(weights, inputs), "r.yaml").scheme;
  };
  const std::string nvfp4 = "num_bits: 4, strategy: tensor_group, group_size: 16",
                    mxfp4 = "num_bits: 4, strategy: group, group_size: 32",
                    mxfp8 = "num_bits: 8, strategy: group, group_size: 32";
  EXPECT_EQ(read(nvfp4, ""), parse_scheme("nvfp4a16"));
  EXPECT_EQ(read(nvfp4, nvfp4 + ", dynamic: local"), parse_scheme("nvfp4"));
  EXPECT_EQ(read(mxfp4, ""), parse_scheme("mxfp4"));
  EXPECT_EQ(read(mxfp4, mxfp4 + ", dynamic: true"), parse_scheme("mxfp4a4"));
  EXPECT_EQ(read(mxfp8, mxfp8 + ", dynamic: true"), parse_scheme("mxfp8"));
  EXPECT_THAT(recipe_error(said(nvfp4, nvfp4 + ", dynamic: true")), HasSubstr("input_activations.dynamic: "));
  EXPECT_THAT(recipe_error(said(mxfp4, mxfp4 + ", dynamic: local")),
              HasSubstr("input_activations.dynamic: "));
  EXPECT_THAT(recipe_error(said(mxfp4, mxfp8 + ", dynamic: true")),
              HasSubstr("input_activations.num_bits: "));
  EXPECT_THAT(recipe_error(said("num_bits: 4, strategy: group, group_size: 16", "")),
              HasSubstr("weights.group_size: such floats come in groups of 32 here"));
  EXPECT_THAT(recipe_error(said("num_bits: 8, strategy: tensor_group, group_size: 16", "")),
              HasSubstr("weights.num_bits: floats of 8 bits are not written so"));
  EXPECT_THAT(recipe_error(said("num_bits: 8, strategy: channel", "num_bits: 8, dynamic: local")),
              HasSubstr("'local' belongs to NVFP4"));
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
  EXPECT_EQ(r.overrides[0].scheme->granularity, Granularity::kChannel);
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
  EXPECT_THAT(recipe_error("QuantizationModifier: {config_groups: {a: {weights: {symmetric: 'True'}}}}\n"),
              HasSubstr("1:65: expected true or false"));
  EXPECT_THAT(recipe_error("calibration: {shuffle: True}\n"), HasSubstr("1:24"));
}

TEST(LlmCompressorRecipe, RefusesWhatItCannotHonour) {
  EXPECT_THAT(recipe_error("quant_stage:\n  SparseGPTModifier: {}\n"),
              HasSubstr("2:3: modifier 'SparseGPTModifier' is not read by llmq"));
  EXPECT_THAT(recipe_error("GPTQModifier: {dampening: 1}\n"),
              HasSubstr("1:16: unknown key 'GPTQModifier.dampening'"));
  EXPECT_THAT(
      recipe_error(
          "QuantizationModifier: {config_groups: {a: {weights: {type: float}, targets: [Linear]}}}\n"),
      HasSubstr("'float'"));
  EXPECT_THAT(recipe_error("quant_stage: {}\n"), HasSubstr("holds no modifier"));
  EXPECT_THAT(recipe_error("quant_stage: 3\n"), HasSubstr("1:14"));
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
      recipe_error("GPTQModifier:\n  actorder: null\n  config_groups:\n    g:\n      weights:\n        "
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
  EXPECT_THAT(recipe_error("QuantizationModifier: {scheme: W4A16}\nGPTQModifier: {scheme: W8A16}\n"),
              HasSubstr("2:1: GPTQModifier brings a scheme, and so does QuantizationModifier"));
  EXPECT_THAT(recipe_error("QuantizationModifier: {scheme: W4A16}\nGPTQModifier: {ignore: [a]}\n"),
              HasSubstr("2:16: GPTQModifier.ignore belongs to a scheme"));
}

TEST(LlmCompressorRecipe, AModifierOfSeveralGroupsStandsOnce) {
  EXPECT_THAT(
      recipe_error("a_modifiers:\n  GPTQModifier: {scheme: W4A16, dampening_frac: 0.1}\nb_modifiers:\n  "
                   "GPTQModifier: {dampening_frac: 0.2}\n"),
      HasSubstr("r.yaml: 4:3: GPTQModifier stands twice"));
}

// Nothing that a recipe leaves to the original is quantized by default.
TEST(LlmCompressorRecipe, ARecipeWithoutAnySchemeIsRefused) {
  for (const char* text :
       {"SmoothQuantModifier: {smoothing_strength: 0.5}\n", "AWQModifier:\n", "GPTQModifier: {}\n"})
    EXPECT_THAT(recipe_error(text), HasSubstr("r.yaml: 1:1: no modifier says how weights are quantized"))
        << text;
  EXPECT_THAT(recipe_error("QuantizationModifier:\n  kv_cache_scheme: {type: float}\n"),
              HasSubstr("r.yaml: 2:3: kv_cache_scheme alone leaves all weights as they are"));
  EXPECT_THAT(recipe_error("QuantizationModifier: {targets: Linear}\n"),
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
      recipe_error("QuantizationModifier: {kv_cache_scheme: {type: int}}\nGPTQModifier: {scheme: W4A16, "
                   "kv_cache_scheme: {type: int}}\n"),
      HasSubstr("2:31: GPTQModifier.kv_cache_scheme is the second"));
}

TEST(LlmCompressorRecipe, FoldsStandBeforeWhatRoundsAndAreOne) {
  EXPECT_THAT(recipe_error("GPTQModifier: {scheme: W4A16}\nSmoothQuantModifier: {}\n"),
              HasSubstr("2:1: SmoothQuantModifier stands behind what rounds"));
  EXPECT_THAT(recipe_error("SmoothQuantModifier: {}\nAWQModifier: {}\nGPTQModifier: {scheme: W4A16}\n"),
              HasSubstr("2:1: AWQModifier is a second fold"));
  EXPECT_THAT(recipe_error("GPTQModifier: {scheme: FP8}\n"),
              HasSubstr("1:1: GPTQModifier chooses integer codes"));
  EXPECT_THAT(recipe_error("AWQModifier: {}\nQuantizationModifier: {scheme: FP8_BLOCK}\n"),
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
  EXPECT_THAT(recipe_error("GPTQModifier:\n  scheme: W4A16\n  targets: [Linear, Embedding]\n"),
              HasSubstr("3:12: target 'Embedding' is a class of modules"));
  EXPECT_THAT(recipe_error("GPTQModifier:\n  scheme: W4A16\n  ignore: [Linear]\n"),
              HasSubstr("3:3: GPTQModifier.ignore names every linear"));
}

TEST(LlmCompressorRecipe, FloatsAreOneOfTheSchemesOrRefusedWhereTheyDiffer) {
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
  EXPECT_THAT(recipe_error(recipe("strategy: channel", "null")),
              HasSubstr("5:23: weights.type: 'float' weights go with"));
  EXPECT_THAT(recipe_error(recipe("strategy: tensor", token)), HasSubstr("6:50: input_activations.strategy"));
  EXPECT_THAT(recipe_error(recipe("num_bits: 4, strategy: tensor_group, group_size: 16", token)),
              HasSubstr("input_activations.num_bits: inputs beside floats in groups"));
  EXPECT_THAT(recipe_error(recipe("strategy: group, group_size: 32", token)),
              HasSubstr("input_activations.strategy: inputs beside floats in groups"));
  EXPECT_THAT(recipe_error(recipe("strategy: channel, symmetric: false", token)),
              HasSubstr("weights.symmetric"));
  EXPECT_THAT(recipe_error(recipe("strategy: channel", "{type: int, strategy: token, dynamic: true}")),
              HasSubstr("input_activations.type"));
}

}  // namespace
}  // namespace llmq
