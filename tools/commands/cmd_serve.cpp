// llmq serve MODEL: an OpenAI-compatible server for one model.
#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "job/kv_cache_choice.h"
#include "tools/flags/kv_cache_option.h"
#include "tools/flags/placement_option.h"
#include "tools/help.h"
#include "tools/prepared_server.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct ServeFlags {
  EngineFlags engine;
  std::string api_key_file, metrics_compat, probe_interval, max_body = "8MiB";
  ServeOptions serve;
};

constexpr std::size_t kMostBodyBytes = std::size_t{1} << 30;

void check(const ServeFlags& options) {
  if (!options.engine.lora_dir.empty() && options.api_key_file.empty())
    fail(ErrorKind::kUsage, {"whoever reaches the server could load and unload adapters",
                             {},
                             "--lora-dir",
                             "give --api-key-file, too"});
  if (!options.engine.lora_dir.empty() && !system_io().is_directory(options.engine.lora_dir))
    fail(ErrorKind::kUsage, {"no such directory", options.engine.lora_dir, "--lora-dir",
                             "give the directory that holds the adapters"});
  if (!options.metrics_compat.empty() && options.metrics_compat != "vllm")
    fail(ErrorKind::kUsage,
         {"'" + options.metrics_compat + "' is not known", {}, "--metrics-compat", "use vllm"});
  if (!options.serve.probe.baseline_file.empty() && options.probe_interval.empty())
    fail(ErrorKind::kUsage,
         {"a baseline is given and nothing is probed", {}, "--probe-baseline", "give --probe-interval, too"});
}

void announce(const ServeFlags& options, const PreparedServer& server, int port, bool json) {
  const ServedModel& served = server.served();
  const Room& room = server.room();
  const Json kv_cache = kv_cache_json(server.engine());
  const std::string host =
      options.serve.host.find(':') == std::string::npos ? options.serve.host : "[" + options.serve.host + "]";
  const std::string url = fmt::format("http://{}:{}", host, port);
  if (json) {
    print_json(Json::object({{"schema", "llmq.serve/1"},
                             {"url", url},
                             {"model", served.name},
                             {"device", server.engine().device_name()},
                             {"max_model_len", served.max_model_len},
                             {"kv_tokens", room.kv_tokens},
                             {"kv_cache", kv_cache}}));
  } else {
    print_line(fmt::format(
        "{} serves {} ({} tokens of context, {} of KV cache in {}): a page at /, the API below /v1", url,
        served.name, served.max_model_len, room.kv_tokens, kv_cache.at("dtype").as_string()));
  }
  std::fflush(stdout);  // whoever started it waits for this
  if (!served.chat_template) Log::get().note("the model has no chat template: /v1/completions only");
}

int run(ServeFlags options, const GlobalOptions& globals) {
  const Compute compute = chosen_compute(globals, Compute::kBFloat16);
  check(options);
  check_engine_flags(options.engine, compute);
  if (!options.api_key_file.empty())
    options.serve.api.keys =
        ApiKeys::parse(read_text(system_io(), options.api_key_file, 1u << 20), options.api_key_file);
  options.serve.http.max_body = static_cast<std::size_t>(parse_bytes(options.max_body, "--max-body"));
  if (options.serve.http.max_body > kMostBodyBytes)
    fail(ErrorKind::kUsage,
         {fmt::format("one request may hold {} of memory at most", bytes_text(kMostBodyBytes)),
          {},
          "--max-body",
          "lower it"});
  options.serve.vllm_names = options.metrics_compat == "vllm";
  if (!options.probe_interval.empty())
    options.serve.probe.interval_seconds = parse_seconds(options.probe_interval, "--probe-interval");
  if (ProbeOptions& probe = options.serve.probe; !probe.baseline_file.empty())
    probe.baseline = read_probe_baseline(system_io(), probe.baseline_file);
  check_address(options.serve.host, options.serve.port);
  PreparedServer server(options.engine, globals, compute);
  const ServeEnd end =
      server.serve(options.serve, [&](int port) { announce(options, server, port, globals.json); });
  if (end == ServeEnd::kCutOff) Log::get().warn("answers under way were cut off");
  return end == ServeEnd::kDrained ? 0 : 1;
}

