// --draft and --num-draft-tokens: what guesses beside a model.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "job/loaded_model.h"
#include "runtime/drafter.h"

namespace llmq::tools {

struct DraftOptions {
  std::string draft;  // a model, "ngram", or empty for none
  std::optional<std::int64_t> given_tokens;
  std::int64_t num_draft_tokens() const { return given_tokens.value_or(0); }  // 0: as many as pay
};

// The two flags of a command.
void add_draft_options(CLI::App& command, DraftOptions& options);
// Error(kUsage) for a number of guesses that nobody makes or that is out of range.
void check_draft(const DraftOptions& options);
// The draft model, where there is one, before `model` takes its time to load; Error(kBadInput) naming the
// first token that is another piece of text in the two vocabularies.
std::optional<LoadedModel> open_draft(const DraftOptions& options, const LoadedModel& model);
// Null for none. A draft model runs in `engine`'s threads and has room for as many positions.
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options, const std::optional<LoadedModel>& draft,
                                      const Engine& engine);

}  // namespace llmq::tools
