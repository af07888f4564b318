// Manifests of a served model for the programs that start servers, from the templates beside this file.
//
// Nothing of the document gets into a manifest but as a quoted scalar, or as the number that it is; what a
// target expands by itself ("$" of Compose) is doubled. Words that Kubernetes expands, "$(NAME)", the
// document has doubled already where it has commands.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq {

// compose, kubernetes, kserve, llm-d, vllm-stack
const std::vector<std::string>& deploy_targets();

// YAML for one of deploy_targets(), in which it ends with a newline. `shown`: the template's variables.
std::string render_manifest(const std::string& target, const Json& shown);

// A scalar in double quotes: YAML 1.2 reads the very text again, whatever bytes of UTF-8 it has.
std::string yaml_quoted(std::string_view text);

}  // namespace llmq
