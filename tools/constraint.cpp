#include "tools/constraint.h"

#include "base/error.h"
#include "base/io.h"

namespace llmq::tools {

void add_constraint_options(CLI::App& command, ConstraintOptions& options) {
  command
      .add_option("--choice", options.choices,
                  "Write this text or one of the others that are given so; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command
      .add_option("--regex", options.regex, "Write a text that this regular expression matches as a whole")
      ->type_name("EXPRESSION");
  command.add_flag("--json-object", options.json_object, "Write a JSON object");
  command.add_option("--json-schema", options.json_schema, "Write JSON that the schema in this file accepts")
      ->type_name("FILE");
}

std::shared_ptr<const Constraint> chosen_constraint(const ConstraintOptions& options,
                                                    const Tokenizer& tokenizer) {
  std::vector<ConstraintSpec> specs;
  if (!options.choices.empty()) specs.push_back({OneOfTexts{options.choices}, "--choice"});
  if (!options.regex.empty()) specs.push_back({RegexText{options.regex}, "--regex"});
  if (options.json_object) specs.push_back({JsonObjectText{}, "--json-object"});
  if (!options.json_schema.empty())
    specs.push_back(
        {JsonSchemaText{Json::parse(read_text(system_io(), options.json_schema), options.json_schema)},
         "--json-schema"});
  if (specs.empty()) return nullptr;
  if (specs.size() > 1)
    fail(ErrorKind::kUsage, {"the text is constrained twice",
                             {},
                             specs[1].where,
                             "give one of --choice, --regex, --json-object and --json-schema"});
  return compile_constraint(specs[0], std::make_shared<const TokenPieces>(tokenizer));
}

}  // namespace llmq::tools
