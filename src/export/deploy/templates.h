// The manifests beside this file, put into the program when it is built: templates over the document of
// job/deploy/deployment.cpp.
#pragma once
#include <string_view>

namespace llmq {

extern const std::string_view kComposeTemplate, kKubernetesTemplate, kKserveTemplate, kVllmStackTemplate;

}  // namespace llmq
