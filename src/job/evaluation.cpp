#include "job/evaluation.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "calibration/calibration_text.h"
#include "job/kv_cache_choice.h"
#include "job/run_adapter.h"
#include "job/served_kernels.h"

namespace llmq {
namespace {

// The token in front that a protocol asks for. llama.cpp's: BOS, only where the tokenizer itself puts it
// there. lm-eval's: BOS, or else EOS, before a text that has no special tokens of its own.
std::optional<std::int32_t> first_token(const Tokenizer& tokenizer, const std::string& protocol) {
  if (protocol == "lm-eval") return tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
  const std::vector<std::int32_t> with = tokenizer.encode("a", true), without = tokenizer.encode("a", false);
  if (with.size() > without.size() && with.front() != without.front()) return with.front();
  return std::nullopt;
}

Engine load_engine(const LoadedModel& model, const std::shared_ptr<Backend>& backend, std::int64_t context,
                   const EvaluationRequest& request) {
  Engine::Options options;
  options.head = request.head;
  options.compute = request.compute;
  options.max_context = context;
  options.kv_tokens = context;
  options.early = request.early;
  options.further_members = request.further_members;
  choose_kv_cache(options, request.kv_cache_dtype, model.tokenizer);
  return Engine::load(model.checkpoint, backend, options);
}

// Another model than the first reads the same tokens, and has positions for them.
void must_fit(const LoadedModel& model, const char* argument, const LoadedModel& first,
              const PerplexityProtocol& protocol, const std::string& text, bool special,
              const std::vector<std::int32_t>& ids) {
  if (protocol.context > model.spec.max_position)
    fail(ErrorKind::kUsage, {fmt::format("context {} is longer than the {} positions of {}", protocol.context,
                                         model.spec.max_position, model.name),
                             {},
                             "--context",
                             "choose a smaller context"});
  if (model.tokenizer.encode(text, special) != ids)
    fail(ErrorKind::kBadInput, {"its tokenizer gives other ids for this text than that of " + first.name,
                                model.name, argument, "compare a model with the one it was made from"});
}

}  // namespace

std::vector<Evaluation> evaluate(std::span<const LoadedModel> models, const LoadedModel* against,
                                 const std::shared_ptr<Backend>& backend, const EvaluationRequest& request) {
  const LoadedModel& first = models.front();
  const PerplexityProtocol protocol =
      resolve_protocol(request.protocol, request.context, request.stride, request.max_windows, first.spec);
  const Path path = resolve_text(system_io(), request.text);
  const std::string text = read_text(system_io(), path, std::uint64_t{1} << 32);
  const bool rolling = protocol.name == "lm-eval";
  const std::vector<std::int32_t> ids = encode_text(first.tokenizer, text, path.string(), !rolling);
  for (const LoadedModel& model : models.subspan(1))
    must_fit(model, "model", first, protocol, text, !rolling, ids);
  if (against) must_fit(*against, "--against", first, protocol, text, !rolling, ids);
  const std::vector<Window> windows = cut_windows(ids, protocol, first_token(first.tokenizer, protocol.name));
  std::vector<Engine> engines;
  engines.reserve(models.size());
  for (const LoadedModel& model : models) {
    Engine& engine = engines.emplace_back(load_engine(model, backend, protocol.context, request));
    log_kernels(engine);
    if (!request.lora.empty()) engine.adapt(open_adapter(model, request.lora));
  }
  std::optional<Engine> reference;
  EvaluationRequest plain;
  plain.compute = request.compute;
  if (against) reference = load_engine(*against, backend, protocol.context, plain);

  Progress progress("eval-ppl", static_cast<double>(windows.size()));
  std::vector<Engine*> each;
  for (Engine& engine : engines) each.push_back(&engine);
  std::vector<PerplexityResult> results = evaluate_perplexities(
      each, reference ? &*reference : nullptr, windows, [&](std::int64_t done, double ppl) {
        request.on_window();
        progress.advance(1, fmt::format("window {}/{}", done, windows.size()),
                         fmt::format("perplexity {:.4f}", ppl), done % 16 == 0);
      });
  const std::string digest = sha256_hex(std::as_bytes(std::span(text)));
  std::vector<Evaluation> evaluations;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    Evaluation& made = evaluations.emplace_back();
    made = {engines[i].device_name(),
            protocol.id(),
            request.text,
            digest,
            std::move(results[i]),
            kernels_json(engines[i]),
            kv_cache_json(engines[i]),
            {}};
    if (rolling && made.result.scored_tokens == static_cast<std::int64_t>(ids.size()))
      made.rates = text_rates(text, made.result);
  }
  return evaluations;
}

Evaluation evaluate(const LoadedModel& model, const LoadedModel* against,
                    const std::shared_ptr<Backend>& backend, const EvaluationRequest& request) {
  return std::move(evaluate(std::span(&model, 1), against, backend, request).front());
}

Json divergence_json(const Divergence& d, const std::string& model) {
  return Json::object({{"model", model},
                       {"ppl", d.reference_ppl},
                       {"ppl_stderr", d.reference_ppl_stderr},
                       {"delta_ppl", d.delta_ppl},
                       {"kl_mean", d.kl_mean},
                       {"kl_stderr", d.kl_stderr},
                       {"kl_p99", d.kl_p99},
                       {"kl_max", d.kl_max},
                       {"top1_agreement", d.top1_agreement}});
}

std::string gate_text(const Gate& gate) {
  return fmt::format("gate {}: limit {}, found {:.6g}: {}", gate.name, gate.limit, gate.value,
                     gate.met() ? "met" : "NOT met");
}

Json gates_json(const std::vector<Gate>& gates) {
  Json list = Json::array();
  for (const Gate& gate : gates)
    list.push_back(Json::object(
        {{"name", gate.name}, {"limit", gate.limit}, {"value", gate.value}, {"met", gate.met()}}));
  return list;
}

bool all_met(const std::vector<Gate>& gates) {
  return std::all_of(gates.begin(), gates.end(), [](const Gate& gate) { return gate.met(); });
}

}  // namespace llmq
