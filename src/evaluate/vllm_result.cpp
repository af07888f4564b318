#include "evaluate/vllm_result.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>

namespace llmq {
namespace {

void add_spread(Json& object, const std::string& name, const Spread& seconds) {
  object["mean_" + name + "_ms"] = 1e3 * seconds.mean;
  object["median_" + name + "_ms"] = 1e3 * seconds.median;
  object["std_" + name + "_ms"] = 1e3 * seconds.deviation;
  object["p99_" + name + "_ms"] = 1e3 * seconds.p99;
}

Json vllm_row(const LoadReport& report, const LoadRow& row, const std::string& date) {
  const LoadResult& r = row.result;
  const double per_second = r.seconds > 0 ? 1 / r.seconds : 0;
  Json object = Json::object({{"date", date},
                              {"endpoint_type", "openai"},
                              {"backend", "openai"},
                              {"label", nullptr},
                              {"model_id", report.model},
                              {"tokenizer_id", report.model},
                              {"num_prompts", r.requests},
                              {"request_rate", std::isfinite(row.rate) ? Json(row.rate) : Json("inf")},
                              {"burstiness", 1.0},
                              {"max_concurrency", row.clients},
                              {"batching", row.batching()},
                              {"duration", r.seconds},
                              {"completed", r.requests - r.failed},
                              {"failed", r.failed},
                              {"total_input_tokens", r.prompt_tokens},
                              {"total_output_tokens", r.new_tokens},
                              {"request_throughput", r.requests_per_second},
                              {"request_goodput", nullptr},
                              {"output_throughput", r.tokens_per_second}});
  object["total_token_throughput"] = static_cast<double>(r.prompt_tokens + r.new_tokens) * per_second;
  if (const std::optional<double> accepted = row.acceptance()) {
    object["spec_decode_acceptance_rate"] = 100 * *accepted;
    object["spec_decode_draft_tokens"] = static_cast<std::int64_t>(row.counters.drafted);
    object["spec_decode_accepted_tokens"] = static_cast<std::int64_t>(row.counters.accepted);
  }
  add_spread(object, "ttft", r.spreads.ttft);
  add_spread(object, "tpot", r.spreads.tpot);
  add_spread(object, "itl", r.spreads.itl);
  add_spread(object, "e2el", r.spreads.e2el);
  return object;
}

}  // namespace

std::string vllm_result_lines(const LoadReport& report, const std::tm& now) {
  const std::string date = fmt::format("{:%Y%m%d-%H%M%S}", now);
  std::string lines;
  for (const LoadRow& row : report.rows) lines += vllm_row(report, row, date).dump() + "\n";
  return lines;
}

}  // namespace llmq