void add_limits(CLI::App& command, ServeFlags& o) {
  const char* group = "Limits";
  HttpLimits& http = o.serve.http;
  command
      .add_option("--max-queue", o.engine.limits.max_waiting,
                  "Requests that wait for the model; more get 429")
      ->group(group)
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  command.add_option("--max-connections", http.max_connections, "Open connections; the quietest makes room")
      ->group(group)
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  command.add_option("--max-body", o.max_body, "Bytes of one request")
      ->group(group)
      ->type_name("SIZE")
      ->capture_default_str();
  const auto seconds = [&](const char* flag, double& value, const char* what) {
    command.add_option(flag, value, what)
        ->group(group)
        ->type_name("SECONDS")
        ->capture_default_str()
        ->check(number_between(0.01, 1e6));
  };
  seconds("--header-timeout", http.header_seconds, "From a request's first byte to the end of its header");
  seconds("--body-timeout", http.body_seconds, "From there to the end of its body");
  seconds("--idle-timeout", http.idle_seconds, "For a quiet connection");
  seconds("--write-timeout", http.write_seconds, "For a client to take what was sent");
  seconds("--request-timeout", http.request_seconds, "For a whole answer");
  seconds("--drain-timeout", o.serve.drain_seconds, "After SIGTERM, for the answers under way");
}

}  // namespace

void add_serve(CLI::App& app, Session& session) {
  auto options = std::make_shared<ServeFlags>();
  CLI::App* command =
      declare_command(app, "serve", "Answer over HTTP as OpenAI's API does",
                      "  llmq serve out/model-awq\n"
                      "  llmq serve out/model-awq --draft ngram --api-key-file keys.txt --host 0.0.0.0\n");
  ServeFlags& o = *options;
  command->add_option("model", o.engine.model, "Model to serve: directory, .gguf file or hub name")
      ->required()
      ->type_name("");
  command->add_option("--host", o.serve.host, "Address to listen on")
      ->type_name("ADDRESS")
      ->capture_default_str();
  command->add_option("--port", o.serve.port, "0 takes a free one")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  command->add_option("--api-key-file", o.api_key_file, "Keys that may ask, one per line")->type_name("FILE");
  add_engine_flags(*command, o.engine);
  command->add_option("--head", o.engine.head, "Output head: stored or int8")
      ->type_name("TYPE")
      ->capture_default_str();
  add_kv_cache_option(*command, o.engine.kv_cache_dtype);
  add_placement_options(*command, o.engine.placement);
  command->add_option("--metrics-compat", o.metrics_compat, "vllm: /metrics has vLLM's names, too")
      ->type_name("NAME");
  command
      ->add_option("--probe-interval", o.probe_interval,
                   "Score a fixed text this often, as 60s or 5m; /metrics shows it")
      ->type_name("TIME");
  command
      ->add_option("--probe-baseline", o.serve.probe.baseline_file,
                   "What it is compared with; recorded by the first probe where it does not exist")
      ->type_name("FILE");
  command->add_flag("--log-prompts", o.serve.api.log_prompts,
                    "Write requests to the log; they are never written otherwise");
  command
      ->add_option("--lora", o.engine.lora,
                   "LoRA adapter that requests name as their model; may be given several times")
      ->type_name("NAME=DIR")
      ->allow_extra_args(false);
  command
      ->add_option("--lora-dir", o.engine.lora_dir,
                   "Let requests load adapters from below DIR, and unload them (/v1/load_lora_adapter)")
      ->type_name("DIR");
  command->add_option("--max-loras", o.engine.max_loras, "Adapters that may be loaded at once")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--max-lora-rank", o.engine.max_lora_rank,
                   "Largest rank of an adapter: bounds its memory and the time of its rows")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  add_limits(*command, o);
  command->callback(
      [options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools
