// llmq eval-ppl MODEL...: perplexity by a named protocol, and divergence from the original with --against.
#include <cmath>

#include "base/error.h"
#include "base/resident_memory.h"
#include "job/evaluation.h"
#include "job/kv_cache_choice.h"
#include "job/loaded_model.h"
#include "job/served_kernels.h"
#include "tools/command.h"
#include "tools/flags/gate_files.h"
#include "tools/flags/kv_cache_option.h"
#include "tools/flags/placement_option.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/print.h"
#include "tools/shared_evaluation.h"

namespace llmq::tools {
namespace {

struct EvalPplOptions {
  std::vector<std::string> models;
  std::string against, head = "stored";
  EvaluationRequest request;
  PlacementFlags placement;
  std::optional<double> max_ppl, max_delta, max_kl;
  GateFiles gate_files;
};

std::vector<Gate> measured_gates(const EvalPplOptions& options, const PerplexityResult& result) {
  std::vector<Gate> gates;
  if (options.max_ppl) gates.push_back({"max-ppl", *options.max_ppl, result.ppl});
  if (options.max_delta) gates.push_back({"max-delta", *options.max_delta, result.against->delta_ppl});
  if (options.max_kl) gates.push_back({"max-kl", *options.max_kl, result.against->kl_mean});
  return gates;
}

void print_evaluation(const EvalPplOptions& options, const std::string& model, const Evaluation& e,
                      const std::vector<Gate>& gates) {
  const PerplexityResult& r = e.result;
  print_line(fmt::format("{}: perplexity {:.4f} ± {:.4f}  ({}, {}, {} windows, {} scored tokens, {})", model,
                         r.ppl, r.ppl_stderr, e.protocol, e.text, r.windows, r.scored_tokens,
                         compute_name(options.request.compute)));
  if (e.rates)
    print_line(fmt::format("word perplexity {:.4f}, byte perplexity {:.6f}, {:.6f} bits per byte",
                           e.rates->word_perplexity, e.rates->byte_perplexity, e.rates->bits_per_byte));
  if (r.against) {
    const Divergence& d = *r.against;
    print_line(fmt::format("against {}: perplexity {:.4f}, difference {:+.4f}", options.against,
                           d.reference_ppl, d.delta_ppl));
    print_line(
        fmt::format("KL divergence {:.5f} ± {:.5f} nats (99th percentile {:.4f}, largest {:.4f}); top-1 "
                    "agreement {:.2f} %",
                    d.kl_mean, d.kl_stderr, d.kl_p99, d.kl_max, 100 * d.top1_agreement));
  }
  print_line(fmt::format("{:.0f} tokens/s on {}, {}, peak memory {}",
                         static_cast<double>(r.evaluated_tokens) / r.seconds, e.device,
                         seconds_text(r.seconds), bytes_text(peak_resident_bytes())));
  for (const Gate& gate : gates) print_line(gate_text(gate));
}

Json measured_json(const EvalPplOptions& options, const std::string& model, const Evaluation& e,
                   const std::vector<Gate>& gates) {
  const PerplexityResult& r = e.result;
  return Json::object({{"schema", "llmq.eval-ppl/1"},
                       {"model", model},
                       {"lora", options.request.lora.empty() ? Json() : Json(options.request.lora)},
                       {"device", e.device},
                       {"compute", compute_name(options.request.compute)},
                       {"protocol", e.protocol},
                       {"text", Json::object({{"path", e.text}, {"sha256", e.text_sha256}})},
                       {"windows", r.windows},
                       {"scored_tokens", r.scored_tokens},
                       {"ppl", r.ppl},
                       {"ppl_stderr", r.ppl_stderr},
                       {"mean_nll", r.mean_nll},
                       {"word_perplexity", e.rates ? Json(e.rates->word_perplexity) : Json()},
                       {"byte_perplexity", e.rates ? Json(e.rates->byte_perplexity) : Json()},
                       {"bits_per_byte", e.rates ? Json(e.rates->bits_per_byte) : Json()},
                       {"seconds", r.seconds},
                       {"tokens_per_second", static_cast<double>(r.evaluated_tokens) / r.seconds},
                       {"peak_rss_bytes", peak_resident_bytes()},
                       {"kernels", e.kernels},
                       {"kv_cache", e.kv_cache},
                       {"against", r.against ? divergence_json(*r.against, options.against) : Json()},
                       {"gates", gates_json(gates)}});
}

// One document for one model, a list of them for several.
Json evaluations_json(const EvalPplOptions& options, const std::vector<Evaluation>& evaluations) {
  Json list = Json::array();
  for (std::size_t i = 0; i < evaluations.size(); ++i)
    list.push_back(measured_json(options, options.models[i], evaluations[i],
                                 measured_gates(options, evaluations[i].result)));
  if (list.items().size() == 1) return list.items().front();
  return Json::object({{"schema", "llmq.eval-ppl-models/1"}, {"models", std::move(list)}});
}

// What is measured, of words that need no model to be refused.
EvaluationRequest checked_request(EvalPplOptions& options, const GlobalOptions& globals) {
  if ((options.max_delta || options.max_kl) && options.against.empty())
    fail(ErrorKind::kUsage, {"a difference needs something to differ from",
                             {},
                             options.max_delta ? "--max-delta" : "--max-kl",
                             "add --against MODEL"});
  const std::pair<const char*, const std::optional<double>*> limits[] = {
      {"--max-ppl", &options.max_ppl}, {"--max-delta", &options.max_delta}, {"--max-kl", &options.max_kl}};
  for (const auto& [flag, limit] : limits)
    if (*limit && !std::isfinite(**limit))
      fail(ErrorKind::kUsage, {fmt::format("{} is no limit", **limit), {}, flag, "give a finite number"});
  options.request.head = head_weight(options.head);
  options.request.compute = chosen_compute(globals, Compute::kFloat32);
  kv_type_of(options.request.kv_cache_dtype, options.request.compute);
  options.request.on_window = throw_if_interrupted;
  return options.request;
}

int run(EvalPplOptions& options, const Session& session) {
  const GlobalOptions& globals = session.globals;
  watch_signals();
  const std::vector<Evaluation> evaluations = evaluate_together(
      {options.models, options.against, options.placement, [&] { return checked_request(options, globals); }},
      session);
  if (!session.is_first()) return 0;
  const Json document = evaluations_json(options, evaluations);
  write_gate_files(options.gate_files, document, false);
  if (globals.json) print_json(document);
  bool met = true;
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    const std::vector<Gate> gates = measured_gates(options, evaluations[i].result);
    met = met && all_met(gates);
    if (!globals.json) print_evaluation(options, options.models[i], evaluations[i], gates);
  }
  return met ? 0 : 3;
}

}  // namespace

