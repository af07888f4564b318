// Models measured on one text, by this process or by the ranks that share it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "job/evaluation.h"
#include "tools/command.h"
#include "tools/flags/placement_option.h"

namespace llmq::tools {

struct AskedEvaluation {
  std::vector<std::string> models;
  std::string against;  // empty: none
  PlacementFlags placement;
  std::function<EvaluationRequest()> request;  // asked first; its Error(kUsage) is one of preparing
};

// In the order of the models; on ranks but the first, nothing. Of several ranks all begin or none
// (RanksRefused).
std::vector<Evaluation> evaluate_together(const AskedEvaluation& asked, const Session& session);

}  // namespace llmq::tools
