#include "model/gguf/gguf_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/gguf/gguf_fields.h"

namespace llmq {
namespace {

std::string_view text_of(GgufKey key) {
  switch (key) {
    case GgufKey::kBlockCount:
      return "block_count";
    case GgufKey::kContextLength:
      return "context_length";
    case GgufKey::kEmbeddingLength:
      return "embedding_length";
    case GgufKey::kFeedForwardLength:
      return "feed_forward_length";
    case GgufKey::kHeadCount:
      return "attention.head_count";
    case GgufKey::kKvHeadCount:
      return "attention.head_count_kv";
    case GgufKey::kRopeScaling:
      return "rope.scaling";
    case GgufKey::kOriginalContext:
      return "rope.scaling.original_context_length";
    case GgufKey::kFrequencyBase:
      return "rope.freq_base";
    case GgufKey::kNormEpsilon:
      return "attention.layer_norm_rms_epsilon";
    case GgufKey::kKeyLength:
    case GgufKey::kUnusualKeyLength:
      return "attention.key_length";
    case GgufKey::kFileType:
      break;  // no key of an architecture
    case GgufKey::kVocabularySize:
      return "vocab_size";
    case GgufKey::kTurningDimensions:
      return "rope.dimension_count";
    case GgufKey::kWindow:
      return "attention.sliding_window";
    case GgufKey::kAttentionScale:
      return "attention.scale";
    case GgufKey::kEmbeddingScale:
      return "embedding_scale";
    case GgufKey::kResidualScale:
      return "residual_scale";
    case GgufKey::kLogitScale:
      return "logit_scale";
    case GgufKey::kExpertCount:
      return "expert_count";
    case GgufKey::kExpertUsedCount:
      return "expert_used_count";
    case GgufKey::kExpertWidth:
      return "expert_feed_forward_length";
    case GgufKey::kSharedExpertWidth:
      return "expert_shared_feed_forward_length";
    case GgufKey::kGatingFunction:
      return "expert_gating_func";
    case GgufKey::kWindowFrequencyBase:
      return "rope.freq_base_swa";
    case GgufKey::kAttentionSoftcap:
      return "attn_logit_softcapping";
    case GgufKey::kLogitSoftcap:
      return "final_logit_softcapping";
  }
  return {};
}

bool any_family(const GgufFamily&) { return true; }
bool reads_windows(const GgufFamily& family) { return family.window != GgufWindow::kNone; }
bool reads_experts(const GgufFamily& family) { return family.experts != GgufExperts::kNone; }

// "llama, qwen2 and qwen3" of those families that are meant.
std::string architectures(bool (*meant)(const GgufFamily& family)) {
  std::vector<std::string_view> names;
  for (const Family* family : families())
    if (family->gguf != nullptr && meant(*family->gguf) &&
        std::find(names.begin(), names.end(), family->gguf->architecture) == names.end())
      names.emplace_back(family->gguf->architecture);
  std::string text;
  for (const std::string_view name : names)
    text += fmt::format("{}{}", text.empty() ? "" : name == names.back() ? " and " : ", ", name);
  return text;
}

bool reads(const GgufFamily& family, bool windowed) {
  return family.window == GgufWindow::kAlways || (family.window == GgufWindow::kIfThere) == windowed;
}

}  // namespace

bool GgufFamily::has(GgufKey key) const { return std::find(keys.begin(), keys.end(), key) != keys.end(); }

std::string GgufFamily::key(GgufKey key) const { return fmt::format("{}.{}", architecture, text_of(key)); }

const Family& family_of_gguf(const GgufHeader& header) {
  const std::string architecture(header.string("general.architecture"));
  const bool windowed = gguf_window(header) > 0;
  const std::string experts_key = architecture + ".expert_count";
  const std::int64_t experts = header.find_integer(experts_key).value_or(0);
  bool known = false, known_experts = false;
  for (const Family* family : families()) {
    if (family->gguf == nullptr || architecture != family->gguf->architecture) continue;
    known = true;
    if (reads_experts(*family->gguf) != (experts != 0)) continue;
    if (reads(*family->gguf, windowed)) return *family;
    known_experts = true;
  }
  if (known && !known_experts)
    unsupported_gguf(
        header, experts_key,
        fmt::format("is {}; mixtures of experts are read of {}, and nothing else of some of them", experts,
                    architectures(reads_experts)));
  if (known)
    unsupported_gguf(header, architecture + ".attention.sliding_window",
                     fmt::format("sliding windows are read for {} only", architectures(reads_windows)));
  unsupported_gguf(header, "general.architecture",
                   fmt::format("architecture \"{}\" is not read from GGUF; {} are",
                               architecture.substr(0, 64), architectures(any_family)));
}

const GgufFamily* gguf_family(std::string_view model_type) {
  for (const Family* family : families())
    if (model_type == family->model_type) return family->gguf;
  return nullptr;
}

}  // namespace llmq
