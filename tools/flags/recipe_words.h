// The words by which a command names a quantization: a recipe, and flags on top of it.
#pragma once
#include <string>
#include <vector>

#include "quant/recipe/recipe.h"
#include "tools/command.h"

namespace llmq::tools {

struct RecipeWords {
  std::string recipe, method;
  std::vector<std::string> settings;
};

void add_recipe_words(CLI::App& command, RecipeWords& words);
// The recipe's file where one is named, then --set, then --method.
Recipe named_recipe(const RecipeWords& words);
// Error(kUsage) that says which flag would give what is missing.
void need_given(bool given, const char* what, const char* flag);

}  // namespace llmq::tools