void add_eval_ppl(CLI::App& app, Session& session) {
  auto options = std::make_shared<EvalPplOptions>();
  CLI::App* command = declare_command(
      app, "eval-ppl", "Measure perplexity, and how far a model is from its original",
      "  llmq eval-ppl out/model-awq\n  llmq eval-ppl out/model-awq --against DIR --max-kl 0.2 --json\n"
      "  llmq eval-ppl out/model-rtn out/model-awq --against DIR\n");
  EvaluationRequest& request = options->request;
  command
      ->add_option("models", options->models,
                   "Model to measure: directory, .gguf file or hub name. Of several, on the same text, "
                   "--against runs once")
      ->required()
      ->type_name("");
  command->add_option("--text", request.text, "Text to score; WikiText-2's test split when left out")
      ->type_name("FILE");
  command
      ->add_option("--protocol", request.protocol,
                   "hf (context 2048, no overlap), llama.cpp (context 512, second half scored) or lm-eval "
                   "(every token scored, as lm-evaluation-harness with max_length=CONTEXT does)")
      ->type_name("NAME");
  command->add_option("--context", request.context, "Tokens per window")->type_name("N");
  command
      ->add_option("--stride", request.stride,
                   "Tokens from one window to the next; the context when left out")
      ->type_name("N");
  command
      ->add_option("--max-windows", request.max_windows,
                   "Stop after so many windows; 0 scores the whole text")
      ->type_name("N");
  command
      ->add_option("--head", options->head,
                   "stored, or int8: the output head as generate --head int8 runs it")
      ->type_name("TYPE")
      ->capture_default_str();
  add_kv_cache_option(*command, request.kv_cache_dtype);
  add_placement_options(*command, options->placement);
  command->add_option("--lora", request.lora, "LoRA adapter, as PEFT saves it, that runs beside the model")
      ->type_name("DIR");
  command
      ->add_option("--against", options->against,
                   "The original: adds KL divergence and top-1 agreement on the same tokens")
      ->type_name("MODEL");
  command->add_option("--max-ppl", options->max_ppl, "Exit 3 when the perplexity is above this")
      ->type_name("X");
  command
      ->add_option("--max-delta", options->max_delta,
                   "Exit 3 when perplexity exceeds the original's by more than this")
      ->type_name("D");
  command->add_option("--max-kl", options->max_kl, "Exit 3 when the mean KL divergence is above this")
      ->type_name("K");
  add_gate_files(*command, options->gate_files);
  command->callback([options, &session] {
    session.shares_work = true;
    session.run = [options, &session] {
      if (!session.is_first()) options->gate_files = {};
      return run_with_gate_files(options->gate_files, "eval-ppl", [&] { return run(*options, session); });
    };
  });
}

}  // namespace llmq::tools
