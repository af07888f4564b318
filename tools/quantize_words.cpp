#include "tools/quantize_words.h"

#include "base/log.h"
#include "export/formats/output_format.h"
#include "quant/plan/plan_json.h"
#include "tools/node_words.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

void print_bytes(const std::string& heading, const std::vector<MemoryItem>& items, std::uint64_t sum) {
  std::vector<std::vector<std::string>> rows = {{heading, "bytes"}};
  for (const MemoryItem& item : items) rows.push_back({item.what, bytes_text(item.bytes)});
  rows.push_back({"peak", bytes_text(sum)});
  print_table(rows);
}

void print_reads(const std::vector<ReadPass>& reads) {
  std::vector<std::vector<std::string>> rows = {{"reads", "bytes"}};
  for (const ReadPass& pass : reads) rows.push_back({pass.what, bytes_text(pass.bytes)});
  rows.push_back({"all", bytes_text(total_bytes(reads))});
  print_table(rows);
}

void print_time(const TimePrediction& time) {
  std::string parts;
  for (const auto& [part, seconds] : time.parts)
    parts += (parts.empty() ? "" : ", ") + part + " " + seconds_text(seconds);
  print_line(time.unknown.empty() ? fmt::format("about {} on this machine when it is idle ({})",
                                                seconds_text(time.seconds), parts)
                                  : "no time is predicted: " + time.unknown);
}

// "model.layers.0.self_attn.q_proj +2": linears of one product share their first one's name, and so do all
// experts of a layer.
std::string choice_name(const PrecisionChoice& choice) {
  if (choice.experts != 0)
    return fmt::format("{} +{}, of {} experts", choice.modules.front(), choice.modules.size() - 1,
                       choice.experts);
  return choice.modules.front() +
         (choice.modules.size() > 1 ? fmt::format(" +{}", choice.modules.size() - 1) : "");
}

std::string option_name(const PrecisionOption& option) {
  return option.scheme.empty() ? std::to_string(option.bits) : option.scheme;
}

void print_choices(const MixedPrecision& mixed) {
  std::vector<std::vector<std::string>> rows = {{"mixed precision", "chosen"}};
  for (const PrecisionOption& option : mixed.choices.front().options)
    rows.front().push_back("KL at " + option_name(option));
  for (const PrecisionChoice& choice : mixed.choices) {
    rows.push_back({choice_name(choice), option_name(choice.options[choice.chosen])});
    for (const PrecisionOption& option : choice.options)
      rows.back().push_back(fmt::format("{:.2e}", option.divergence));
  }
  print_table(rows);
  const PrecisionOption& fewest = mixed.choices.front().options.front();
  print_line(fmt::format("{:.4f} of {} bits per weight; estimated KL {:.4f}, {:.4f} at {}{} everywhere",
                         mixed.bits_per_weight, mixed.target_bits, mixed.divergence, mixed.uniform_divergence,
                         option_name(fewest), fewest.scheme.empty() ? " bits" : ""));
}

void print_device(const Plan& plan, const PlanCosts& costs) {
  if (plan.device_room) {
    std::vector<std::vector<std::string>> rows = {
        {plan.devices.empty() ? "on the device" : "on each device", "bytes"}};
    for (const MemoryItem& item : costs.device_memory) rows.push_back({item.what, bytes_text(item.bytes)});
    rows.push_back({"peak", bytes_text(costs.device_bytes)});
    rows.push_back({"to be had", bytes_text(plan.device_room->free_bytes)});
    print_table(rows);
  } else {
    for (const std::string& device : plan.devices)
      print_line(
          fmt::format("on {}: {} of weights, chunks and sums", device, bytes_text(costs.device_bytes)));
  }
}

void print_activations(const Plan& plan) {
  if (!plan.needs_calibration) return;
  print_line(fmt::format(
      "inputs of o and down: {}; the residual stream: {}",
      plan.keep_inputs ? plan.device_room ? "kept on the device" : "kept in memory" : "computed again",
      plan.activations_in_file   ? "in a file beside the output"
      : plan.activations_on_host ? "in the host's memory, a chunk on the device"
      : plan.device_room         ? "on the device"
                                 : "in memory"));
}

void print_planned(const Plan& plan, const PlanCosts& costs, const PlanOutline& outline,
                   const TimePrediction& time) {
  print_line(fmt::format("{} to {}, written as {}: {} linears, {:.3f} bits per weight", plan.method,
                         outline.scheme, plan.format, plan.modules.size(), plan.bits_per_weight()));
  print_bytes("memory", costs.memory, costs.peak_bytes);
  print_device(plan, costs);
  print_reads(costs.reads);
  print_line(fmt::format("writes {}, {:.2f} TFLOP, activations in chunks of {} tokens",
                         bytes_text(costs.bytes_written()), costs.flops / 1e12, plan.chunk_tokens));
  print_activations(plan);
  print_time(time);
  if (!plan.devices.empty()) print_line("the time is that of the first device alone");
  if (plan.mixed) print_choices(*plan.mixed);
  for (const std::string& warning : plan.warnings) print_line("warning: " + warning);
}

