// --junit and --summary of the commands that have gates: what was measured, in the forms that CI systems
// show.
#pragma once
#include <functional>
#include <string>

#include "base/json.h"
#include "tools/command.h"

namespace llmq::tools {

struct GateFiles {
  std::string junit, summary;
};

void add_gate_files(CLI::App& command, GateFiles& files);

// `document`: what the command prints with --json. A summary is put behind what the file has: it is one page
// for all steps of a CI job.
void write_gate_files(const GateFiles& files, const Json& document, bool strict);

// Runs `job`, which writes the files at its end. They are begun first, with their directories. Where the
// job ends by an error or is killed, the JUnit file says so, for one of an earlier run would say that all
// is well.
int run_with_gate_files(const GateFiles& files, const std::string& command, const std::function<int()>& job);

}  // namespace llmq::tools
