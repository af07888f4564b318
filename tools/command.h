// What every command shares: the flags that work everywhere, and how a command is declared and run.
//
// A command file turns words into typed values and calls the library once; it holds no numerics. It declares
// itself on the CLI::App and leaves the work in session.run, so that help, completion and the man page come
// from one option table.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "device/backend.h"
#include "job/job_settings.h"
#include "ranks/ranks.h"

namespace llmq::tools {

// Flags of every command, "Everywhere" in its help.
struct GlobalOptions {
  bool json = false, quiet = false, verbose = false;
  std::string device = "auto";
  std::string compute;       // empty: the command's default
  int threads = 0;           // 0: the cores this process may use
  std::string memory_limit;  // empty: none
  std::string log_format;    // empty: text, or json with --progress json
  std::string progress = "line";
  std::string trace_file;  // empty: none
  std::string ranks = "auto";
};

struct Session {
  GlobalOptions globals;
  std::string command_line;  // as typed, for the report
  std::function<int()> run;  // set by the chosen command; returns the exit code
  bool shares_work = false;  // set by the chosen command, where several ranks may run it
  bool only_prints = false;  // set by the chosen command: each of several processes may run all of it
  Ranks* ranks = nullptr;    // who shares it; null for this process alone

  Ranks& shared() const { return or_alone(ranks); }
  bool is_first() const { return ranks == nullptr || ranks->rank() == 0; }  // who prints and writes
};

// One line per command file; the order is the order of the help.
void add_quantize(CLI::App& app, Session& session);
void add_eval_ppl(CLI::App& app, Session& session);
void add_generate(CLI::App& app, Session& session);
void add_serve(CLI::App& app, Session& session);
void add_bench(CLI::App& app, Session& session);
void add_inspect(CLI::App& app, Session& session);
void add_diff(CLI::App& app, Session& session);
void add_report(CLI::App& app, Session& session);
void add_publish(CLI::App& app, Session& session);
void add_convert(CLI::App& app, Session& session);
void add_estimate(CLI::App& app, Session& session);
void add_deploy(CLI::App& app, Session& session);
void add_verify(CLI::App& app, Session& session);
void add_sign(CLI::App& app, Session& session);
void add_pack(CLI::App& app, Session& session);
void add_tokenize(CLI::App& app, Session& session);
void add_completion(CLI::App& app, Session& session);
void add_man(CLI::App& app, Session& session);
void add_merge(CLI::App& app, Session& session);

// --device, with "auto" as what it is on this machine (device/automatic_device.h), which the log says once
// where there is a choice. What is of an arithmetic is the CPU's.
std::string chosen_device(const GlobalOptions& globals, const std::string& arithmetic = {});
// --device and --threads as a backend; of one arithmetic, where one is asked for
// (BackendRequest::arithmetic), and for this use. Warns, once, where the processor or LLMQ_CPU_ISA makes it
// slow.
std::shared_ptr<Backend> chosen_backend(const GlobalOptions& globals, const std::string& arithmetic = {},
                                        DeviceUse use = DeviceUse::kServing);
// --compute, or the command's default. Error(kUsage) for another word.
Compute chosen_compute(const GlobalOptions& globals, Compute otherwise);
// Accepts a number between the two, which are positive; CLI::Range lets NaN pass.
CLI::Validator number_between(double least, double most);
// "8GiB", "512MiB", "2GB", "1000000" -> bytes; 0 when empty.
std::uint64_t parse_bytes(const std::string& text, const std::string& flag);
// "60s", "5m", "1h", "60" -> seconds, more than 0.
double parse_seconds(const std::string& text, const std::string& flag);

}  // namespace llmq::tools
