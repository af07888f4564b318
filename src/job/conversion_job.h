// What `llmq convert` and `llmq merge` share: a job that is done already is not done again, and an output
// says where it comes from.
#pragma once
#include <variant>

#include "export/convert.h"
#include "job/job_settings.h"
#include "job/unchanged_output.h"

namespace llmq {

// What was converted, or what the same job made before. `paranoid`: no digest of an earlier run is believed.
// Where several ranks share the target, of all of them: all begin or none, and what comes back, and all that
// has a name, is rank 0's.
std::variant<ConvertReport, PublishedOutput> run_conversion(Io& io, ConvertRequest request, bool paranoid,
                                                            const Program& program);

}  // namespace llmq
