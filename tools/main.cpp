// llmq: one program, one command per file. Parses, runs the chosen command, and turns every error into one
// sentence and an exit code.
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "base/disk/mapped_files.h"
#include "base/disk/trace_file.h"
#include "base/error.h"
#include "base/log.h"
#include "tools/command.h"
#include "tools/flags/global_flags.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/print.h"
#include "tools/ranked_run.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

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

// What ended the run, in one sentence; the exit code.
int told(const std::exception_ptr& failure, bool json) {
  try {
    std::rethrow_exception(failure);
  } catch (const Interrupted& interrupted) {
    Log::get().error("interrupted; nothing was published, run the same command again");
    return 128 + interrupted.signal;
  } catch (const std::exception&) {
    const Error error = as_error(std::current_exception());
    print_error(error, json);
    return exit_code(error.kind());
  }
}

int run(int argc, char** argv, bool json) {
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
      !app.got_subcommand("verify") && !app.got_subcommand("estimate"))
    fail(ErrorKind::kUnsupported,
         {"only llmq quantize, verify --rebuild and estimate --nodes keep a memory limit in this version",
          {},
          "--memory-limit",
          "leave it out"});
  Log::get().set_progress(session.globals.progress == "json"    ? ProgressForm::kJson
                          : session.globals.progress == "plain" ? ProgressForm::kPlain
                                                                : ProgressForm::kLine);
  Log::get().set_verbosity(session.globals.quiet     ? Verbosity::kQuiet
                           : session.globals.verbose ? Verbosity::kVerbose
                                                     : Verbosity::kNormal);
  const std::string command = app.get_subcommands().empty() ? "" : app.get_subcommands().front()->get_name();
  return run_in_ranks(
      session, command, [&] { return traced(session, command); },
      [&](const std::exception_ptr& failure) { return told(failure, json); });
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
    return tools::run(argc, argv, json);
  } catch (...) {
    return told(std::current_exception(), json);
  }
}
