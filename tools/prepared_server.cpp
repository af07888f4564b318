#include "tools/prepared_server.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8_sequence.h"
#include "device/known_machines.h"
#include "model/divided_block.h"
#include "runtime/swap_rates.h"
#include "tools/kv_cache_option.h"
#include "tools/print.h"
#include "tools/run_adapter.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

constexpr std::uint64_t kUsualKvMemory = std::uint64_t{2} << 30;
constexpr std::int64_t kShortestContext = 2;  // a token of a prompt and one of its answer

Room room_for(const EngineFlags& options, const GlobalOptions& globals, const ModelSpec& spec,
              Compute compute) {
  if (options.max_model_len > spec.max_position)
    fail(ErrorKind::kUsage, {fmt::format("{} tokens are more than the {} positions of the model",
                                         options.max_model_len, spec.max_position),
                             {},
                             "--max-model-len",
                             "lower it"});
  const std::int64_t members = options.placement.members;  // each of which has the memory that was asked for
  const std::uint64_t per_token =
                          member_spec(spec, members).kv_bytes(kv_type_of(options.kv_cache_dtype, compute)),
                      asked = parse_bytes(options.kv_memory, "--kv-memory");
  if (const std::uint64_t memory = host_memory_bytes();
      memory != 0 && asked > memory / static_cast<std::uint64_t>(members) &&
      globals.device.rfind("cuda", 0) != 0)
    fail(ErrorKind::kUsage,
         {fmt::format("{} of {} is more than the {} of memory here",
                      members == 1 ? "a KV cache" : fmt::format("a KV cache on each of {} devices", members),
                      bytes_text(asked), bytes_text(memory)),
          {},
          "--kv-memory",
          "lower it"});
  const auto affordable = static_cast<std::int64_t>((asked ? asked : kUsualKvMemory) / per_token /
                                                    static_cast<std::uint64_t>(options.block_size)) *
                          options.block_size;
  // Of one context: less than its length where a sliding window passes.
  const auto positions_of = [&](std::int64_t context) {
    return most_kv_blocks(kv_window(spec), options.block_size, context,
                          options.limits.max_num_batched_tokens) *
           options.block_size;
  };
  Room room;
  room.context = options.max_model_len ? options.max_model_len
                 : positions_of(spec.max_position) <= affordable
                     ? spec.max_position
                     : std::max(kShortestContext, std::min(affordable, spec.max_position));
  const std::int64_t longest = positions_of(room.context);
  if (affordable < longest)
    fail(ErrorKind::kUsage,
         {fmt::format("a KV cache of {} holds {} tokens, and one context of {} takes {}",
                      bytes_text(asked ? asked : kUsualKvMemory), affordable, room.context, longest),
          {},
          "--kv-memory",
          fmt::format("give at least {}, or lower --max-model-len",
                      bytes_text(per_token * static_cast<std::uint64_t>(longest)))});
  // all answers at their longest
  const std::int64_t most = (longest + options.block_size) * options.limits.max_num_seqs;
  room.kv_tokens = asked ? affordable : std::min(affordable, most);
  return room;
}

Engine load_engine(const LoadedModel& model, const EngineFlags& options, const Placement& placement,
                   Compute compute, const Room& room) {
  Engine::Options engine;
  engine.compute = compute;
  engine.max_context = room.context;
  engine.kv_tokens = room.kv_tokens;
  engine.block_size = options.block_size;
  engine.prefix_caching = !options.no_prefix_caching;
  engine.head = head_weight(options.head);
  engine.early = placement.early;
  engine.further_members = placement.further_members;
  choose_kv_cache(engine, options.kv_cache_dtype, model.tokenizer);
  return Engine::load(model.checkpoint, placement.backend, engine);
}

