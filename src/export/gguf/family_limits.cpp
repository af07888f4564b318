#include "export/gguf/family_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "export/gguf/gguf_rope.h"

namespace llmq {
namespace {

[[noreturn]] void refuse(const std::string& file, std::string where, std::string message) {
  fail(ErrorKind::kUnsupported,
       {std::move(message), file, std::move(where), "keep the model in safetensors"});
}

bool computes(const ModelSpec& spec, Activation activation) {
  return std::all_of(spec.blocks.begin(), spec.blocks.end(), [&](const BlockSpec& block) {
    const MlpSpec* const mlp = block.mlp();
    const MixtureSpec* const mixture = block.mixture();
    return (mlp == nullptr || mlp->activation == activation) &&
           (mixture == nullptr || mixture->activation == activation);
  });
}

// Chunks are where a block turns; queries of the others grow as the architecture has it.
void check_chunks(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  const GgufChunks& like = *family.chunks;
  const std::string_view name = family.architecture;
  for (const BlockSpec& block : spec.blocks) {
    const AttentionSpec& attention = *block.attention();
    if (block.pages.window != (attention.rope.of_keys ? like.size : 0))
      refuse(
          file, "attention_chunk_size",
          fmt::format("GGUF's {} models have chunks of {} positions in blocks that turn, and none elsewhere",
                      name, like.size));
    if (attention.rope.of_keys && block.mixture() != nullptr &&
        attention.query_norm.has_value() == (std::ssize(block.mixture()->experts) == like.lengths_but_of))
      refuse(file, "use_qk_norm",
             fmt::format("llama.cpp's {} takes the length of heads but in models of {} experts", name,
                         like.lengths_but_of));
    if (attention.rope.of_keys) continue;
    const RopeSpec& grows = spec.ropes.back();
    if (attention.rope.dims == 0 || grows.growth != like.growth ||
        grows.growth_length != like.growth_length || grows.growth_start != like.growth_start)
      refuse(file, "attn_temperature_tuning",
             fmt::format("queries of llama.cpp's {} grow by {} with each {} positions", name, like.growth,
                         like.growth_length));
  }
}

// llama.cpp knows by the architecture which blocks have one.
void check_windows(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  if (family.chunks != nullptr) return check_chunks(spec, family, file);
  const std::int64_t window = spec.blocks.front().pages.window;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const std::int64_t own = spec.blocks[i].pages.window;
    if (own != 0 && family.window == GgufWindow::kNone)
      refuse(file, "sliding_window",
             fmt::format("GGUF's {} models have no sliding windows", family.architecture));
    const auto every = static_cast<std::size_t>(family.full_attention_every);
    if (every != 0 && own != ((i + 1) % every == 0 ? 0 : window))
      refuse(file, "layer_types",
             fmt::format(
                 "GGUF's {} models have full attention in every {}th block, and one window in all others",
                 family.architecture, every));
  }
}

// One; a plain one for blocks with a window beside that of all others; or that of queries, which grow.
void check_ropes(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  const bool two = family.has(GgufKey::kWindowFrequencyBase);
  const bool counted = family.has(GgufKey::kQueryGrowth),
             grows = (counted || family.chunks != nullptr) && spec.ropes.back().growth != 0;
  if (grows && counted && spec.ropes.front().kind != RopeKind::kYarn)
    refuse(file, "rope_parameters",
           fmt::format("llama.cpp's {} counts in yarn's length how far queries grow", family.architecture));
  if (spec.ropes.size() != (two || grows ? 2u : 1u))
    refuse(file, "rope_parameters",
           fmt::format("GGUF has a place for {} of a {} model, which has {}", two ? "two ropes" : "one rope",
                       family.architecture, spec.ropes.size()));
  const bool told = family.has(GgufKey::kFrequencyBase) || family.has(GgufKey::kUnusualFrequencyBase);
  if (!told && spec.ropes.front().theta != 10000)
    refuse(file, "rope_theta",
           fmt::format("is {}, and GGUF's {} models have no place for it", spec.ropes.front().theta,
                       family.architecture));
  const bool scaled = !family.has(GgufKey::kRopeScaling) && family.scaling == GgufScaling::kKeys;
  if ((scaled && spec.ropes.front().kind != RopeKind::kDefault) ||
      (two && spec.ropes.back().kind != RopeKind::kDefault))
    refuse(file, "rope_scaling", fmt::format("GGUF's {} models have no place for it", family.architecture));
  if (family.one_rope_base && spec.ropes.front().theta != spec.ropes.back().theta)
    refuse(file, "rope_parameters",
           fmt::format("llama.cpp's {} turns all blocks by one rope_theta, and here are {} and {}",
                       family.architecture, spec.ropes.front().theta, spec.ropes.back().theta));
}

void check_what_no_key_says(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  const std::string_view name = family.architecture;
  const AttentionSpec* const attention = gguf_attention(spec);
  if (spec.final_norm.offset != family.norm_shift)
    refuse(file, "model_type", fmt::format("GGUF's {} models have other norms", name));
  if (family.tied && !spec.tied_head)
    refuse(file, "tie_word_embeddings",
           fmt::format("is false, and GGUF's {} models have no head of their own", name));
  if (family.scaled_embedding &&
      std::abs(spec.embedding.scale / std::sqrt(static_cast<float>(spec.hidden_size)) - 1) > 0.01f)
    refuse(file, "hidden_size", fmt::format("llama.cpp's {} scales the embedding by its root", name));
  const DeltaSpec* const delta = spec.blocks.front().delta();
  if (family.one_state_width && delta != nullptr && delta->heads.key_dim != delta->heads.value_dim)
    refuse(file, "linear_value_head_dim",
           fmt::format("is {}, and GGUF's {} models have it equal to linear_key_head_dim, which is {}",
                       delta->heads.value_dim, name, delta->heads.key_dim));
  if (attention == nullptr) return;
  if ((attention->softcap != 0 && !family.has(GgufKey::kAttentionSoftcap)) ||
      (spec.logit_softcap != 0 && !family.has(GgufKey::kLogitSoftcap)))
    refuse(file, "softcap", fmt::format("GGUF's {} models have no softcap", name));
  if (const bool expected = std::ssize(spec.blocks) >= family.head_norms_from;
      family.head_norms_from != 0 && attention->query_norm.has_value() != expected)
    refuse(file, "use_qk_norm",
           fmt::format("llama.cpp's {} has norms of heads in models of {} blocks or more, and in no others",
                       name, family.head_norms_from));
  if (family.query_scalar == nullptr) return;
  const auto by = static_cast<float>(
      family.query_scalar(std::ssize(spec.blocks), spec.hidden_size, attention->heads, attention->head_dim));
  if (std::abs(attention->scale * std::sqrt(by) - 1) > 1e-5f)
    refuse(file, "query_pre_attn_scalar",
           fmt::format("llama.cpp's {} takes {} for it in a model of this size", name, by));
}

// Sizes of heads that the file does not tell are taken from the hidden size.
void check_heads(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  const AttentionSpec* const attention = gguf_attention(spec);
  const bool told = family.has(GgufKey::kKeyLength) || family.has(GgufKey::kUnusualKeyLength) ||
                    family.has(GgufKey::kStatedKeyLength) || family.has(GgufKey::kFullKeyLength);
  if (attention != nullptr && !told && attention->inner_width() != spec.hidden_size)
    refuse(file, "head_dim",
           fmt::format("GGUF's {} models have heads that make up the hidden size {}, not {}",
                       family.architecture, spec.hidden_size, attention->inner_width()));
}

// Where each so many-th block has experts.
void check_interval(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  std::size_t interval = 0;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const bool mixture = spec.blocks[i].mixture() != nullptr;
    if (mixture && interval == 0) interval = i + 1;
    if (mixture != (interval != 0 && (i + 1) % interval == 0))
      refuse(file, "moe_layers",
             fmt::format("in GGUF's {} models each so many-th block has experts, and block {} breaks that",
                         family.architecture, i));
  }
  if (interval == 0)
    refuse(file, "moe_layers", fmt::format("GGUF's {} models have experts", family.architecture));
}

