// llmq: one program, one command per file. Parses, runs the chosen command, and turns every error into one
// sentence and an exit code.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <iostream>
#include <new>

#include "base/disk/mapped_files.h"
#include "base/disk/trace_file.h"
#include "base/error.h"
#include "base/log.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/print.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

void add_global_flags(CLI::App& app, GlobalOptions& globals) {
  const char* group = "Everywhere";
  app.add_flag("--json", globals.json, "One JSON document on stdout and nothing else")->group(group);
  app.add_option("--device", globals.device,
                 "auto, cpu, cuda or cuda:N; auto is the CPU, as CUDA was not yet run on a device")
      ->group(group)
      ->type_name("DEVICE");
  app.add_option("--compute", globals.compute, "Arithmetic of the forward pass: float32 or bfloat16")
      ->group(group)
      ->type_name("TYPE");
  app.add_option("--threads", globals.threads, "Threads to use; by default the cores this process may use")
      ->group(group)
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--memory-limit", globals.memory_limit, "A ceiling the plan must respect, such as 8GiB")
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
  app.add_flag("--quiet", globals.quiet, "Errors only")->group(group);
  app.add_flag("-v,--verbose", globals.verbose, "More detail on stderr")->group(group);
}

// Looked at before the words are parsed, for what is wrong with them is told in these forms, too.
bool asked(int argc, char** argv, const char* flag) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], flag) == 0) return true;
  return false;
}
std::string_view asked_value(int argc, char** argv, std::string_view flag) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == flag && i + 1 < argc) return argv[i + 1];
    if (word.starts_with(flag) && word.substr(flag.size()).starts_with('='))
      return word.substr(flag.size() + 1);
  }
  return {};
}
LogFormat asked_log_format(int argc, char** argv) {
  const std::string_view format = asked_value(argc, argv, "--log-format");
  return (format.empty() ? asked_value(argc, argv, "--progress") : format) == "json" ? LogFormat::kJson
                                                                                     : LogFormat::kText;
}

// A word where a command should stand is named as such; for other mistakes CLI11 has the words.
Error usage_error(const CLI::App& app, const CLI::ParseError& error, const char* first_word) {
  std::string message = error.what();
  if (app.get_subcommands().empty() && first_word && first_word[0] != '-')
    message = "'" + std::string(first_word) + "' is not a command";
  return Error(ErrorKind::kUsage,
               {message, {}, {}, "llmq --help, or llmq COMMAND --help, lists what is understood"});
}

// An empty value is most likely a variable that was not set, and `--api-key-file "$KEYS"` must not serve
// without keys. Texts may be empty.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& value : option->results())
      if (value.empty() && !option->get_positional() && option->get_type_name() != "TEXT")
        fail(ErrorKind::kUsage,
             {"is given without a value", {}, option->get_name(), "write one behind it, or leave it out"});
}

// The command, which is a span of --trace-file where there is one.
int traced(const Session& session, const std::string& command) {
  if (session.globals.trace_file.empty()) return session.run();
  TraceFile& file = TraceFile::get();
  file.open(system_io(), session.globals.trace_file, version_text());
  const std::string name = "llmq " + command;
  try {
    const int code = session.run();
    file.close(name, Json::object({{"process.exit.code", code}}), "");
    return code;
  } catch (const Interrupted& interrupted) {
    file.close(name, Json::object({{"process.exit.code", 128 + interrupted.signal}}), interrupted.what());
    throw;
  } catch (const std::exception& error) {
    file.close(name, {}, error.what());
    throw;
  }
}

int run(int argc, char** argv) {
  Session session;
  session.command_line = "llmq";
  for (int i = 1; i < argc; ++i) session.command_line += std::string(" ") + argv[i];
  CLI::App app("", "llmq");
  declare_application(app);
  add_global_flags(app, session.globals);
  bool version = false;
  app.add_flag("--version", version, "Version; with --json also commit, compiler, CPU level and libraries")
      ->group("Everywhere");
  for (const auto add : {add_quantize, add_eval_ppl, add_generate, add_serve, add_bench, add_inspect,
                         add_diff, add_report, add_convert, add_merge, add_estimate, add_deploy, add_verify,
                         add_sign, add_pack, add_publish, add_tokenize, add_completion, add_man})
    add(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    throw usage_error(app, error, argc > 1 ? argv[1] : nullptr);
  }
  refuse_empty_values(app);
  for (const CLI::App* command : app.get_subcommands()) refuse_empty_values(*command);
  if (version) {
    print_version(session.globals.json);
    return 0;
  }
  if (!session.run) {
    if (session.globals.json)
      fail(ErrorKind::kUsage, {"no command is given", {}, {}, "llmq --help lists the commands"});
    std::cout << app.help();
    return 2;
  }
  if (!session.globals.memory_limit.empty() && !app.got_subcommand("quantize") &&
      !app.got_subcommand("verify"))
    fail(ErrorKind::kUnsupported,
         {"only llmq quantize and llmq verify --rebuild keep a memory limit in this version",
          {},
          "--memory-limit",
          "leave it out"});
  Log::get().set_progress(session.globals.progress == "json"    ? ProgressForm::kJson
                          : session.globals.progress == "plain" ? ProgressForm::kPlain
                                                                : ProgressForm::kLine);
  Log::get().set_verbosity(session.globals.quiet     ? Verbosity::kQuiet
                           : session.globals.verbose ? Verbosity::kVerbose
                                                     : Verbosity::kNormal);
  return traced(session, app.get_subcommands().empty() ? "" : app.get_subcommands().front()->get_name());
}

}  // namespace
}  // namespace llmq::tools

int main(int argc, char** argv) {
  using namespace llmq;
  using namespace llmq::tools;
  std::signal(SIGPIPE, SIG_IGN);
  const bool json = asked(argc, argv, "--json");
  Log::get().set_format(asked_log_format(argc, argv));
  if (json)
    explain_files_that_end(STDOUT_FILENO,
                           [](const Error& error) { return error_json(error).dump(2) + "\n"; });
  else
    explain_files_that_end(STDERR_FILENO, logged_error_text);
  try {
    return tools::run(argc, argv);
  } catch (const Interrupted& interrupted) {
    Log::get().error("interrupted; nothing was published, run the same command again");
    return 128 + interrupted.signal;
  } catch (const Error& error) {
    print_error(error, json);
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    print_error(Error(ErrorKind::kResource,
                      {"out of memory",
                       {},
                       {},
                       "lower --threads or the calibration samples, or use a machine with more memory"}),
                json);
    return 1;
  } catch (const std::exception& error) {
    print_error(Error(ErrorKind::kInternal,
                      {error.what(), {}, {}, "this is a defect of llmq: please report the command"}),
                json);
    return 1;
  }
}
