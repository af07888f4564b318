#include "tools/continuation.h"

#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "job/kv_cache_choice.h"
#include "job/loaded_model.h"
#include "job/run_adapter.h"
#include "job/served_kernels.h"
#include "tools/interrupt.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

std::string prompt_of(const Continuation& options) {
  if (options.prompt.empty() == options.prompt_file.empty())
    fail(ErrorKind::kUsage, {options.prompt.empty() ? "no prompt is given" : "two prompts are given",
                             {},
                             "--prompt",
                             "give either --prompt or --prompt-file"});
  return options.prompt.empty() ? read_text(system_io(), options.prompt_file) : options.prompt;
}

// What guessing brought; null without a draft. A round gives the accepted tokens and one more.
Json speculative_json(const Generated& g, const DraftOptions& options) {
  if (options.draft.empty()) return nullptr;
  const auto rounds = static_cast<double>(g.draft_rounds), drafted = static_cast<double>(g.drafted),
             accepted = static_cast<double>(g.accepted);
  return Json::object(
      {{"draft", options.draft},
       {"rounds", g.draft_rounds},
       {"proposed", g.drafted},
       {"accepted", g.accepted},
       {"acceptance_rate", g.drafted > 0 ? Json(accepted / drafted) : Json(nullptr)},
       {"mean_accepted_length", g.draft_rounds > 0 ? Json(1 + accepted / rounds) : Json(nullptr)}});
}

void note_speculation(const Generated& g, const DraftOptions& options) {
  if (options.draft.empty()) return;
  Log::get().note(fmt::format("speculation ({}): {} rounds, {} of {} guesses right", options.draft,
                              g.draft_rounds, g.accepted, g.drafted));
}

void print_result(const GeneratedText& result, const Engine& engine, const Continuation& options) {
  const Generated& g = result.generated;
  print_json(Json::object({{"schema", "llmq.generate/1"},
                           {"text", result.text},
                           {"prompt_tokens", result.prompt_tokens},
                           {"completion_tokens", static_cast<std::int64_t>(g.tokens.size())},
                           {"token_ids", ids_json(g.tokens)},
                           {"finish_reason", g.finish_reason},
                           {"compute", compute_name(engine.options().compute)},
                           {"kv_cache", kv_cache_json(engine)},
                           {"kernels", kernels_json(engine)},
                           {"ttft_seconds", g.ttft_seconds},
                           {"tokens_per_second", g.tokens_per_second},
                           {"speculative", speculative_json(g, options.draft)}}));
}

Engine load_engine(const LoadedModel& model, const Continuation& options, const GlobalOptions& globals,
                   std::int64_t context) {
  Engine::Options engine_options;
  engine_options.compute = chosen_compute(globals, Compute::kBFloat16);
  engine_options.max_context = engine_options.kv_tokens = std::min(model.spec.max_position, context);
  engine_options.head = head_weight(options.head);
  std::optional<LoraAdapter> adapter;
  if (!options.lora.empty()) adapter = open_adapter(model, options.lora);
  choose_kv_cache(engine_options, options.kv_cache_dtype, model.tokenizer);
  const Placement placement = placed(options.placement, globals, model.spec);
  engine_options.early = placement.early;
  engine_options.further_members = placement.further_members;
  Engine engine = Engine::load(model.checkpoint, placement.backend, engine_options);
  if (adapter) engine.adapt(*adapter);
  log_kernels(engine);
  return engine;
}

constexpr std::int64_t kChatContext = 4096;  // positions a conversation may fill

// What the user says next: a line, or with --json all of standard input.
std::optional<std::string> next_message(bool whole) {
  std::string text;
  if (whole)
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  else if (!std::getline(std::cin, text))
    return std::nullopt;
  return text;
}

}  // namespace

// A conversation: every line of standard input is a turn, and the answer streams to standard output.
int hold_conversation(Continuation& options, const GlobalOptions& globals) {
  if (!options.prompt.empty() || !options.prompt_file.empty())
    fail(ErrorKind::kUsage,
         {"a chat and a prompt are given", {}, "--chat", "a chat reads standard input; leave --prompt out"});
  watch_signals();
  const LoadedModel model = open_model(system_io(), options.model);
  options.generate.constraint = chosen_constraint(options.constraint, model.tokenizer);
  const ChatTemplate chat_template = model_chat_template(system_io(), model.checkpoint.path());
  const std::optional<LoadedModel> draft = open_draft(options.draft, model);
  Engine engine = load_engine(model, options, globals, kChatContext);
  const std::unique_ptr<Drafter> drafter = make_drafter(options.draft, draft, engine);
  options.generate.drafter = drafter.get();
  Json messages = Json::array();
  while (const auto said = next_message(globals.json)) {
    messages.push_back(Json::object({{"role", "user"}, {"content", *said}}));
    const std::string prompt = chat_template.render(
        Json::object({{"messages", messages}, {"add_generation_prompt", true}}), local_time());
    const std::vector<std::int32_t> ids = encode_text(model.tokenizer, prompt, "standard input", false);
    const GeneratedText result =
        generate(engine, model.tokenizer, ids, options.generate, [&](std::string_view piece) {
          throw_if_interrupted();
          if (!globals.json) std::cout << piece << std::flush;
        });
    if (globals.json) {
      print_result(result, engine, options);
      break;
    }
    std::cout << "\n" << std::flush;
    messages.push_back(Json::object({{"role", "assistant"}, {"content", result.text}}));
  }
  return 0;
}

int continue_prompt(Continuation& options, const GlobalOptions& globals) {
  const std::string prompt = prompt_of(options);
  watch_signals();
  const LoadedModel model = open_model(system_io(), options.model);
  options.generate.constraint = chosen_constraint(options.constraint, model.tokenizer);
  const std::vector<std::int32_t> ids =
      encode_text(model.tokenizer, prompt, options.prompt_file.empty() ? "--prompt" : options.prompt_file);
  const std::int64_t length = static_cast<std::int64_t>(ids.size());
  if (length == 0)
    fail(ErrorKind::kUsage,
         {"the prompt has no token", {}, "--prompt", "give a prompt of at least one token"});
  if (length >= model.spec.max_position)
    fail(ErrorKind::kUsage, {fmt::format("the prompt has {} tokens, but the model has {} positions", length,
                                         model.spec.max_position),
                             {},
                             "--prompt",
                             "shorten it"});
  const std::optional<LoadedModel> draft = open_draft(options.draft, model);
  Engine engine = load_engine(model, options, globals, length + options.generate.max_tokens);
  const std::unique_ptr<Drafter> drafter = make_drafter(options.draft, draft, engine);
  options.generate.drafter = drafter.get();
  const GeneratedText result =
      generate(engine, model.tokenizer, ids, options.generate, [&](std::string_view piece) {
        throw_if_interrupted();
        if (!globals.json) std::cout << piece << std::flush;
      });
  if (!globals.json) std::cout << "\n" << std::flush;
  note_speculation(result.generated, options.draft);
  if (globals.json) print_result(result, engine, options);
  return 0;
}

}  // namespace llmq::tools
