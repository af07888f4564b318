// What `llmq convert` and `llmq merge` share: a job that is done already is not done again, and an output says where it comes from.
#pragma once
#include "export/convert.h"
#include "tools/command.h"

namespace llmq::tools {

// Runs a request that has its source, destination and types; `paranoid` believes no digest of an earlier run. Prints what came of it.
int run_conversion(ConvertRequest& request, bool paranoid, const Session& session);

}  // namespace llmq::tools
