#include "job/output_evaluation.h"

#include "job/run_adapter.h"
#include "model/packed/unpacked.h"

namespace llmq {

OutputEvaluation evaluate_output(const EvaluateRequest& asked, const std::string& output,
                                 const LoadedModel& original, const JobSettings& settings) {
  EvaluationRequest request;
  request.text = asked.text;
  request.max_windows = asked.max_windows;
  request.compute = settings.evaluation_compute;
  request.on_window = settings.on_step;
  const LoadedModel written = open_model(system_io(), output);
  // An engine looks its embeddings up in the page cache, and runs packed linears as they are.
  // With an adapter they are numbers; those that were rotated were rounded once more.
  const bool anew = original.checkpoint.holds_in_memory() || original.rotated_values ||
                    (!original.adapter && is_unpacked(original.checkpoint));
  std::optional<LoadedModel> opened =
      anew ? std::optional(open_model(system_io(), original.name)) : std::nullopt;
  if (opened && original.adapter) fold_adapter(system_io(), original.adapter->directory, *opened);
  OutputEvaluation evaluated{
      evaluate(written, opened ? &*opened : &original, settings.devices.front(), request), {}};
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

}  // namespace llmq
