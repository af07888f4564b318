// Flags that every command has, and what must be known of them before the words are parsed.
#pragma once
#include "base/log.h"
#include "tools/command.h"

namespace llmq::tools {

void add_global_flags(CLI::App& app, GlobalOptions& globals);

// Looked at before the words are parsed, for what is wrong with them is told in these forms, too.
bool asked(int argc, char** argv, const char* flag);
LogFormat asked_log_format(int argc, char** argv);

}  // namespace llmq::tools
