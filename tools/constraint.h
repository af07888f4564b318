// What the text of a command may be: --choice, --regex, --json-object, --json-schema.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "tools/command.h"

namespace llmq::tools {

struct ConstraintOptions {
  std::vector<std::string> choices;
  std::string regex, json_schema;
  bool json_object = false;
};

void add_constraint_options(CLI::App& command, ConstraintOptions& options);
// Null where the text is free. Error(kUsage) where two are given.
std::shared_ptr<const Constraint> chosen_constraint(const ConstraintOptions& options,
                                                    const Tokenizer& tokenizer);

}  // namespace llmq::tools
