// A plan beside what it costs, as `llmq quantize --dry-run --json` prints it: schema llmq.plan/1.
#pragma once
#include "base/json.h"
#include "quant/plan/gguf_plan.h"
#include "quant/plan/plan_costs.h"

namespace llmq {

Json plan_json(const Plan& plan, const PlanCosts& costs);
Json plan_json(const GgufPlan& plan, const PlanCosts& costs);

}  // namespace llmq
