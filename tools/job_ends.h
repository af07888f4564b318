// How a job ends when there was nothing to do, or when it was stopped: the same words for directories and
// GGUF files.
#pragma once
#include "export/output/published_output.h"
#include "io/digest_cache.h"
#include "tools/command.h"
#include "tools/interrupt.h"

namespace llmq::tools {

// The output that is there already, when this job made it. A job is noticed as unchanged only where the
// evaluation that it asks for (a recipe's, or null) has been made. What a kill right after the name was given
// left to do is done.
std::optional<PublishedOutput> unchanged_output(Io& io, const OutputTarget& target, const Json& evaluation,
                                                DigestCache& digests);

struct UnchangedRun {
  std::string output;  // as the user named it
  const char* compute = "";
  std::size_t modules = 0;
  double seconds = 0;
  bool strict = false;
  std::string metrics_out;
};
// Exit code. The report of the output that is there says what the run that made it found; gates it missed are
// missed still.
int report_unchanged(const PublishedOutput& found, const UnchangedRun& run, const GlobalOptions& globals);

// Exit code of an interrupted run, with the command that goes on.
int report_interrupted(const std::string& output, const Interrupted& signal, const Session& session);

}  // namespace llmq::tools
