// llmq serve MODEL: an OpenAI-compatible server for one model.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "runtime/serving_engine.h"
#include "serve/serve.h"
#include "tools/command.h"
#include "tools/draft.h"
#include "tools/help.h"
#include "tools/loaded_model.h"
#include "tools/print.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct Options {
  std::string model, served_name, api_key_file, head = "stored", kv_cache_dtype = "auto", kv_memory, swap_space, metrics_compat, max_body = "8MiB";
  std::vector<std::string> lora;
  std::int64_t tensor_parallel_size = 1, max_model_len = 0;
  DraftOptions draft;
  SchedulerLimits limits{32, 2048, 0, 512};
  int block_size = 16;
  bool no_prefix_caching = false;
  ServeOptions serve;
};

constexpr std::uint64_t kUsualKvMemory = std::uint64_t{2} << 30;

void refuse(const std::string& message, const std::string& flag, const std::string& hint) { fail(ErrorKind::kUnsupported, {message, {}, flag, hint}); }

void check(const Options& options, Compute compute) {
  if (options.tensor_parallel_size != 1) refuse("one device is used in this version", "--tensor-parallel-size", "leave it out");
  if (!options.lora.empty()) refuse("adapters are not part of this version", "--lora", "leave it out");
  if (!options.swap_space.empty() && options.swap_space != "0")
    refuse("sequences that are pushed out are computed again, not swapped to the host", "--swap-space", "leave it out");
  if (options.kv_cache_dtype != "auto" && (options.kv_cache_dtype != "bf16" || compute != Compute::kBFloat16))
    refuse("KV type '" + options.kv_cache_dtype + "' is not part of this version", "--kv-cache-dtype", "use auto: the type of --compute");
  if (!options.metrics_compat.empty() && options.metrics_compat != "vllm")
    fail(ErrorKind::kUsage, {"'" + options.metrics_compat + "' is not known", {}, "--metrics-compat", "use vllm"});
  if (options.limits.max_num_batched_tokens < options.limits.max_num_seqs)
    fail(ErrorKind::kUsage, {fmt::format("a step of {} tokens has no room for one of each of {} answers", options.limits.max_num_batched_tokens, options.limits.max_num_seqs),
                             {}, "--max-num-batched-tokens", "raise it, or lower --max-num-seqs"});
}

std::uint64_t kv_bytes_per_token(const ModelSpec& spec, Compute compute) {
  const std::uint64_t element = compute == Compute::kFloat32 ? 4 : 2;
  return 2 * static_cast<std::uint64_t>(spec.blocks.size()) * static_cast<std::uint64_t>(spec.kv_heads * spec.head_dim) * element;
}

// Positions of the cache and of one context, from what was asked for, what the model has, and memory.
struct Room {
  std::int64_t context = 0, kv_tokens = 0;
};
Room room_for(const Options& options, const ModelSpec& spec, Compute compute) {
  if (options.max_model_len > spec.max_position)
    fail(ErrorKind::kUsage, {fmt::format("{} tokens are more than the {} positions of the model", options.max_model_len, spec.max_position), {}, "--max-model-len", "lower it"});
  const std::uint64_t per_token = kv_bytes_per_token(spec, compute), asked = parse_bytes(options.kv_memory, "--kv-memory");
  const auto affordable = static_cast<std::int64_t>((asked ? asked : kUsualKvMemory) / per_token / static_cast<std::uint64_t>(options.block_size)) * options.block_size;
  Room room;
  room.context = options.max_model_len ? options.max_model_len : std::min(spec.max_position, affordable);
  if (affordable < room.context || room.context < 2)
    fail(ErrorKind::kUsage, {fmt::format("a KV cache of {} holds {} tokens, less than one context of {}", bytes_text(asked ? asked : kUsualKvMemory), affordable, room.context),
                             {}, "--kv-memory", fmt::format("give at least {}, or lower --max-model-len", bytes_text(per_token * static_cast<std::uint64_t>(room.context + options.block_size)))});
  const std::int64_t most = (room.context + options.block_size) * options.limits.max_num_seqs;  // all answers at their longest
  room.kv_tokens = asked ? affordable : std::min(affordable, most);
  return room;
}

