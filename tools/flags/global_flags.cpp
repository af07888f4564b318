#include "tools/flags/global_flags.h"

#include <cstring>
#include <string_view>

namespace llmq::tools {
namespace {

std::string_view asked_value(int argc, char** argv, std::string_view flag) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == flag && i + 1 < argc) return argv[i + 1];
    if (word.starts_with(flag) && word.substr(flag.size()).starts_with('='))
      return word.substr(flag.size() + 1);
  }
  return {};
}

}  // namespace

void add_global_flags(CLI::App& app, GlobalOptions& globals) {
  const char* group = "Everywhere";
  app.add_flag("--json", globals.json, "One JSON document on stdout and nothing else")->group(group);
  app.add_option("--device", globals.device,
                 "auto, cpu, cuda or cuda:N; auto is cuda where the first GPU is of a kind on which the "
                 "backend's tests have passed (sm_90), else cpu")
      ->group(group)
      ->type_name("DEVICE");
  app.add_option("--compute", globals.compute, "Arithmetic of the forward pass: float32 or bfloat16")
      ->group(group)
      ->type_name("TYPE");
  app.add_option("--threads", globals.threads, "Threads to use; by default the cores this process may use")
      ->group(group)
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option(
         "--memory-limit", globals.memory_limit,
         "A ceiling the plan must respect, such as 8GiB (quantize, verify --rebuild, estimate --nodes)")
      ->group(group)
      ->type_name("SIZE");
  app.add_option("--log-format", globals.log_format,
                 "Form of what is said on stderr: text, or json, an object a line")
      ->group(group)
      ->type_name("FORM")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_option(
         "--progress", globals.progress,
         "Form of progress on stderr: line, redrawn on a terminal; plain, a line a milestone; json, an "
         "object a line, and every other line an object, too")
      ->group(group)
      ->type_name("FORM")
      ->check(CLI::IsMember({"line", "plain", "json"}));
  app.add_option(
         "--trace-file", globals.trace_file,
         "Spans of the run as OTLP/JSON lines, added to this file: the command, each block, each request")
      ->group(group)
      ->type_name("FILE");
  app.add_option("--ranks", globals.ranks,
                 "Processes that share the work: auto, those that a launcher (mpirun, srun) started; none, "
                 "this one alone; mpi, refused where no launcher is seen")
      ->group(group)
      ->type_name("KIND")
      ->check(CLI::IsMember({"auto", "none", "mpi"}));
  app.add_flag("--quiet", globals.quiet, "Errors only")->group(group);
  app.add_flag("-v,--verbose", globals.verbose, "More detail on stderr")->group(group);
}

bool asked(int argc, char** argv, const char* flag) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], flag) == 0) return true;
  return false;
}

LogFormat asked_log_format(int argc, char** argv) {
  const std::string_view format = asked_value(argc, argv, "--log-format");
  return (format.empty() ? asked_value(argc, argv, "--progress") : format) == "json" ? LogFormat::kJson
                                                                                     : LogFormat::kText;
}

}  // namespace llmq::tools
