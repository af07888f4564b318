#include "tools/prepared_server.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <span>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/utf8_sequence.h"
#include "job/kv_cache_choice.h"
#include "job/run_adapter.h"
#include "job/served_kernels.h"
#include "serve/tokenizer_info.h"
#include "tokenizer/tokenizer_config.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

Engine load_engine(const LoadedModel& model, const EngineFlags& options, const Placement& placement,
                   Compute compute, const Room& room) {
  Engine::Options engine;
  engine.compute = compute;
  engine.max_context = room.context;
  engine.kv_tokens = room.kv_tokens;
  engine.kv_window_tokens = room.kv_window_tokens;
  engine.block_size = options.block_size;
  engine.prefix_caching = !options.no_prefix_caching;
  engine.snapshot_bytes = parse_bytes(options.state_memory, "--state-memory");
  if (const std::uint64_t one = model.spec.state_bytes(); engine.prefix_caching && one > 0)
    Log::get().note(
        engine.snapshot_bytes < one
            ? fmt::format(
                  "prefix caching is off: a prompt of family {} goes on from a recurrent state of {}, "
                  "and --state-memory has no room for one",
                  model.spec.family, bytes_text(one))
            : fmt::format("prefixes are found by copies of the recurrent state, {} of {} at the most "
                          "(--state-memory)",
                          engine.snapshot_bytes / one, bytes_text(one)));
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

// Clients of /tokenizer_info want an end token; a model without tokenizer_config.json has it by number.
Json info_of_tokenizer(const LoadedModel& model, const Json& config,
                       const std::optional<ChatTemplate>& chat) {
  Json info = tokenizer_info(config, chat ? std::optional(chat->source()) : std::nullopt);
  const std::vector<std::int32_t>& ends = model.spec.eos_ids;
  if (info.at("eos_token").is_null() && !ends.empty())
    info["eos_token"] = model.tokenizer.decode(std::span(ends).first(1));
  return info;
}

ServedModel served_model(const LoadedModel& model, const EngineFlags& options, std::int64_t context) {
  const Path& path = model.checkpoint.path();
  const TokenizerConfig config = tokenizer_config(system_io(), path);
  std::optional<ChatTemplate> chat = ChatTemplate::open(system_io(), path, config);
  Json info = info_of_tokenizer(model, config.json, chat);
  return {name_of(options), {options.model},       static_cast<std::int64_t>(std::time(nullptr)),
          context,          model.spec.vocab_size, model.tokenizer,
          std::move(chat),  std::move(info)};
}

ServingOptions serving_options(const EngineFlags& flags, const Room& room, Engine& engine) {
  ServingOptions serving;
  serving.limits = flags.limits;
  serving.limits.max_model_len = room.context;
  give_swap_space(flags, engine, serving.limits);
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
    if (served.answers_to(name)) refuse("that is the name of the model", "take another name");
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
