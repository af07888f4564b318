// Any bytes as a recipe, in either dialect: an Error that names the file, or a recipe that can be written
// out. What follows a zero byte is an assignment of --set on top of it.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "quant/recipe/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const std::size_t end = input.find('\0');
  llmq::Recipe recipe;
  try {
    recipe = llmq::Recipe::parse(input.substr(0, end), "input.yaml");
  } catch (const llmq::Error& error) {
    if (llmq::exit_code(error.kind()) != 2 || error.detail().file != "input.yaml") std::abort();
  }
  if (end != std::string_view::npos) {
    try {
      recipe.set(std::string(input.substr(end + 1)));
    } catch (const llmq::Error& error) {
      if (llmq::exit_code(error.kind()) != 2) std::abort();
    }
  }
  const llmq::Json json = recipe.to_json();
  if (!(llmq::Json::parse(json.dump(), "recipe") == json)) std::abort();
  return 0;
}
