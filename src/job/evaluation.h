// Perplexity of an opened model, and how far it is from another one: what commands and a recipe's `evaluate`
// share, down to the words of their JSON.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "evaluate/perplexity.h"
#include "evaluate/text_rates.h"
#include "job/loaded_model.h"
#include "ranks/agreement.h"
#include "runtime/engine.h"

namespace llmq {

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
  std::function<void()> on_window = [] {};                // after each; may throw to stop
};

struct Evaluation {
  std::string device;    // what computed the model
  std::string protocol;  // "hf-2048"
  std::string text, text_sha256;
  PerplexityResult result;
  Json kernels, kv_cache;          // kernels_json() and kv_cache_json() of the model
  std::optional<TextRates> rates;  // where every token of the text was scored: lm-eval without --max-windows
};

// What is measured, as far as it can be known before: the text as windows, and the models as what runs them.
// Refers to the models.
struct PreparedEvaluation {
  PerplexityProtocol protocol;
  std::string text, text_sha256;
  std::int64_t tokens = 0;  // of the text
  std::vector<Window> windows;
  std::vector<Engine> engines;
  std::optional<Engine> against;
};
// Each of `models` on the same tokens, those of the first one's tokenizer. `against` may be null.
// Error(kBadInput) where a tokenizer gives other tokens; Error(kUsage) where `ranks` are more than windows.
PreparedEvaluation prepare_evaluation(std::span<const LoadedModel> models, const LoadedModel* against,
                                      const std::shared_ptr<Backend>& backend,
                                      const EvaluationRequest& request, int ranks);
// What ranks that share it have to have in common: arithmetic, what is asked, and the digest of every input,
// which is remembered from run to run (io/digest_cache.h).
std::vector<Fact> evaluation_facts(const PreparedEvaluation& prepared, std::span<const LoadedModel> models,
                                   const LoadedModel* against, const EvaluationRequest& request);
// Progress goes to the log; the original runs once for all models. `ranks` share the windows, and only rank 0
// has evaluations.
std::vector<Evaluation> run_evaluation(PreparedEvaluation& prepared, const EvaluationRequest& request,
                                       Ranks& ranks);

// Both of them. Each of `models` on the same tokens, those of the first one's tokenizer; the original runs
// once for all of them. `against` may be null. Progress goes to the log. Error(kBadInput) where a tokenizer
// gives other tokens.
std::vector<Evaluation> evaluate(std::span<const LoadedModel> models, const LoadedModel* against,
                                 const std::shared_ptr<Backend>& backend, const EvaluationRequest& request);

// The same of one.
Evaluation evaluate(const LoadedModel& model, const LoadedModel* against,
                    const std::shared_ptr<Backend>& backend, const EvaluationRequest& request);

// A limit and what was found: met or not. Exit code 3 when any is missed.
struct Gate {
  std::string name;
  double limit = 0, value = 0;
  bool met() const { return value <= limit; }
};

Json divergence_json(const Divergence& divergence, const std::string& model);
std::string gate_text(const Gate& gate);  // "gate max_kl: limit 0.2, found 0.1: met"
Json gates_json(const std::vector<Gate>& gates);
bool all_met(const std::vector<Gate>& gates);

}  // namespace llmq
