#include "model/gguf/gguf_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/families/nearest_family.h"
#include "model/gguf/gguf_fields.h"

namespace llmq {
namespace {

std::string_view text_of(GgufKey key) {
  switch (key) {
    case GgufKey::kBlockCount:
      return "block_count";
    case GgufKey::kContextLength:
    case GgufKey::kStatedContextLength:
      return "context_length";
    case GgufKey::kEmbeddingLength:
      return "embedding_length";
    case GgufKey::kFeedForwardLength:
    case GgufKey::kFeedForwardLengths:
      return "feed_forward_length";
    case GgufKey::kHeadCount:
      return "attention.head_count";
    case GgufKey::kKvHeadCount:
    case GgufKey::kKvHeadCounts:
      return "attention.head_count_kv";
    case GgufKey::kRopeScaling:
      return "rope.scaling";
    case GgufKey::kNoRopeScaling:
      return "rope.scaling.type";
    case GgufKey::kOriginalContext:
      return "rope.scaling.original_context_length";
    case GgufKey::kFrequencyBase:
    case GgufKey::kUnusualFrequencyBase:
      return "rope.freq_base";
    case GgufKey::kNormEpsilon:
      return "attention.layer_norm_rms_epsilon";
    case GgufKey::kLayerNormEpsilon:
      return "attention.layer_norm_epsilon";
    case GgufKey::kKeyLength:
    case GgufKey::kUnusualKeyLength:
    case GgufKey::kFullKeyLength:
      return "attention.key_length";
    case GgufKey::kFileType:
      break;  // no key of an architecture
    case GgufKey::kTensorLayout:
      return "tensor_data_layout";
    case GgufKey::kVocabularySize:
      return "vocab_size";
    case GgufKey::kTurningDimensions:
    case GgufKey::kFullTurningDimensions:
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
    case GgufKey::kLogitMultiplier:
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
    case GgufKey::kWindowPattern:
      return "attention.sliding_window_pattern";
    case GgufKey::kWindowKeyLength:
      return "attention.key_length_swa";
    case GgufKey::kWindowTurningDimensions:
      return "rope.dimension_count_swa";
    case GgufKey::kSharedKvBlocks:
      return "attention.shared_kv_layers";
    case GgufKey::kEmbeddedWidth:
      return "embedding_length_per_layer_input";
    case GgufKey::kAttentionSoftcap:
      return "attn_logit_softcapping";
    case GgufKey::kLogitSoftcap:
      return "final_logit_softcapping";
    case GgufKey::kFurtherBlocks:
      return "nextn_predict_layers";
    case GgufKey::kConvolutionTaps:
      return "ssm.conv_kernel";
    case GgufKey::kStateKeyWidth:
      return "ssm.state_size";
    case GgufKey::kStateKeyHeads:
      return "ssm.group_count";
    case GgufKey::kStateValueHeads:
      return "ssm.time_step_rank";
    case GgufKey::kStateInnerWidth:
      return "ssm.inner_size";
    case GgufKey::kRecurrentBlocks:
      return "attention.recurrent_layers";
    case GgufKey::kAttentionInterval:
      return "full_attention_interval";
    case GgufKey::kStatedKeyLength:
    case GgufKey::kLatentLengths:
      return "attention.key_length";
    case GgufKey::kExpertGroups:
      return "expert_group_count";
    case GgufKey::kExpertGroupsUsed:
      return "expert_group_used_count";
    case GgufKey::kStatedGatingFunction:
      return "expert_gating_func";
    case GgufKey::kSharedExpertCount:
      return "expert_shared_count";
    case GgufKey::kDenseBlocks:
      return "leading_dense_block_count";
    case GgufKey::kMixtureInterval:
      return "interleave_moe_layer_step";
    case GgufKey::kExpertScale:
      return "expert_weights_scale";
    case GgufKey::kExpertsNormalized:
    case GgufKey::kExpertsNormalizedOrNot:
      return "expert_weights_norm";
    case GgufKey::kOneKvHead:
      return "attention.head_count_kv";
    case GgufKey::kQueryRank:
      return "attention.q_lora_rank";
    case GgufKey::kLatentRank:
      return "attention.kv_lora_rank";
    case GgufKey::kYarnLogMultiplier:
    case GgufKey::kYarnDivisor:
      return "rope.scaling.yarn_log_multiplier";
    case GgufKey::kQueryGrowth:
      return "attention.temperature_scale";
    case GgufKey::kRopeSections:
    case GgufKey::kDefaultRopeSections:
      return "rope.dimension_sections";
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

// "; nearest is qwen3moe by its name", or nothing.
std::string nearest_architecture(std::string_view asked) {
  std::vector<std::string_view> known;
  for (const Family* family : families())
    if (family->gguf != nullptr) known.push_back(family->gguf->architecture);
  const std::string nearest = nearest_name(asked, known);
  return nearest.empty() ? "" : fmt::format("; nearest is {} by its name", nearest);
}

bool reads(const GgufFamily& family, bool windowed) {
  return family.window == GgufWindow::kAlways || family.window == GgufWindow::kOrNone ||
         (family.window == GgufWindow::kIfThere) == windowed;
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
    const bool dense = family->gguf->dense_too && experts == 0;
    if (reads_experts(*family->gguf) != (experts != 0) && !dense) continue;
    if (family->gguf->has(GgufKey::kStatedGatingFunction) &&
        (family->gguf->score == RouterScore::kSigmoid) !=
            (header.find_integer(family->gguf->key(GgufKey::kStatedGatingFunction)) == kGgufSigmoid))
      continue;
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
  const std::string asked = architecture.substr(0, 64);
  unsupported_gguf(header, "general.architecture",
                   fmt::format("architecture \"{}\" is not read from GGUF{}; {} are", asked,
                               nearest_architecture(asked), architectures(any_family)));
}

std::string name_in_decoder(const ModelSpec& spec, const std::string& tensor) {
  if (!spec.wrapper || !tensor.starts_with(spec.wrapper->prefix + ".")) return tensor;
  return "model" + tensor.substr(spec.wrapper->prefix.size());
}

const AttentionSpec* gguf_attention(const ModelSpec& spec) {
  for (const BlockSpec& block : spec.blocks)
    if (const AttentionSpec* const attention = block.attention()) return attention;
  return nullptr;
}

GgufWidths gguf_widths(const ModelSpec& spec) {
  GgufWidths widths{.hidden = spec.hidden_size};
  for (const BlockSpec& block : spec.blocks)
    if (const DeltaSpec* const delta = block.delta()) {
      widths.key_heads = delta->heads.key_heads, widths.value_heads = delta->heads.value_heads;
      widths.key_dim = delta->heads.key_dim, widths.value_dim = delta->heads.value_dim;
      widths.taps = delta->taps;
    } else if (const LatentAttentionSpec* const latent = block.latent_attention()) {
      widths.heads = latent->heads, widths.rank = latent->rank;
      widths.plain = latent->plain, widths.latent_value_dim = latent->value_dim;
    } else if (const AttentionSpec* const own = block.attention(); own != nullptr && own->grouped) {
      widths.groups = own->kv_heads, widths.group_queries = own->queries_of_group();
      widths.head_dim = own->head_dim;
    }
  return widths;
}

const GgufFamily* gguf_family(std::string_view model_type) {
  for (const Family* family : families())
    if (model_type == family->model_type) return family->gguf;
  return nullptr;
}

const GgufFamily* gguf_family(const ModelSpec& spec) {
  if (!spec.wrapper) return gguf_family(spec.family);
  const GgufFamily* const decoder = gguf_family(spec.wrapper->decoder);
  return decoder != nullptr && decoder->in_tower != nullptr ? decoder->in_tower : decoder;
}

}  // namespace llmq
