// What `llmq convert` and `llmq merge` share: a job that is done already is not done again, and an output
// says where it comes from.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "export/convert.h"
#include "tools/command.h"

namespace llmq::tools {

struct Conversion {
  ConvertRequest request;
  std::string destination, dtype, split_max_size;  // as they are given; empty where they are not
  std::vector<std::string> tensor_types;           // "NAME=TYPE"
  bool paranoid = false;                           // believe no digest of an earlier run
};

// The last flags of the command, and what it then does: the conversion. Prints what came of it.
void run_as_conversion(CLI::App& command, const std::shared_ptr<Conversion>& conversion, Session& session);

}  // namespace llmq::tools
