// llmq bench MODEL: the flags of its suites, which are in files of their own.
#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "tools/bench/bench_matrix.h"
#include "tools/bench/bench_serve.h"
#include "tools/bench/bench_speed.h"
#include "tools/flags/kv_cache_option.h"
#include "tools/help.h"
#include "tools/interrupt.h"

namespace llmq::tools {
namespace {

constexpr std::array<std::string_view, 4> kSuites = {"latency", "throughput", "serve", "matrix"};

struct BenchOptions {
  std::string suite;  // latency; with an endpoint, serve
  std::vector<std::int64_t> batches;
  std::optional<int> runs;
  ServeBench serve;  // with what the other suites have, too
  MatrixBench matrix;
};

void check(const BenchOptions& options) {
  if (std::find(kSuites.begin(), kSuites.end(), options.suite) == kSuites.end())
    fail(ErrorKind::kUsage, {"suite '" + options.suite + "' is not known",
                             {},
                             "--suite",
                             "use latency, throughput, serve or matrix"});
  if (!options.serve.endpoint.empty() && options.suite != "serve")
    fail(ErrorKind::kUsage,
         {"a server is driven by suite serve only", {}, "--endpoint", "leave --suite out"});
  if (options.serve.engine.model.empty() && options.serve.endpoint.empty())
    fail(ErrorKind::kUsage,
         {"no model is given", {}, "model", "give a directory, .gguf file or hub name, or --endpoint"});
  for (const std::int64_t batch : options.batches)
    if (batch < 1 || batch > 4096)
      fail(ErrorKind::kUsage, {fmt::format("a batch of {}", batch), {}, "--batch", "give 1 .. 4096"});
  if (options.serve.price_per_hour && !(*options.serve.price_per_hour > 0))
    fail(ErrorKind::kUsage,
         {"a price that is not positive", {}, "--price-per-hour", "give what an hour of this machine costs"});
}

int run(BenchOptions& options, const GlobalOptions& globals) {
  check(options);
  if (options.batches.empty())
    options.batches = options.suite == "latency" ? std::vector<std::int64_t>{1}
                                                 : std::vector<std::int64_t>{1, 4, 8, 16, 32};
  watch_signals();
  if (options.suite == "matrix") {
    std::sort(options.batches.begin(), options.batches.end());
    options.batches.erase(std::unique(options.batches.begin(), options.batches.end()), options.batches.end());
    return bench_matrix(options.serve, options.matrix, options.batches, globals);
  }
  if (options.suite == "serve") return bench_serve(options.serve, globals);
  return bench_speed({options.suite, options.batches, options.runs}, options.serve, globals);
}

// A flag of some suites only; it is refused in the others, where it would say nothing.
struct FlagOfSuites {
  const CLI::Option* option;
  std::vector<std::string_view> suites;
};

void check_unused(const std::string& suite, const std::vector<FlagOfSuites>& flags) {
  for (const FlagOfSuites& flag : flags)
    if (flag.option->count() > 0 &&
        std::find(flag.suites.begin(), flag.suites.end(), suite) == flag.suites.end())
      fail(ErrorKind::kUsage, {"suite " + suite + " does not use it",
                               {},
                               flag.option->get_name(),
                               "leave it out, or choose another --suite"});
}

// The matrix sends its load as fast as its batches take it, and says itself what a configuration caches.
std::vector<std::string_view> suites_of_load_flag(const std::string& flag) {
  for (const char* only : {"--clients", "--rate", "--batching", "--api-key-file", "--no-prefix-caching",
                           "--served-model-name", "--max-num-seqs"})
    if (flag == only) return {"serve"};
  return {"serve", "matrix"};
}

}  // namespace

void add_bench(CLI::App& app, Session& session) {
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  CLI::App* command = declare_command(
      app, "bench", "Measure speed and memory beside what the machine can do at most, or a server under load",
      "  llmq bench out/model-awq\n"
      "  llmq bench out/model-awq --suite throughput --batch 1,8,16 --csv speed.csv\n"
      "  llmq bench out/model-awq --suite serve --clients 16 --rate 2,4,inf --html load.html\n"
      "  llmq bench --endpoint http://127.0.0.1:8000 --clients 16\n"
      "  llmq bench DIR --suite matrix --quantized out/model-awq --price-per-hour 0.4 --html matrix.html\n");
  command
      ->add_option("model", o.serve.engine.model,
                   "Model to run: directory, .gguf file or hub name; with --endpoint, its name there")
      ->type_name("");
  command
      ->add_option("--head", o.serve.engine.head,
                   "Output head: stored, or int8, as generate --head int8 runs it")
      ->type_name("TYPE")
      ->capture_default_str();
  command
      ->add_option("--suite", o.suite,
                   "latency (one sequence), throughput (more and more at once), serve (requests to a server) "
                   "or matrix (five configurations of a move to a quantized model); latency when left out")
      ->type_name("NAME");
  std::vector<FlagOfSuites> flags = {
      {add_kv_cache_option(*command, o.serve.engine.kv_cache_dtype), {"latency", "throughput", "serve"}},
      {command->add_option("--batch", o.batches, "Sequences at a time; 1 for latency, else 1,4,8,16,32")
           ->delimiter(',')
           ->allow_extra_args(false)
           ->type_name("N,..."),
       {"latency", "throughput", "matrix"}},
      {command
           ->add_option("--runs", o.runs,
                        "Times each case is measured after the warm-up; 5 for latency, 2 for throughput")
           ->type_name("N"),
       {"latency", "throughput"}},
      {command
           ->add_option("--save-result", o.serve.save_result,
                        "Write the rows to this file under the names of vllm bench serve, an object a line")
           ->type_name("FILE"),
       {"serve"}}};
  command
      ->add_option("--prompt-tokens", o.serve.prompt_tokens,
                   "Tokens of each prompt; 128 and 512 for latency, else 128, for serve and matrix words in "
                   "the middle")
      ->type_name("N");
  command
      ->add_option("--new-tokens", o.serve.new_tokens,
                   "Tokens to write for each prompt, for serve and matrix in the middle; 64 when left out")
      ->type_name("N");
  command
      ->add_option("--price-per-hour", o.serve.price_per_hour,
                   "What an hour of this machine costs, for the cost per million tokens")
      ->type_name("X");
  command->add_option("--csv", o.serve.csv, "Write the rows to this file, too")->type_name("FILE");
  command->add_option("--html", o.serve.html, "Write a page with the figures, too")->type_name("FILE");
  command
      ->add_option("--endpoint", o.serve.endpoint,
                   "Drive this server, http://host:port, by the load of suite serve")
      ->type_name("URL");
  for (const CLI::Option* option : add_load_flags(*command, o.serve)) {
    const std::string flag = option->get_name();
    flags.push_back({option, suites_of_load_flag(flag)});
    if (flags.back().suites.size() == 1) command->get_option(flag)->group("Suite serve");
  }
  for (const CLI::Option* option : add_matrix_flags(*command, o.matrix))
    flags.push_back({option, {"matrix"}});
  command->callback([options, flags, &session] {
    if (options->suite.empty()) options->suite = options->serve.endpoint.empty() ? "latency" : "serve";
    check_unused(options->suite, flags);
    session.run = [options, &session] { return run(*options, session.globals); };
  });
}

}  // namespace llmq::tools
