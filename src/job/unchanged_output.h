// An output that is there already, when the same job made it: nothing is done again.
#pragma once
#include <optional>
#include <string>

#include "export/output/published_output.h"
#include "io/digest_cache.h"

namespace llmq {

// A job is noticed as unchanged only where the evaluation that it asks for (a recipe's, or null) has been
// made. What a kill right after the name was given left to do is done.
std::optional<PublishedOutput> unchanged_output(Io& io, const OutputTarget& target, const Json& evaluation,
                                                DigestCache& digests);

// The document of schema llmq.quantize/1 of a run that found one, but for what it took: its report says what
// the run that made it found. `output`: as the user named it.
Json unchanged_json(const PublishedOutput& found, const std::string& output, const std::string& compute,
                    std::size_t modules);

}  // namespace llmq
