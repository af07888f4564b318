#include "job/kv_cache_choice.h"

#include "base/error.h"
#include "calibration/calibration_text.h"
#include "quant/plan/capacity_estimate.h"

namespace llmq {
namespace {

constexpr std::size_t kProbeTokens = 1024, kProbeBytes = 16 << 10;

std::vector<std::int32_t> probe_text(const Tokenizer& tokenizer) {
  std::string text = read_text(system_io(), resolve_text(system_io(), "builtin:c4"), std::uint64_t{1} << 32);
  // between characters
  if (const std::size_t end = text.rfind(' ', kProbeBytes);
      text.size() > kProbeBytes && end != std::string::npos)
    text.resize(end);
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (ids.size() > kProbeTokens) ids.resize(kProbeTokens);
  return ids;
}

}  // namespace

KvType kv_type_of(const std::string& word, Compute compute) {
  if (word == "auto") return {activation_dtype(compute)};
  return kv_layout(word).type;
}

void choose_kv_cache(Engine::Options& options, const std::string& word, const Tokenizer& tokenizer) {
  options.kv = kv_type_of(word, options.compute);
  if (options.kv->packed == kKvInt8 || options.kv->packed == kKvInt4)
    options.kv_probe = probe_text(tokenizer);
}

std::string named_with_kv_cache(const std::string& scheme, const std::string& word) {
  return word == "auto" ? scheme : scheme + ", KV " + word;
}

Json kv_cache_json(const Engine& engine) {
  const ModelSpec& spec = engine.spec();
  const KvType type = engine.options().kv.value();
  return Json::object(
      {{"dtype", kv_layout(type).name}, {"bytes_per_token", static_cast<std::int64_t>(spec.kv_bytes(type))}});
}

}  // namespace llmq