// llama.cpp knows by the architecture which blocks have experts, and what their weights sum to, but where
// keys say it.
void check_experts(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  const std::string_view name = family.architecture;
  bool leading = family.has(GgufKey::kDenseBlocks);
  if (family.has(GgufKey::kMixtureInterval)) check_interval(spec, family, file);
  const bool none =
      family.dense_too && std::none_of(spec.blocks.begin(), spec.blocks.end(),
                                       [](const auto& block) { return block.mixture() != nullptr; });
  if (none) return;
  for (const BlockSpec& block : spec.blocks) {
    const MixtureSpec* const mixture = block.mixture();
    leading = leading && mixture == nullptr;
    if ((mixture != nullptr) != (family.experts != GgufExperts::kNone) && !leading &&
        !family.has(GgufKey::kMixtureInterval))
      refuse(file, block.prefix, fmt::format("GGUF's {} models have experts in every block", name));
    if (mixture == nullptr) continue;
    const bool groups = family.has(GgufKey::kExpertGroups) && mixture->group_best == 2;
    if (mixture->score != family.score || (mixture->groups != 1 && !groups) ||
        (mixture->weight_scale != 1 && !family.has(GgufKey::kExpertScale)))
      refuse(file, block.prefix, fmt::format("llama.cpp's {} scores experts in another way", name));
    if (const bool sums = family.experts == GgufExperts::kSumToOne;
        family.experts != GgufExperts::kAsTold && mixture->normalized != sums)
      refuse(file, "norm_topk_prob",
             fmt::format("llama.cpp's {} {} the weights of a row's experts by their sum", name,
                         sums ? "always divides" : "never divides"));
  }
  if (leading) refuse(file, "model_type", fmt::format("GGUF's {} models have experts", name));
}

