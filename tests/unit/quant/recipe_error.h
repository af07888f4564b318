// The error that a recipe gives, for its tests.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/io.h"
#include "quant/recipe/recipe.h"

namespace llmq::testing {

// The error that `text` gives, or "" when it is read.
inline std::string recipe_error(const std::string& text) {
  try {
    Recipe::parse(text, "r.yaml");
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(exit_code(e.kind()), 2);
    return e.what();
  }
}

// A file of tests/fixtures/llmcompressor.
inline std::string llmcompressor_fixture(const std::string& name) {
  return read_text(system_io(), std::string(LLMQ_SOURCE_DIR) + "/tests/fixtures/llmcompressor/" + name);
}

}  // namespace llmq::testing