// The last part of a path, or a hub's name as it is.
std::string name_of(const EngineFlags& options) {
  const auto by_place = [&] {
    const std::filesystem::path path = std::filesystem::path(options.model).lexically_normal();
    if (!std::filesystem::exists(path)) return options.model;
    return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  };
  std::string name = options.served_name.empty() ? by_place() : options.served_name;
  if (!is_utf8(name) ||
      std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    fail(ErrorKind::kUsage, {"the name of the model would stand in every answer, and is no line of UTF-8",
                             {},
                             "--served-model-name",
                             "give it a plain name"});
  return name;
}

ServedModel served_model(const LoadedModel& model, const EngineFlags& options, std::int64_t context) {
  return {name_of(options),
          {options.model},
          static_cast<std::int64_t>(std::time(nullptr)),
          context,
          model.spec.vocab_size,
          model.tokenizer,
          ChatTemplate::open(system_io(), model.checkpoint.path())};
}

std::uint64_t swap_bytes(const EngineFlags& flags) {
  const std::uint64_t asked = parse_bytes(flags.swap_space, "--swap-space");
  if (const std::uint64_t memory = host_memory_bytes(); memory != 0 && asked > memory)
    fail(ErrorKind::kUsage,
         {fmt::format("{} are more than the {} of memory here", bytes_text(asked), bytes_text(memory)),
          {},
          "--swap-space",
          "lower it"});
  return asked;
}

// Pages on the host for what is pushed out: none where this machine computes them sooner than it copies them.
std::int32_t swap_pages(const EngineFlags& flags, Engine& engine) {
  const std::uint64_t asked = swap_bytes(flags), page = engine.cache().page_bytes();
  if (asked == 0) return 0;
  if (asked < page)
    fail(ErrorKind::kUsage, {fmt::format("{} holds no block of the KV cache, one of which has {}",
                                         bytes_text(asked), bytes_text(page)),
                             {},
                             "--swap-space",
                             "raise it, as in 4GiB"});
  if (engine.cache().blocks().window().positions != 0) {
    Log::get().note(
        "the model looks back through a window only: what is pushed out is little, and computed again "
        "(--swap-space)");
    return 0;
  }
  const auto pages = static_cast<std::int32_t>(std::min<std::uint64_t>(asked / page, INT32_MAX));
  engine.cache().give_swap_space(pages);
  const SwapRates rates = measure_swap(engine);
  Log::get().note(fmt::format(
      "answers that must wait have their KV cache {}: a position takes {:.0f} us to compute, {:.0f} us to "
      "the host and back",
      rates.pays() ? fmt::format("kept in {} of host memory", bytes_text(pages * page)) : "computed again",
      rates.computed_seconds * 1e6, rates.swapped_seconds * 1e6));
  return rates.pays() ? pages : 0;
}

ServingOptions serving_options(const EngineFlags& flags, const Room& room, Engine& engine) {
  ServingOptions serving;
  serving.limits = flags.limits;
  serving.limits.max_model_len = room.context;
  serving.limits.swap_pages = swap_pages(flags, engine);
  serving.num_draft_tokens = flags.draft.num_draft_tokens();
  return serving;
}

// NAME=DIR, checked and opened in the order given.
std::vector<PreparedServer::NamedAdapter> open_adapters(const EngineFlags& flags, const ServedModel& served,
                                                        const LoadedModel& model) {
  std::vector<PreparedServer::NamedAdapter> opened;
  for (const std::string& text : flags.lora) {
    const auto refuse = [&](const std::string& why, const std::string& hint) {
      fail(ErrorKind::kUsage, {why, {}, "--lora " + text, hint});
    };
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals + 1 == text.size())
      refuse("names no directory", "write NAME=DIR");
    const std::string name = text.substr(0, equals), directory = text.substr(equals + 1);
    if (const auto problem = bad_adapter_name(name)) refuse(*problem, "write NAME=DIR");
    if (name == served.name ||
        std::find(served.aliases.begin(), served.aliases.end(), name) != served.aliases.end())
      refuse("that is the name of the model", "take another name");
    if (std::any_of(opened.begin(), opened.end(),
                    [&](const PreparedServer::NamedAdapter& one) { return one.served.name == name; }))
      refuse("the name is given twice", "take another name");
    if (opened.size() == flags.max_loras)
      refuse(fmt::format("more than {} adapters", flags.max_loras), "raise --max-loras");
    opened.push_back(
        {{name, directory, served.created}, open_adapter(model, directory, flags.max_lora_rank)});
  }
  return opened;
}

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& o) {
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000});
  command
      .add_option("--served-model-name", o.served_name,
                  "Name in requests and answers; by default the directory's")
      ->type_name("NAME");
  command.add_option("--max-model-len", o.max_model_len, "Tokens of a prompt and its answer together")
      ->type_name("N")
      ->check(CLI::Range(kShortestContext, std::int64_t{1'000'000'000}));
  command.add_option("--max-num-seqs", o.limits.max_num_seqs, "Answers that run at once")
      ->type_name("N")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--max-num-batched-tokens", o.limits.max_num_batched_tokens, "Tokens of one step")
      ->type_name("N")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--block-size", o.block_size, "Tokens of one block of the KV cache")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::IsMember({8, 16, 32}));
  command
      .add_option("--kv-memory", o.kv_memory,
                  "Size of the KV cache, on each device where there are several; by default what is needed, "
                  "at most 2GiB")
      ->type_name("SIZE");
  command
      .add_option("--swap-space", o.swap_space,
                  "Host memory where the KV cache of answers that had to wait is kept, if that beats "
                  "computing it again")
      ->type_name("SIZE");
  command.add_flag("--no-prefix-caching", o.no_prefix_caching, "Compute every prompt anew");
  add_draft_options(command, o.draft);
}

void check_engine_flags(const EngineFlags& flags, Compute compute) {
  kv_type_of(flags.kv_cache_dtype, compute);
  swap_bytes(flags);
  if (flags.limits.max_num_batched_tokens < flags.limits.max_num_seqs)
    fail(ErrorKind::kUsage, {fmt::format("a step of {} tokens has no room for one of each of {} answers",
                                         flags.limits.max_num_batched_tokens, flags.limits.max_num_seqs),
                             {},
                             "--max-num-batched-tokens",
                             "raise it, or lower --max-num-seqs"});
  check_draft(flags.draft);
}

PreparedServer::PreparedServer(const EngineFlags& flags, const GlobalOptions& globals, Compute compute)
    : flags_(flags),
      model_(open_model(system_io(), flags.model)),
      draft_(open_draft(flags.draft, model_)),
      room_(room_for(flags, globals, model_.spec, compute)),
      placement_(placed(flags.placement, globals, model_.spec)),
      served_(served_model(model_, flags, room_.context)),
      opened_(open_adapters(flags, served_, model_)),
      engine_(load_engine(model_, flags, placement_, compute, room_)),
      drafter_(make_drafter(flags.draft, draft_, engine_)),
      answers_(engine_, &served_.tokenizer, serving_options(flags, room_, engine_), drafter_.get()) {
  log_kernels(engine_);
  for (const NamedAdapter& one : std::exchange(opened_, {})) {
    answers_.load_adapter(one.served.name, one.adapter);
    adapters_.push_back(one.served);
  }
}

ServeEnd PreparedServer::serve(ServeOptions options, const std::function<void(int port)>& listening) {
  options.http.max_bodies = std::max(options.http.max_bodies, 2 * options.http.max_body);
  ApiOptions& api = options.api;
  api.limits.body.max_bytes = options.http.max_body;
  api.limits.vocabulary_size = model_.tokenizer.vocabulary_size();
  api.limits.max_samples = flags_.limits.max_num_seqs + flags_.limits.max_waiting;
  api.version = Json::object({{"version", version_text()}, {"commit", commit_text()}});
  api.adapters = adapters_;
  api.loading = {flags_.lora_dir, flags_.max_loras, [this](const Path& directory) {
                   return open_adapter(model_, directory, flags_.max_lora_rank);
                 }};
  return llmq::serve(served_, answers_, options, listening);
}

}  // namespace llmq::tools
