#include "tools/output_evaluation.h"

#include "tools/print.h"

namespace llmq::tools {

OutputEvaluation evaluate_output(const EvaluateRequest& asked, const std::string& output,
                                 const LoadedModel& original, const std::shared_ptr<Backend>& backend,
                                 const GlobalOptions& globals) {
  EvaluationRequest request;
  request.text = asked.text;
  request.max_windows = asked.max_windows;
  request.compute = chosen_compute(globals, Compute::kFloat32);
  const LoadedModel written = open_model(system_io(), output);
  // An engine looks its embeddings up in the page cache.
  const std::optional<LoadedModel> cached = original.checkpoint.holds_in_memory()
                                                ? std::optional(open_model(system_io(), original.name))
                                                : std::nullopt;
  OutputEvaluation evaluated{evaluate(written, cached ? &*cached : &original, backend, request), {}};
  const PerplexityResult& result = evaluated.evaluation.result;
  const auto gate = [&](const char* name, const std::optional<double>& limit, double value) {
    if (limit) evaluated.gates.push_back({name, *limit, value});
  };
  gate("max_ppl", asked.max_ppl, result.ppl);
  gate("max_delta_ppl", asked.max_delta_ppl, result.against->delta_ppl);
  gate("max_kl", asked.max_kl, result.against->kl_mean);
  return evaluated;
}

Json evaluation_json(const OutputEvaluation& evaluated, const std::string& original) {
  const PerplexityResult& r = evaluated.evaluation.result;
  return Json::object({{"protocol", evaluated.evaluation.protocol},
                       {"text", evaluated.evaluation.text},
                       {"windows", r.windows},
                       {"ppl", r.ppl},
                       {"ppl_stderr", r.ppl_stderr},
                       {"against", divergence_json(*r.against, original)},
                       {"gates", gates_json(evaluated.gates)}});
}

void print_evaluation(const std::optional<OutputEvaluation>& evaluated, const Recipe& recipe) {
  if (!evaluated) {
    print_line("next: llmq eval-ppl " + recipe.output + " --against " + recipe.model);
    return;
  }
  const PerplexityResult& r = evaluated->evaluation.result;
  print_line(
      fmt::format("perplexity {:.4f} ± {:.4f} ({}, {} windows); original {:.4f}; KL {:.5f}; top-1 {:.2f} %",
                  r.ppl, r.ppl_stderr, evaluated->evaluation.protocol, r.windows, r.against->reference_ppl,
                  r.against->kl_mean, 100 * r.against->top1_agreement));
  for (const Gate& gate : evaluated->gates)
    print_line(fmt::format("gate {}: limit {}, found {:.6g}: {}", gate.name, gate.limit, gate.value,
                           gate.met() ? "met" : "NOT met"));
}

Json calibration_json(const Recipe& recipe, const CalibrationSet& calibration) {
  if (calibration.samples.empty()) return {};
  Json text = Json::array();
  for (const std::string& name : recipe.calibration.text) text.push_back(name);
  return Json::object({{"samples", static_cast<std::int64_t>(calibration.samples.size())},
                       {"tokens", calibration.tokens()},
                       {"sha256", calibration.sha256},
                       {"sequence_length", recipe.calibration.sequence_length},
                       {"text", text},
                       {"seed", recipe.calibration.seed},
                       {"shuffle", recipe.calibration.shuffle}});
}

}  // namespace llmq::tools
