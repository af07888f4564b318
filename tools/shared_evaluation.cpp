#include "tools/shared_evaluation.h"

#include <optional>

#include "job/loaded_model.h"
#include "tools/version.h"

namespace llmq::tools {

std::vector<Evaluation> evaluate_together(const AskedEvaluation& asked, const Session& session) {
  EvaluationRequest request;
  std::vector<LoadedModel> models;
  std::optional<LoadedModel> against;
  std::optional<PreparedEvaluation> prepared;
  const auto original = [&] { return against ? &*against : nullptr; };
  const auto prepare = [&](int ranks) {
    request = asked.request();
    for (const std::string& model : asked.models) models.push_back(open_model(system_io(), model));
    if (!asked.against.empty()) against = open_model(system_io(), asked.against);
    const Placement placement =
        placed(asked.placement, session.globals, models.front().spec, DeviceUse::kCalibration);
    request.early = placement.early;
    request.further_members = placement.further_members;
    prepared = prepare_evaluation(models, original(), placement.backend, request, ranks);
  };
  const auto facts = [&] {
    std::vector<Fact> all = {
        {"version", version_text() + " " + commit_text(), "start the same program on every machine"}};
    for (Fact& fact : evaluation_facts(*prepared, models, original(), request))
      all.push_back(std::move(fact));
    return all;
  };
  OneRank alone;
  Ranks& ranks = session.ranks == nullptr ? alone : *session.ranks;
  begin_together(
      ranks, [&] { prepare(ranks.size()); }, facts);
  return run_evaluation(*prepared, request, ranks);
}

}  // namespace llmq::tools
