#include "job/evaluation.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "calibration/calibration_text.h"
#include "io/digest_cache.h"
#include "job/input_files.h"
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

std::string shared_text(const PreparedEvaluation& prepared, const Ranks& ranks) {
  std::uint64_t bytes = 0;
  for (std::size_t w = 0; w < prepared.windows.size(); ++w)
    if (w % static_cast<std::size_t>(ranks.size()) != 0) bytes += shared_score_bytes(prepared.windows[w]);
  return fmt::format("{} ranks share {} windows; {} of scores come to rank 0", ranks.size(),
                     prepared.windows.size(), bytes_text(bytes * prepared.engines.size()));
}

}  // namespace

PreparedEvaluation prepare_evaluation(std::span<const LoadedModel> models, const LoadedModel* against,
                                      const std::shared_ptr<Backend>& backend,
                                      const EvaluationRequest& request, int ranks) {
  const LoadedModel& first = models.front();
  PreparedEvaluation made;
  made.protocol =
      resolve_protocol(request.protocol, request.context, request.stride, request.max_windows, first.spec);
  const Path path = resolve_text(system_io(), request.text);
  made.text = read_text(system_io(), path, std::uint64_t{1} << 32);
  const bool rolling = made.protocol.name == "lm-eval";
  const std::vector<std::int32_t> ids = encode_text(first.tokenizer, made.text, path.string(), !rolling);
  for (const LoadedModel& model : models.subspan(1))
    must_fit(model, "model", first, made.protocol, made.text, !rolling, ids);
  if (against) must_fit(*against, "--against", first, made.protocol, made.text, !rolling, ids);
  made.tokens = static_cast<std::int64_t>(ids.size());
  made.text_sha256 = sha256_hex(std::as_bytes(std::span(made.text)));
  made.windows = cut_windows(ids, made.protocol, first_token(first.tokenizer, made.protocol.name));
  if (static_cast<std::size_t>(ranks) > made.windows.size())
    fail(ErrorKind::kUsage, {fmt::format("{} ranks are more than the {} windows that they would share", ranks,
                                         made.windows.size()),
                             {},
                             "--ranks",
                             fmt::format("start {} or fewer, or score more windows", made.windows.size())});
  made.engines.reserve(models.size());
  for (const LoadedModel& model : models) {
    Engine& engine = made.engines.emplace_back(load_engine(model, backend, made.protocol.context, request));
    log_kernels(engine);
    if (!request.lora.empty()) engine.adapt(open_adapter(model, request.lora));
  }
  EvaluationRequest plain;
  plain.compute = request.compute;
  if (against) made.against = load_engine(*against, backend, made.protocol.context, plain);
  return made;
}

std::vector<Fact> evaluation_facts(const PreparedEvaluation& prepared, std::span<const LoadedModel> models,
                                   const LoadedModel* against, const EvaluationRequest& request) {
  const char* same = "start every rank with the same words";
  std::string arithmetic = prepared.engines.front().backend().arithmetic();
  if (request.early.count > 0)
    arithmetic += fmt::format(", {} blocks {}", request.early.count, request.early.backend->arithmetic());
  std::vector<Fact> facts = {
      {"arithmetic", arithmetic, "use machines of one kind, or LLMQ_CPU_ISA=avx2 and --device cpu on all"},
      {"measurement",
       fmt::format("{}, {} windows, {}, head {}, KV cache {}, {} model{}, --against {}, --lora {}",
                   prepared.protocol.id(), prepared.windows.size(), compute_name(request.compute),
                   request.head == HeadWeight::kStored ? "stored" : "int8", request.kv_cache_dtype,
                   models.size(), models.size() == 1 ? "" : "s", against ? "yes" : "no",
                   request.lora.empty() ? "no" : "yes"),
       same},
      {"text", prepared.text_sha256, same}};
  const char* copy = "give every rank the same files";
  DigestCache digests(system_io(), DigestCache::default_file());
  const auto add = [&](const std::string& name, const Path& path) {
    facts.push_back({name, digests.sha256(path), copy});
  };
  for (std::size_t i = 0; i < models.size(); ++i)
    for (const InputFile& file : model_files(system_io(), models[i].checkpoint))
      add(models.size() == 1 ? file.name : fmt::format("{} of model {}", file.name, i + 1), file.path);
  if (against)
    for (const InputFile& file : model_files(system_io(), against->checkpoint))
      add(file.name + " of --against", file.path);
  if (!request.lora.empty())
    for (const Path& path : LoraAdapter::files(system_io(), request.lora))
      add("adapter/" + path.filename().string(), path);
  digests.save();
  return facts;
}

std::vector<Evaluation> run_evaluation(PreparedEvaluation& prepared, const EvaluationRequest& request,
                                       Ranks& ranks) {
  const std::size_t mine =
      (prepared.windows.size() + static_cast<std::size_t>(ranks.size() - 1 - ranks.rank())) /
      static_cast<std::size_t>(ranks.size());
  if (ranks.size() > 1) Log::get().note(shared_text(prepared, ranks));
  Progress progress("eval-ppl", static_cast<double>(mine));
  std::vector<Engine*> each;
  for (Engine& engine : prepared.engines) each.push_back(&engine);
  std::vector<PerplexityResult> results = evaluate_perplexities(
      each, prepared.against ? &*prepared.against : nullptr, prepared.windows,
      [&](std::int64_t done, double ppl) {
        request.on_window();
        progress.advance(1, fmt::format("window {}/{}", done, mine), fmt::format("perplexity {:.4f}", ppl),
                         done % 16 == 0);
      },
      &ranks);
  std::vector<Evaluation> evaluations;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Engine& engine = prepared.engines[i];
    Evaluation& made = evaluations.emplace_back();
    made = {engine.device_name(),  prepared.protocol.id(), request.text,          prepared.text_sha256,
            std::move(results[i]), kernels_json(engine),   kv_cache_json(engine), {}};
    if (prepared.protocol.name == "lm-eval" && made.result.scored_tokens == prepared.tokens)
      made.rates = text_rates(prepared.text, made.result);
  }
  return evaluations;
}

std::vector<Evaluation> evaluate(std::span<const LoadedModel> models, const LoadedModel* against,
                                 const std::shared_ptr<Backend>& backend, const EvaluationRequest& request) {
  OneRank alone;
  PreparedEvaluation prepared = prepare_evaluation(models, against, backend, request, alone.size());
  return run_evaluation(prepared, request, alone);
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
