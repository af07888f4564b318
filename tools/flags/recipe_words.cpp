#include "tools/flags/recipe_words.h"

#include "base/error.h"

namespace llmq::tools {

void add_recipe_words(CLI::App& command, RecipeWords& words) {
  command
      .add_option("--recipe", words.recipe,
                  "What to do, in YAML: llmq's own form, or an llm-compressor recipe")
      ->type_name("FILE");
  command
      .add_option("--method", words.method,
                  "rtn, awq, gptq, smoothquant, or a list such as awq,gptq; imatrix for GGUF; overrides "
                  "the recipe")
      ->type_name("NAME");
  command
      .add_option("--set", words.settings,
                  "Change one key of the recipe, such as scheme=w4a16_g64_asym or calibration.samples=64")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

Recipe named_recipe(const RecipeWords& words) {
  Recipe recipe;
  recipe.source = "command line";
  if (!words.recipe.empty()) recipe = Recipe::load(system_io(), words.recipe);
  for (const std::string& setting : words.settings) recipe.set(setting);
  if (!words.method.empty()) {  // awq,gptq is the list [awq, gptq]
    const bool list = words.method.find(',') != std::string::npos && words.method.front() != '[';
    recipe.set("method=" + (list ? "[" + words.method + "]" : words.method));
  }
  return recipe;
}

void need_given(bool given, const char* what, const char* flag) {
  if (!given)
    fail(ErrorKind::kUsage,
         {fmt::format("no {} is given", what), {}, flag, fmt::format("add {} or set it in a recipe", flag)});
}

}  // namespace llmq::tools