Engine load_engine(const LoadedModel& model, const Options& options, const std::shared_ptr<Backend>& backend, Compute compute, const Room& room) {
  Engine::Options engine;
  engine.compute = compute;
  engine.max_context = room.context;
  engine.kv_tokens = room.kv_tokens;
  engine.block_size = options.block_size;
  engine.prefix_caching = !options.no_prefix_caching;
  engine.head = head_weight(options.head);
  return Engine::load(model.checkpoint, backend, engine);
}

// The last part of a path, or a hub's name as it is.
std::string name_of(const Options& options) {
  if (!options.served_name.empty()) return options.served_name;
  const std::filesystem::path path = std::filesystem::path(options.model).lexically_normal();
  if (!std::filesystem::exists(path)) return options.model;
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

ServedModel served_model(const LoadedModel& model, const Options& options, std::int64_t context) {
  return {name_of(options), {options.model}, static_cast<std::int64_t>(std::time(nullptr)), context, model.spec.vocab_size, model.tokenizer,
          ChatTemplate::open(system_io(), model.checkpoint.path())};
}

void announce(const Options& options, const ServedModel& served, const Room& room, int port, bool json) {
  const std::string host = options.serve.host.find(':') == std::string::npos ? options.serve.host : "[" + options.serve.host + "]";
  const std::string url = fmt::format("http://{}:{}", host, port);
  if (json) {
    print_json(Json::object({{"schema", "llmq.serve/1"}, {"url", url}, {"model", served.name}, {"max_model_len", served.max_model_len}, {"kv_tokens", room.kv_tokens}}));
  } else {
    print_line(fmt::format("{} serves {} ({} tokens of context, {} of KV cache): a page at /, the API below /v1", url, served.name, served.max_model_len, room.kv_tokens));
  }
  std::fflush(stdout);  // whoever started it waits for this
  if (!served.chat_template) Log::get().note("the model has no chat template: /v1/completions only");
}

int run(Options options, const GlobalOptions& globals) {
  const Compute compute = chosen_compute(globals, Compute::kBFloat16);
  check(options, compute);
  check_draft(options.draft);
  if (!options.api_key_file.empty()) options.serve.api.keys = ApiKeys::parse(read_text(system_io(), options.api_key_file, 1u << 20), options.api_key_file);
  options.serve.http.max_body = static_cast<std::size_t>(parse_bytes(options.max_body, "--max-body"));
  options.serve.http.max_bodies = std::max(options.serve.http.max_bodies, 2 * options.serve.http.max_body);
  options.serve.vllm_names = options.metrics_compat == "vllm";

  const LoadedModel model = open_model(system_io(), options.model);
  const std::optional<LoadedModel> draft = open_draft(options.draft, model);
  const Room room = room_for(options, model.spec, compute);
  const std::shared_ptr<Backend> backend = chosen_backend(globals);
  Engine engine = load_engine(model, options, backend, compute, room);
  log_kernels(engine);
  const ServedModel served = served_model(model, options, room.context);
  ServingOptions serving;
  serving.limits = options.limits;
  serving.limits.max_model_len = room.context;
  serving.num_draft_tokens = options.draft.num_draft_tokens();
  const std::unique_ptr<Drafter> drafter = make_drafter(options.draft, draft, engine);
  ServingEngine answers(engine, &served.tokenizer, serving, drafter.get());

  ApiOptions& api = options.serve.api;
  api.limits.body.max_bytes = options.serve.http.max_body;
  api.limits.vocabulary_size = model.tokenizer.vocabulary_size();
  api.limits.max_samples = options.limits.max_num_seqs + options.limits.max_waiting;
  api.version = Json::object({{"version", version_text()}, {"commit", commit_text()}});
  const ServeEnd end = serve(served, request_engine(answers), options.serve, [&](int port) { announce(options, served, room, port, globals.json); });
  if (end == ServeEnd::kCutOff) Log::get().warn("answers under way were cut off");
  return end == ServeEnd::kDrained ? 0 : 1;
}

void add_limits(CLI::App& command, Options& o) {
  const char* group = "Limits";
  HttpLimits& http = o.serve.http;
  command.add_option("--max-queue", o.limits.max_waiting, "Requests that wait for the model; more get 429")->group(group)->type_name("N")->capture_default_str()->check(CLI::Range(1, 1'000'000));
  command.add_option("--max-connections", http.max_connections, "Open connections; the quietest makes room")->group(group)->type_name("N")->capture_default_str()->check(CLI::Range(1, 1'000'000));
  command.add_option("--max-body", o.max_body, "Bytes of one request")->group(group)->type_name("SIZE")->capture_default_str();
  const auto seconds = [&](const char* flag, double& value, const char* what) {
    command.add_option(flag, value, what)->group(group)->type_name("SECONDS")->capture_default_str()->check(CLI::Range(0.01, 1e6));
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
  auto options = std::make_shared<Options>();
  CLI::App* command = declare_command(app, "serve", "Answer over HTTP as OpenAI's API does",
                                      "  llmq serve out/model-awq\n"
                                      "  llmq serve out/model-awq --draft ngram --api-key-file keys.txt --host 0.0.0.0\n");
  Options& o = *options;
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000});
  command->add_option("model", o.model, "Model to serve: directory, .gguf file or hub name")->required()->type_name("");
  command->add_option("--host", o.serve.host, "Address to listen on")->type_name("ADDRESS")->capture_default_str();
  command->add_option("--port", o.serve.port, "0 takes a free one")->type_name("N")->capture_default_str()->check(CLI::Range(0, 65535));
  command->add_option("--api-key-file", o.api_key_file, "Keys that may ask, one per line")->type_name("FILE");
  command->add_option("--served-model-name", o.served_name, "Name in requests and answers; by default the directory's")->type_name("NAME");
  command->add_option("--max-model-len", o.max_model_len, "Tokens of a prompt and its answer together")->type_name("N")->check(positive);
  command->add_option("--max-num-seqs", o.limits.max_num_seqs, "Answers that run at once")->type_name("N")->capture_default_str()->check(positive);
  command->add_option("--max-num-batched-tokens", o.limits.max_num_batched_tokens, "Tokens of one step")->type_name("N")->capture_default_str()->check(positive);
  command->add_option("--block-size", o.block_size, "Tokens of one block of the KV cache")->type_name("N")->capture_default_str()->check(CLI::IsMember({8, 16, 32}));
  command->add_option("--kv-cache-dtype", o.kv_cache_dtype, "auto: the type of --compute")->type_name("TYPE")->capture_default_str();
  command->add_option("--kv-memory", o.kv_memory, "Size of the KV cache; by default what is needed, at most 2GiB")->type_name("SIZE");
  add_draft_options(*command, o.draft);
  command->add_option("--head", o.head, "Output head: stored or int8")->type_name("TYPE")->capture_default_str();
  command->add_option("--metrics-compat", o.metrics_compat, "vllm: /metrics has vLLM's names, too")->type_name("NAME");
  command->add_flag("--log-prompts", o.serve.api.log_prompts, "Write requests to the log; they are never written otherwise");
  command->add_flag("--no-prefix-caching", o.no_prefix_caching, "Compute every prompt anew");
  command->add_option("--tensor-parallel-size", o.tensor_parallel_size, "Devices (not in this version)")->type_name("N");
  command->add_option("--lora", o.lora, "Adapters (not in this version)")->type_name("NAME=DIR");
  command->add_option("--swap-space", o.swap_space, "Host memory for pushed-out sequences (not in this version)")->type_name("SIZE");
  add_limits(*command, o);
  command->callback([options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools
