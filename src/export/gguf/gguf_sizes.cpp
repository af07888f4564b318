#include "export/gguf/gguf_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "export/gguf/gguf_places.h"
#include "export/gguf/gguf_rope.h"
#include "model/gguf/gguf_fields.h"

namespace llmq {
namespace {

constexpr std::int64_t kDefaultInterval = 4;  // of the converter, where full_attention_interval is absent
constexpr double kUsualRopeTheta = 10000;     // of llama.cpp, where rope.freq_base is absent

bool has_mixture(const BlockSpec& block) { return block.mixture() != nullptr; }

// What check_gguf_family() lets pass has the same sizes in all blocks that have them.
class SizeWriter {
 public:
  SizeWriter(const Checkpoint& checkpoint, const ModelSpec& spec, const GgufFamily& family,
             const GgufFileType& file_type, GgufMetadata& metadata)
      : config_(decoder_config(checkpoint.config(), spec)),
        spec_(spec),
        family_(family),
        file_type_(file_type),
        metadata_(metadata),
        widths_(gguf_widths(spec)),
        further_(further_gguf_blocks(checkpoint, spec, family)),
        attention_(gguf_attention(spec)) {
    for (const BlockSpec& block : spec.blocks) {
      if (mixture_ == nullptr) mixture_ = block.mixture();
      if (latent_ == nullptr) latent_ = block.latent_attention();
      window_ = std::max(window_, block.pages.window);
    }
  }

  void add(GgufKey key) {
    if (add_common(key) || add_rope(key) || add_experts(key) || add_state(key)) return;
    add_latent(key);
  }

 private:
  static const Json& decoder_config(const Json& config, const ModelSpec& spec) {
    const Json* const text = spec.wrapper ? config.find("text_config") : nullptr;
    return text == nullptr ? config : *text;
  }

  bool says(const char* key) const {
    const Json* const value = config_.find(key);
    return value != nullptr && !value->is_null();
  }

  std::int64_t stated_integer(const char* key, std::int64_t otherwise) const {
    const Json* const said = config_.find(key);
    return said != nullptr && said->is_integer() ? said->as_integer() : otherwise;
  }

  bool has_unusual_heads() const {
    return attention_ != nullptr && spec_.hidden_size != attention_->inner_width();
  }

  // Of attention; over latents that of the channels that turn, as which config.json has head_dim.
  bool put_head_width() {
    const std::int64_t width = latent_ != nullptr ? latent_->rope.dims : attention_->head_dim;
    put_lengths(width, width, "");
    return true;
  }
  void put_lengths(std::int64_t keys, std::int64_t values, const char* suffix) {
    for (const auto& [name, length] : {std::pair{"key_length", keys}, std::pair{"value_length", values}})
      metadata_.set_u32(fmt::format("{}.attention.{}{}", family_.architecture, name, suffix),
                        static_cast<std::uint32_t>(length));
  }

  bool put(GgufKey key, std::int64_t value) {
    metadata_.set_u32(family_.key(key), static_cast<std::uint32_t>(value));
    return true;
  }
  // A list where it is `listed`, or where blocks differ.
  bool put_by_block(GgufKey key, std::int64_t (*of)(const BlockSpec& block), bool listed) {
    std::vector<std::int32_t> all;
    for (const BlockSpec& block : spec_.blocks) all.push_back(static_cast<std::int32_t>(of(block)));
    if (!listed && std::equal(all.begin() + 1, all.end(), all.begin())) return put(key, all.front());
    metadata_.set_i32s(family_.key(key), all);
    return true;
  }
  // Whether config.json says them of blocks of full attention alone, in the form of either Transformers.
  bool says_full_kv_heads() const {
    if (says("num_global_key_value_heads")) return true;
    const Json* const by_block = config_.find("per_layer_config");
    if (by_block == nullptr || !by_block->is_object()) return false;
    return std::any_of(by_block->members().begin(), by_block->members().end(), [&](const auto& entry) {
      for (std::size_t i = 0; i < spec_.blocks.size(); ++i)
        if (entry.first == std::to_string(i) && spec_.blocks[i].attention()->window == 0)
          return entry.second.find("num_key_value_heads") != nullptr;
      return false;
    });
  }
  // Of the first block with a window, or without.
  std::int64_t head_dim_of(bool windowed) const {
    return std::find_if(spec_.blocks.begin(), spec_.blocks.end(),
                        [&](const BlockSpec& block) { return (block.attention()->window != 0) == windowed; })
        ->attention()
        ->head_dim;
  }
  bool put_number(GgufKey key, double value) {
    metadata_.set_f32(family_.key(key), static_cast<float>(value));
    return true;
  }

  // intermediate_size, which no block need have where all have experts.
  bool add_width() {
    const MlpSpec* const mlp = spec_.blocks.front().mlp();
    if (mlp != nullptr) return put(GgufKey::kFeedForwardLength, mlp->width);
    for (const char* const name : {"intermediate_size_mlp", "intermediate_size"})
      if (const Json* const dense = config_.find(name); dense != nullptr && dense->is_integer())
        return put(GgufKey::kFeedForwardLength, dense->as_integer());
    return true;
  }

  bool add_common(GgufKey key) {
    switch (key) {
      case GgufKey::kBlockCount:
        return put(key, std::ssize(spec_.blocks) + further_);
      case GgufKey::kContextLength:
        return put(key, spec_.max_position);
      case GgufKey::kStatedContextLength:
        return put(key, stated_integer("model_max_length", spec_.max_position));
      case GgufKey::kEmbeddingLength:
        return put(key, spec_.hidden_size);
      case GgufKey::kFeedForwardLengths:
        return put_by_block(
            key, [](const BlockSpec& block) { return block.mlp()->width; }, false);
      case GgufKey::kKvHeadCounts:
        return put_by_block(
            key, [](const BlockSpec& block) { return std::int64_t{block.attention()->kv_heads}; },
            says_full_kv_heads());
      case GgufKey::kFullKeyLength:
        put_lengths(head_dim_of(false), head_dim_of(false), "");
        return true;
      case GgufKey::kWindowKeyLength:
        put_lengths(head_dim_of(true), head_dim_of(true), "_swa");
        return true;
      case GgufKey::kSharedKvBlocks:
        return put(key, std::count_if(spec_.blocks.begin(), spec_.blocks.end(), [](const BlockSpec& block) {
                     return block.attention()->shared_pages.has_value();
                   }));
      case GgufKey::kEmbeddedWidth:
        return put(key, spec_.block_embedding ? spec_.block_embedding->width : 0);
      case GgufKey::kFeedForwardLength:
        return add_width();
      case GgufKey::kHeadCount:
        return put(key, latent_ != nullptr ? latent_->heads : attention_->heads);
      case GgufKey::kKvHeadCount:
        return put(key, attention_->kv_heads);
      case GgufKey::kNormEpsilon:
      case GgufKey::kLayerNormEpsilon:
        return put_number(key, spec_.final_norm.eps);
      case GgufKey::kUnusualKeyLength:
        return !has_unusual_heads() || put_head_width();
      case GgufKey::kStatedKeyLength:
        return (!says("head_dim") && !has_unusual_heads()) || put_head_width();
      case GgufKey::kKeyLength:
        return put_head_width();
      case GgufKey::kFileType:
        metadata_.set_u32(kFileTypeKey, file_type_.id);
        return true;
      case GgufKey::kTensorLayout:
        metadata_.set_string(family_.key(key), "jploski");
        return true;
      case GgufKey::kVocabularySize:
        return put(key, spec_.vocab_size);
      case GgufKey::kWindow:
        if (window_ != 0 || family_.window == GgufWindow::kAlways) put(key, window_);
        return true;
      case GgufKey::kWindowPattern:
        if (window_ != 0)  // pages may be another block's
          add_flags(key, [](const BlockSpec& block) {
            return block.attention() != nullptr && block.attention()->window != 0;
          });
        return true;
      case GgufKey::kAttentionSoftcap:
        return attention_->softcap == 0 || put_number(key, attention_->softcap);
      case GgufKey::kLogitSoftcap:
        return spec_.logit_softcap == 0 || put_number(key, spec_.logit_softcap);
      case GgufKey::kAttentionScale:
        return put_number(key, attention_->scale);
      case GgufKey::kEmbeddingScale:
        return put_number(key, spec_.embedding.scale);
      case GgufKey::kResidualScale:
        return put_number(key, spec_.blocks.front().sublayers.front().residual_scale);
      case GgufKey::kLogitScale:
        return put_number(key, 1 / spec_.final_norm.scale);
      case GgufKey::kLogitMultiplier:
        return put_number(key, spec_.final_norm.scale);
      case GgufKey::kFurtherBlocks:
        return further_ == 0 || put(key, further_);
      default:
        return false;
    }
  }

  bool add_rope(GgufKey key) {
    const RopeSpec& rope = gguf_rope(spec_);
    switch (key) {
      case GgufKey::kRopeScaling:
        add_rope_scaling(rope, family_, stated_rope(), metadata_);
        return true;
      case GgufKey::kNoRopeScaling:
        metadata_.set_string(family_.key(key), "none");
        return true;
      case GgufKey::kYarnDivisor:
        return rope.kind != RopeKind::kYarn || put_number(key, rope.mscale_all_dim);
      case GgufKey::kQueryGrowth:
        return rope.kind != RopeKind::kYarn || put_number(key, spec_.ropes.back().growth);
      case GgufKey::kOriginalContext:
        return put(key, rope.original_max_position);
      case GgufKey::kFrequencyBase:
        return put_number(key, rope.theta);
      case GgufKey::kUnusualFrequencyBase:
        return rope.theta == kUsualRopeTheta || put_number(key, rope.theta);
      case GgufKey::kWindowFrequencyBase:
        return put_number(key, spec_.ropes.back().theta);
      case GgufKey::kFullTurningDimensions:
        return put(key, head_dim_of(false));
      case GgufKey::kWindowTurningDimensions:
        return put(key, head_dim_of(true));
      case GgufKey::kTurningDimensions:
        return put(key, rope.dims);
      case GgufKey::kRopeSections:
        if (const std::vector<std::int32_t> said = sections(); !said.empty())
          metadata_.set_i32s(family_.key(key), said);
        return true;
      case GgufKey::kDefaultRopeSections:
        if (sections().empty())
          metadata_.set_i32s(family_.key(key), std::vector<std::int32_t>{11, 11, 10, 0});
        return true;
      default:
        return false;
    }
  }

  Json stated_rope() const {
    for (const char* const place : {"rope_parameters", "rope_scaling"})
      if (const Json* const rope = config_.find(place); rope != nullptr && rope->is_object()) {
        const Json* const of_full = rope->find("full_attention");
        return of_full != nullptr && of_full->is_object() ? *of_full : *rope;
      }
    return Json::object();
  }

  // Of time, height, width and nothing; none where config.json says none.
  std::vector<std::int32_t> sections() const {
    const Json rope = stated_rope();
    const Json* const said = rope.find("mrope_section");
    if (said == nullptr || !said->is_array()) return {};
    std::vector<std::int32_t> all;
    for (const Json& section : said->items()) all.push_back(static_cast<std::int32_t>(section.as_integer()));
    all.resize(4);
    return all;
  }

  bool add_experts(GgufKey key) {
    if (mixture_ == nullptr) return false;
    switch (key) {
      case GgufKey::kExpertCount:
        return put(key, std::ssize(mixture_->experts));
      case GgufKey::kExpertUsedCount:
        return put(key, mixture_->top_k);
      case GgufKey::kExpertWidth:
        return put(key, mixture_->width);
      case GgufKey::kSharedExpertWidth:
        return put(key, mixture_->shared_width);
      case GgufKey::kStatedGatingFunction:
        if (!says("scoring_func") && mixture_->score != RouterScore::kSigmoid) return true;
        [[fallthrough]];
      case GgufKey::kGatingFunction:
        return put(key, mixture_->score == RouterScore::kSigmoid ? kGgufSigmoid : kGgufSoftmax);
      case GgufKey::kExpertGroups:
        return !says("n_group") || put(key, mixture_->groups);
      case GgufKey::kExpertGroupsUsed:
        return !says("topk_group") || put(key, mixture_->kept_groups);
      case GgufKey::kSharedExpertCount:
        return put(key, mixture_->shared_width / mixture_->width);
      case GgufKey::kDenseBlocks:
        return put(key, std::count_if(spec_.blocks.begin(), spec_.blocks.end(),
                                      [](const BlockSpec& block) { return block.mixture() == nullptr; }));
      case GgufKey::kMixtureInterval:
        return put(key,
                   1 + std::distance(spec_.blocks.begin(),
                                     std::find_if(spec_.blocks.begin(), spec_.blocks.end(), has_mixture)));
      case GgufKey::kExpertScale:
        return (!says("routed_scaling_factor") && mixture_->weight_scale == 1) ||
               put_number(key, mixture_->weight_scale);
      case GgufKey::kExpertsNormalizedOrNot:
        if (!says("norm_topk_prob") && !mixture_->normalized) return true;
        metadata_.set_bool(family_.key(key), mixture_->normalized);
        return true;
      case GgufKey::kExpertsNormalized:
        if (mixture_->normalized) metadata_.set_bool(family_.key(key), true);
        return true;
      default:
        return false;
    }
  }

  bool add_state(GgufKey key) {
    switch (key) {
      case GgufKey::kConvolutionTaps:
        return put(key, widths_.taps);
      case GgufKey::kStateKeyWidth:
        return put(key, widths_.key_dim);
      case GgufKey::kStateKeyHeads:
        return put(key, widths_.key_heads);
      case GgufKey::kStateValueHeads:
        return put(key, widths_.value_heads);
      case GgufKey::kStateInnerWidth:
        return put(key, widths_.value_heads * widths_.value_dim);
      case GgufKey::kRecurrentBlocks:
        if (says("layer_types"))
          add_flags(key, [](const BlockSpec& block) { return block.delta() != nullptr; });
        return true;
      case GgufKey::kAttentionInterval:
        return put(key, stated_integer("full_attention_interval", kDefaultInterval));
      default:
        return false;
    }
  }

  void add_latent(GgufKey key) {
    switch (key) {
      case GgufKey::kOneKvHead:
        put(key, 1);
        return;
      case GgufKey::kQueryRank:
        if (latent_->query_rank > 0) put(key, latent_->query_rank);
        return;
      case GgufKey::kLatentRank:
        put(key, latent_->rank);
        return;
      case GgufKey::kLatentLengths:
        put_lengths(latent_->row_dim(), latent_->rank, "");
        put_lengths(latent_->query_dim(), latent_->value_dim, "_mla");
        return;
      case GgufKey::kYarnLogMultiplier:
        if (const double growth = gguf_rope(spec_).mscale_all_dim; growth != 0) put_number(key, 0.1 * growth);
        return;
      default:
        return;
    }
  }

  // One for each block.
  void add_flags(GgufKey key, bool (*is)(const BlockSpec& block)) {
    std::vector<std::uint8_t> flags;
    for (const BlockSpec& block : spec_.blocks) flags.push_back(is(block) ? 1 : 0);
    flags.resize(flags.size() + static_cast<std::size_t>(further_));
    metadata_.set_bools(family_.key(key), flags);
  }

  const Json& config_;
  const ModelSpec& spec_;
  const GgufFamily& family_;
  const GgufFileType& file_type_;
  GgufMetadata& metadata_;
  GgufWidths widths_;
  std::int64_t further_ = 0, window_ = 0;
  const AttentionSpec* attention_;
  const MixtureSpec* mixture_ = nullptr;
  const LatentAttentionSpec* latent_ = nullptr;
};

}  // namespace

void add_gguf_sizes(const Checkpoint& checkpoint, const ModelSpec& spec, const GgufFamily& family,
                    const GgufFileType& file_type, GgufMetadata& metadata) {
  SizeWriter writer(checkpoint, spec, family, file_type, metadata);
  for (const GgufKey key : family.keys) writer.add(key);
}

}  // namespace llmq
