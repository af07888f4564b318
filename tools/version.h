// --version: one line for people; commit, compiler, CPU level, CUDA and libraries for machines.
#pragma once
#include <string>

#include "job/job_settings.h"
#include "tools/command.h"

namespace llmq::tools {
void print_version(bool json);
std::string version_text();  // "0.1.0"
std::string commit_text();   // abbreviated hash of the source, "unknown" outside a checkout
Program this_program(const Session& session);
}  // namespace llmq::tools
