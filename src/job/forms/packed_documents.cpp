#include "job/forms/packed_documents.h"

#include <fmt/format.h>

#include "base/io.h"
#include "export/report/html_report.h"
#include "export/report/model_card.h"
#include "export/report/report.h"

namespace llmq {
namespace {

// What the report needs beyond the pipeline's own findings.
Json run_json(const Plan& plan, const PlanCosts& costs, const QuantizeReport& report, const JobOutcome& o) {
  Json run = report.to_json();
  run["left_dense"] = text_list(plan.ignored);
  if (plan.mixed) run["mixed"] = plan.mixed->to_json();
  if (!plan.devices.empty()) run["devices"] = text_list(plan.devices);
  add_findings(run, o);
  run["memory"]["samples"] = report.memory_samples;
  if (plan.device_room) run["memory"]["planned_device_bytes"] = costs.device_bytes;
  return run;
}

CardFacts card_facts(const JobOutcome& o) {
  CardFacts card;
  card.title = Path(o.output).filename().string();
  if (!o.evaluation) return card;
  const Evaluation& evaluation = o.evaluation->evaluation;
  const PerplexityResult& r = evaluation.result;
  card.protocol = fmt::format("{}, {} windows", evaluation.protocol, r.windows);
  card.text = evaluation.text == "builtin:wikitext-2" ? "WikiText-2 test" : evaluation.text;
  card.measured.push_back({"original", o.facts.bytes_in, 16, r.against->reference_ppl, 0, {}, {}});
  card.measured.push_back({"this model", o.facts.bytes_out, o.facts.bits_per_weight, r.ppl, r.ppl_stderr,
                           r.against->kl_mean, r.against->top1_agreement});
  return card;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> packed_documents(const Plan& plan, const PlanCosts& costs,
                                                                  const QuantizeReport& report,
                                                                  const JobOutcome& outcome) {
  const std::vector<LoaderVerdict> loaders =
      loader_verdicts(plan.format, plan.modules, outcome.output, {plan.ignored});
  const Json document = make_report(outcome.facts, loaders, run_json(plan, costs, report, outcome));
  return {{"report.json", document.dump(1) + "\n"},
          {"report.html", make_html_report(document)},
          {"README.md", make_model_card(outcome.facts, card_facts(outcome), loaders)}};
}

}  // namespace llmq
