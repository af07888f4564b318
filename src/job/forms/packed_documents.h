// What lies beside the weights of a packed output for people and dashboards: report.json, report.html and the
// model card README.md.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "job/job_outcome.h"
#include "quant/plan/plan_costs.h"

namespace llmq {

// By name.
std::vector<std::pair<std::string, std::string>> packed_documents(const Plan& plan, const PlanCosts& costs,
                                                                  const QuantizeReport& report,
                                                                  const JobOutcome& outcome);

}  // namespace llmq
