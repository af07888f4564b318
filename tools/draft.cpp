#include "tools/draft.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"

namespace llmq::tools {
namespace {

constexpr std::int64_t kMostDraftTokens = 64, kPromptRows = 512;

}  // namespace

void add_draft_options(CLI::App& command, DraftOptions& options) {
  command
      .add_option("--draft", options.draft,
                  "What guesses tokens for the model to verify: a smaller model of the same vocabulary, or "
                  "ngram, which copies from the text so far")
      ->type_name("MODEL");
  command
      .add_option(
          "--num-draft-tokens", options.given_tokens,
          "Guesses in every round; without it as many as pay by the acceptance that is measured, or none")
      ->type_name("K");
}

void check_draft(const DraftOptions& options) {
  if (!options.given_tokens) return;
  const std::int64_t k = *options.given_tokens;
  if (k < 1 || k > kMostDraftTokens)
    fail(ErrorKind::kUsage,
         {fmt::format("{} guesses in a round are not between 1 and {}", k, kMostDraftTokens),
          {},
          "--num-draft-tokens",
          "leave it out, and as many are made as pay"});
  if (options.draft.empty())
    fail(ErrorKind::kUsage,
         {"nobody makes the guesses", {}, "--num-draft-tokens", "give --draft MODEL or --draft ngram"});
}

std::optional<LoadedModel> open_draft(const DraftOptions& options, const LoadedModel& model) {
  if (options.draft.empty() || options.draft == "ngram") return std::nullopt;
  LoadedModel draft = open_model(system_io(), options.draft);
  check_same_vocabulary(model.tokenizer, draft.tokenizer, options.draft);
  return draft;
}

std::unique_ptr<Drafter> make_drafter(const DraftOptions& options, const std::optional<LoadedModel>& draft,
                                      const Engine& engine) {
  if (options.draft.empty()) return nullptr;
  if (!draft) return make_ngram_drafter();
  Engine::Options load = engine.options();
  load.max_context = std::min(load.max_context, draft->spec.max_position);
  load.head = HeadWeight::kStored;
  load.kv_window_tokens = 0;  // its windows are others
  load.early = {};
  load.further_members = {};
  Engine loaded = Engine::load(draft->checkpoint, engine.shared_backend(), load);
  Log::get().note(fmt::format("draft {}: {} beside {} of the model", options.draft,
                              bytes_text(loaded.weight_bytes()), bytes_text(engine.weight_bytes())));
  return make_model_drafter(std::move(loaded), engine.spec().vocab_size, kPromptRows);
}

}  // namespace llmq::tools