// llama.cpp knows by the architecture which blocks do not turn.
void check_turns(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  for (std::size_t i = 0; family.turning_period != 0 && i < spec.blocks.size(); ++i) {
    const AttentionSpec* const attention = spec.blocks[i].attention();
    const bool turns = (static_cast<std::int64_t>(i) + 1) % family.turning_period != 0;
    if (attention != nullptr && turns != (attention->rope.dims != 0 && attention->rope.of_keys))
      refuse(file, "no_rope_layers",
             fmt::format("in GGUF's {} models each {}th block does not turn, and all others do",
                         family.architecture, family.turning_period));
  }
}

// Keys tell sizes of both kinds of blocks, and llama.cpp looks tokens up in both tables.
void check_kinds(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  const auto is = [](const BlockSpec& block) {
    const AttentionSpec* const attention = block.attention();
    return attention != nullptr && attention->window != 0;
  };
  if (std::all_of(spec.blocks.begin(), spec.blocks.end(), is) ||
      std::none_of(spec.blocks.begin(), spec.blocks.end(), is))
    refuse(file, "layer_types",
           fmt::format("GGUF's {} models have blocks with a window and blocks without", family.architecture));
  // The last two blocks that have pages are of a window and of full attention, and all others read theirs.
  const auto first = static_cast<std::size_t>(
      std::find_if(spec.blocks.begin(), spec.blocks.end(),
                   [](const BlockSpec& block) { return block.attention()->shared_pages.has_value(); }) -
      spec.blocks.begin());
  for (std::size_t i = first; i < spec.blocks.size(); ++i)
    if (spec.blocks[i].attention()->shared_pages != first - (is(spec.blocks[i]) ? 2 : 1))
      refuse(file, "num_kv_shared_layers",
             fmt::format(
                 "lets block {} read the pages of block {}, and llama.cpp's {} looks at the last two that "
                 "have some, of which the last is of full attention",
                 i, spec.blocks[i].attention()->shared_pages.value_or(0), family.architecture));
  if (spec.block_embedding && spec.block_embedding->rows != spec.vocab_size)
    refuse(file, "vocab_size_per_layer_input",
           fmt::format("is {}, and llama.cpp's {} looks as many tokens up as there are, {}",
                       spec.block_embedding->rows, family.architecture, spec.vocab_size));
}

// Over latents llama.cpp turns neighbours.
void check_latents(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  for (const BlockSpec& block : spec.blocks)
    if (const LatentAttentionSpec* const latent = block.latent_attention();
        latent != nullptr && latent->rope.pairs != RopePairs::kNeighbours)
      refuse(file, "rope_interleave",
             fmt::format("is false, and GGUF's {} models turn neighbours", family.architecture));
}

}  // namespace

const GgufFamily& check_gguf_family(const ModelSpec& spec, const std::string& file) {
  const GgufFamily* const family = gguf_family(spec);
  if (spec.wrapper && (family == nullptr || !family->without_tower))
    refuse(file, "model_type",
           fmt::format("a {} is not written as GGUF, which would need its tower as a "
                       "file of its own",
                       spec.family));
  if (family == nullptr)
    refuse(file, "model_type", fmt::format("models of family {} are not written as GGUF", spec.family));
  const std::string_view name = family->architecture;
  if (!computes(spec, family->activation))
    refuse(file, "hidden_act", fmt::format("GGUF's {} models compute another activation", name));
  check_ropes(spec, *family, file);
  check_what_no_key_says(spec, *family, file);
  if (auto [where, why] = refused_gguf_rope(gguf_rope(spec), *family); !why.empty())
    refuse(file, std::move(where), std::move(why));
  check_heads(spec, *family, file);
  check_experts(spec, *family, file);
  check_latents(spec, *family, file);
  if (family->has(GgufKey::kWindowKeyLength)) check_kinds(spec, *family, file);
  check_turns(spec, *family, file);
  check_windows(spec, *family, file);
  for (const BlockSpec& block : spec.blocks) {
    const AttentionSpec* const attention = block.attention();
    for (const LinearSpec& linear : block.linears) {
      const bool reader = attention != nullptr && linear.site == attention->input;
      if (!linear.has_bias() && !reader && family->needs_biases)
        refuse(file, linear.module, fmt::format("has no bias, and llama.cpp's {} needs one", name));
      if (linear.has_bias() && !reader && !family->output_biases)
        refuse(file, linear.bias.tensor, fmt::format("llama.cpp's {} has no place for this bias", name));
    }
  }
  return *family;
}

}  // namespace llmq
