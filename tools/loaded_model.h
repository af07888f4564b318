// A model argument, opened: checkpoint, structure and tokenizer, checked against each other; and an
// evaluation of it in words that several commands share.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/io.h"
#include "evaluate/perplexity.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "runtime/engine.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace llmq::tools {

struct LoadedModel {
  std::string name;  // as the user wrote it
  Checkpoint checkpoint;
  ModelSpec spec;
  Tokenizer tokenizer;
};

// Error(kBadInput) also when the tokenizer has more tokens than the embedding has rows.
LoadedModel open_model(Io& io, const std::string& name);

// Ids of a user's text; `source` (a file, --prompt) stands in the error where it is not UTF-8.
std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, const std::string& text,
                                      const std::string& source, bool special = true);

// The model's chat template; Error(kBadInput) where it has none.
ChatTemplate model_chat_template(Io& io, const Path& model);

// What to measure: a text cut by a protocol.
struct EvaluationRequest {
  std::string text = "builtin:wikitext-2";
  std::string protocol = "hf";
  std::optional<std::int64_t> context, stride;
  std::int64_t max_windows = 0;
  std::string lora;  // directory of an adapter; empty: none
  Compute compute = Compute::kFloat32;
  HeadWeight head = HeadWeight::kStored;                  // of the model, not of the one it is held against
  std::string kv_cache_dtype = "auto";                    // likewise
  EarlyBlocks early;                                      // likewise
  std::vector<std::shared_ptr<Backend>> further_members;  // likewise
};

struct Evaluation {
  std::string device;    // what computed the model
  std::string protocol;  // "hf-2048"
  std::string text, text_sha256;
  PerplexityResult result;
  Json kernels, kv_cache;  // kernels_json() and kv_cache_json() of the model
};

// --head: stored or int8. Error(kUsage) for another word.
HeadWeight head_weight(const std::string& word);
// Which kernel serves which weights: one line in the log, with a warning for each that could be faster; and
// for machines.
void log_kernels(const Engine& engine);
Json kernels_json(const Engine& engine);

// `against` may be null. Progress goes to the log.
Evaluation evaluate(const LoadedModel& model, const LoadedModel* against,
                    const std::shared_ptr<Backend>& backend, const EvaluationRequest& request);

// A limit and what was found: met or not. Exit code 3 when any is missed.
struct Gate {
  std::string name;
  double limit = 0, value = 0;
  bool met() const { return value <= limit; }
};

Json divergence_json(const Divergence& divergence, const std::string& model);
Json gates_json(const std::vector<Gate>& gates);
bool all_met(const std::vector<Gate>& gates);

}  // namespace llmq::tools