void print_planned(const GgufPlan& plan, const PlanCosts& costs, const PlanOutline& outline,
                   const TimePrediction& time) {
  print_line(fmt::format("{} to {}, written as gguf: {} tensors, {:.3f} bits per weight; importance: {}",
                         plan.method, outline.scheme, plan.tensors.size(), plan.bits_per_weight(),
                         plan.importance));
  if (!plan.asked_types.empty()) print_line("types that overrides name: " + plan.asked_text());
  print_bytes("memory", costs.memory, costs.peak_bytes);
  print_reads(costs.reads);
  print_line(fmt::format("writes {}, {:.2f} TFLOP", bytes_text(costs.bytes_out), costs.flops / 1e12));
  print_time(time);
  for (const std::string& warning : plan.warnings) print_line("warning: " + warning);
}

void print_evaluation(const JobOutcome& o) {
  const std::optional<OutputEvaluation>& evaluated = o.evaluation;
  if (!evaluated) {
    print_line("next: llmq eval-ppl " + o.output +
               (o.facts.adapter ? "; against the model with its adapter: evaluate in the recipe"
                                : " --against " + o.facts.model));
    return;
  }
  const PerplexityResult& r = evaluated->evaluation.result;
  print_line(
      fmt::format("perplexity {:.4f} ± {:.4f} ({}, {} windows); original {:.4f}; KL {:.5f}; top-1 {:.2f} %",
                  r.ppl, r.ppl_stderr, evaluated->evaluation.protocol, r.windows, r.against->reference_ppl,
                  r.against->kl_mean, 100 * r.against->top1_agreement));
  for (const Gate& gate : evaluated->gates) print_line(gate_text(gate));
}

}  // namespace

void print_plan(const OutputForm& form, const JobPreview& preview) {
  std::visit([&](const auto* plan) { print_planned(*plan, preview.costs, form.outline(), preview.time); },
             form.plan());
}

void print_outcome(const JobOutcome& o) {
  const RunFacts& facts = o.facts;
  const bool file = is_one_file(facts.format);
  print_line(
      fmt::format("{}: {} {} to {} by {}, {} from {}, {:.3f} bits per weight{}", o.output, o.modules,
                  file ? "tensors" : "linears", facts.scheme, facts.method, bytes_text(facts.bytes_out),
                  bytes_text(facts.bytes_in), facts.bits_per_weight,
                  file ? "" : fmt::format(" ({:.3f} over the whole model)", facts.bits_per_weight_total)));
  const std::string there = o.peak_device_bytes == 0
                                ? std::string()
                                : fmt::format(" and {} of the device", bytes_text(o.peak_device_bytes));
  print_line(fmt::format("{}, peak memory {} (planned {}){}, {}", seconds_text(o.seconds),
                         bytes_text(o.peak_rss_bytes), bytes_text(o.planned_peak), there, facts.digest));
  print_line(fmt::format("read {} of the model (planned {}), wrote {} (planned {})",
                         bytes_text(o.disk.bytes_read), bytes_text(total_bytes(o.disk.reads)),
                         bytes_text(o.disk.bytes_written), bytes_text(o.disk.planned_bytes_written)));
  if (o.ranks > 1)
    print_line(fmt::format("{} ranks sent each other {}", o.ranks, bytes_text(o.bytes_between_ranks)));
  for (const Fallback& fallback : o.fallbacks)
    print_line("fallback: " + fallback.module + ": " + fallback.reason);
  for (const std::string& warning : o.warnings) print_line("warning: " + warning);
  print_evaluation(o);
}

int show_plan(QuantizeJob& job, int ranks, double network_bytes_per_second, bool json) {
  const JobPreview preview = job.preview();
  const RankTraffic traffic = job.form().over_ranks(ranks).traffic;
  if (!json) {
    print_plan(job.form(), preview);
    print_traffic(traffic, network_bytes_per_second);
    if (ranks > 1 && preview.time.unknown.empty())
      print_line(fmt::format("shared by {} ranks on such machines about {}", ranks,
                             seconds_text(shared_seconds(preview.time.parts, job.form().shares(), ranks) +
                                          traffic.seconds(network_bytes_per_second))));
    return 0;
  }
  Json plan = std::visit([&](const auto* of) { return plan_json(*of, preview.costs); }, job.form().plan());
  plan["time"] = preview.time.to_json();
  plan["ranks"] = ranks == 1 ? Json() : traffic.to_json(network_bytes_per_second);
  print_json(plan);
  return 0;
}

int report_interrupted(const std::string& output, const Interrupted& signal, const Session& session) {
  if (session.globals.json)
    print_json(Json::object({{"schema", "llmq.quantize/1"},
                             {"status", "interrupted"},
                             {"output", output},
                             {"resume", session.command_line}}));
  Log::get().note("interrupted; to go on: " + session.command_line);
  return 128 + signal.signal;
}

}  // namespace llmq::tools
