#include "tools/loaded_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "calibration/calibration_text.h"
#include "tools/interrupt.h"
#include "tools/kv_cache_option.h"
#include "tools/run_adapter.h"

namespace llmq::tools {

LoadedModel open_model(Io& io, const std::string& name) {
  Checkpoint checkpoint = Checkpoint::open(io, name);
  ModelSpec spec = ModelSpec::read(checkpoint);
  Tokenizer tokenizer = Tokenizer::open(io, checkpoint.path());
  if (tokenizer.vocabulary_size() > spec.vocab_size)
    fail(ErrorKind::kBadInput,
         {fmt::format("the tokenizer has {} tokens, but the embedding has {} rows",
                      tokenizer.vocabulary_size(), spec.vocab_size),
          checkpoint.path().string(), "tokenizer.json", "use the tokenizer this model was trained with"});
  return_freed_memory();  // tokenizer.json as a tree is larger than the tokenizer
  return {name, std::move(checkpoint), std::move(spec), std::move(tokenizer)};
}

std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, const std::string& text,
                                      const std::string& source, bool special) {
  try {
    return tokenizer.encode(text, special);
  } catch (const Error& error) {
    if (!error.detail().file.empty()) throw;
    ErrorDetail detail = error.detail();
    detail.file = source;
    throw Error(error.kind(), detail);
  }
}

ChatTemplate model_chat_template(Io& io, const Path& model) {
  std::optional<ChatTemplate> found = ChatTemplate::open(io, model);
  if (!found)
    fail(ErrorKind::kBadInput, {"the model has no chat template",
                                model.string(),
                                {},
                                "take an instruct model, or put a chat_template.jinja beside its tokenizer"});
  return *std::move(found);
}

namespace {

// BOS as the llama.cpp protocol wants it: only where the tokenizer itself puts one in front.
std::optional<std::int32_t> added_bos(const Tokenizer& tokenizer) {
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

}  // namespace

Evaluation evaluate(const LoadedModel& model, const LoadedModel* against,
                    const std::shared_ptr<Backend>& backend, const EvaluationRequest& request) {
  const PerplexityProtocol protocol =
      resolve_protocol(request.protocol, request.context, request.stride, request.max_windows, model.spec);
  if (against && protocol.context > against->spec.max_position)
    fail(ErrorKind::kUsage, {fmt::format("context {} is longer than the {} positions of {}", protocol.context,
                                         against->spec.max_position, against->name),
                             {},
                             "--context",
                             "choose a smaller context"});
  const Path path = resolve_text(system_io(), request.text);
  const std::string text = read_text(system_io(), path, std::uint64_t{1} << 32);
  const std::vector<std::int32_t> ids = encode_text(model.tokenizer, text, path.string());
  if (against && against->tokenizer.encode(text) != ids)
    fail(ErrorKind::kBadInput, {"its tokenizer gives other ids for this text than that of " + model.name,
                                against->name, "--against", "compare a model with the one it was made from"});
  const std::vector<Window> windows = cut_windows(ids, protocol, added_bos(model.tokenizer));
  Engine engine = load_engine(model, backend, protocol.context, request);
  log_kernels(engine);
  if (!request.lora.empty()) engine.adapt(open_adapter(model, request.lora));
  std::optional<Engine> reference;
  EvaluationRequest plain;
  plain.compute = request.compute;
  if (against) reference = load_engine(*against, backend, protocol.context, plain);

  Progress progress("eval-ppl", static_cast<double>(windows.size()));
  Evaluation evaluation{engine.device_name(),
                        protocol.id(),
                        request.text,
                        sha256_hex(std::as_bytes(std::span(text))),
                        {},
                        kernels_json(engine),
                        kv_cache_json(engine)};
  evaluation.result = evaluate_perplexity(
      engine, reference ? &*reference : nullptr, windows, [&](std::int64_t done, double ppl) {
        throw_if_interrupted();
        progress.advance(1, fmt::format("window {}/{}", done, windows.size()),
                         fmt::format("perplexity {:.4f}", ppl), done % 16 == 0);
      });
  return evaluation;
}

HeadWeight head_weight(const std::string& word) {
  if (word == "stored") return HeadWeight::kStored;
  if (word == "int8") return HeadWeight::kInt8;
  fail(ErrorKind::kUsage, {"head '" + word + "' is not known", {}, "--head", "use stored or int8"});
}

void log_kernels(const Engine& engine) {
  std::string line = engine.device_name() + ": ";
  for (const Engine::Served& s : engine.served())
    line += fmt::format("{}{} as {}", line.ends_with(": ") ? "" : "; ",
                        s.linears == 1 ? s.weights : fmt::format("{} {} linears", s.linears, s.weights),
                        s.kernel);
  Log::get().note(line);
  for (const std::string& reason : engine.slower_than_possible()) Log::get().warn(reason);
}

Json kernels_json(const Engine& engine) {
  Json list = Json::array();
  for (const Engine::Served& s : engine.served())
    list.push_back(Json::object(
        {{"weights", s.weights}, {"kernel", s.kernel}, {"linears", s.linears}, {"bytes", s.bytes}}));
  return list;
}

Json divergence_json(const Divergence& d, const std::string& model) {
  return Json::object({{"model", model},
                       {"ppl", d.reference_ppl},
                       {"delta_ppl", d.delta_ppl},
                       {"kl_mean", d.kl_mean},
                       {"kl_stderr", d.kl_stderr},
                       {"kl_p99", d.kl_p99},
                       {"kl_max", d.kl_max},
                       {"top1_agreement", d.top1_agreement}});
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

}  // namespace llmq::tools
