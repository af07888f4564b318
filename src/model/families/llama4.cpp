// Llama 4 (Scout, Maverick): Llama with a mixture of experts in some blocks, an expert of all rows beside it,
// and two kinds of attention. Source: Transformers' configuration_llama4 and modeling_llama4.
//
//   blocks that turn    neighbouring channels are pairs; positions see their own chunk alone; over each head
//                       of q and k, behind rope, x / sqrt(mean(x^2) + eps)
//   blocks that do not  see all positions, and queries grow with theirs:
//                       q (1 + attn_scale ln(1 + floor((position + 1) / floor_scale)))
//   experts             the top_k of the router's answer, whose sigmoids multiply what the experts read
//
// A turn keeps the length of a head, so the norm behind it is one before it, where all channels turn and
// their cosines have no factor. Queries that grow turn by a table of zero angles that has their factor.
//
// Experts are stacked, [experts, hidden, gate and up] and [experts, width, hidden], as Transformers has them,
// or lie alone, as others write them.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/gguf/llama4_gguf.h"
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

constexpr double kLlama4Theta = 5e5;  // where rope_theta is absent
constexpr const char* kMixtures = "moe_layers";

// By layer_types; without them the blocks that turn see their chunk.
std::vector<std::int64_t> read_chunks(ConfigFields& config, const std::vector<bool>& turning,
                                      const ModelSpec& spec) {
  constexpr const char* kSize = "attention_chunk_size";
  const std::int64_t size = config.integer(kSize, {1, kPositionsRange.most}, 8192);
  const std::vector<bool> types = read_layer_types(config, spec, "chunked_attention");
  const std::vector<bool>& chunked = types.empty() ? turning : types;
  std::vector<std::int64_t> windows;
  for (std::size_t i = 0; i < chunked.size(); ++i) {
    if (chunked[i] && config.is_null(kSize))
      config.bad(kSize, fmt::format("is null, and block {} is chunked_attention", i));
    windows.push_back(chunked[i] ? size : 0);
  }
  return windows;
}

// moe_layers, or each interleave_moe_layer_step-th.
std::vector<bool> read_mixture_blocks(ConfigFields& config, const ModelSpec& spec) {
  const auto count = static_cast<std::int64_t>(spec.blocks.size());
  const std::int64_t step = config.integer("interleave_moe_layer_step", {1, kLayersRange.most}, 1);
  const Json* const list = config.find(kMixtures);
  std::vector<bool> sparse;
  for (std::int64_t i = 0; i < count; ++i) sparse.push_back(list == nullptr && (i + 1) % step == 0);
  if (list == nullptr) return sparse;
  if (!list->is_array()) config.bad(kMixtures, fmt::format("expected an array, found {}", list->kind()));
  for (const Json& block : list->items()) {
    if (!block.is_integer() || block.as_integer() < 0 || block.as_integer() >= count)
      config.bad(kMixtures, fmt::format("names block {}, and there are {}", block.dump(), count));
    sparse[static_cast<std::size_t>(block.as_integer())] = true;
  }
  return sparse;
}

LlamaMixture read_llama4_mixture(ConfigFields& config, std::int64_t tensors, std::int64_t width,
                                 const ModelSpec& spec) {
  LlamaMixture mixture;
  mixture.names.router = "feed_forward.router", mixture.names.experts = "feed_forward.experts";
  mixture.names.shared = "feed_forward.shared_expert", mixture.names.shared_gate = nullptr;
  mixture.blocks = read_mixture_blocks(config, spec);
  read_experts(config, tensors, 16, 1, mixture);
  mixture.score = RouterScore::kSigmoidOfChosen, mixture.weighs_input = true;
  mixture.width = mixture.shared_width = width;
  return mixture;
}

// Table 0 turns; table 1, where queries grow, has no angle but 0.
std::vector<RopeUse> read_turns(ConfigFields& config, const std::vector<bool>& turning, ModelSpec& spec) {
  constexpr IntegerRange kLengths{1, kPositionsRange.most};
  const Json* const tuned = config.find("attn_temperature_tuning");  // published as 4, too
  const bool grows = tuned != nullptr && tuned->is_integer() ? tuned->as_integer() != 0
                                                             : config.flag("attn_temperature_tuning", true);
  const std::int64_t length = config.integer("floor_scale", kLengths, 8192);
  const double growth = config.number("attn_scale", {0, 1e3}, 0.1);
  const std::int64_t dims = spec.ropes.front().dims;
  std::vector<RopeUse> turns;
  for (const bool turns_by_position : turning)
    turns.push_back(turns_by_position ? RopeUse{0, dims, RopePairs::kNeighbours}
                                      : RopeUse{1, grows ? dims : 0, RopePairs::kNeighbours, false});
  RopeSpec still;
  still.kind = RopeKind::kProportional, still.dims = dims;
  still.growth = growth, still.growth_length = length, still.growth_start = 1;
  if (grows && std::find(turning.begin(), turning.end(), false) != turning.end()) spec.ropes.push_back(still);
  return turns;
}

void read_llama4(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  config.find("for_llm_compressor"), config.find("cache_implementation");  // how others run it
  LlamaSizes sizes = read_llama_sizes(config, tensors, {131072, 8, 128, 1e-5, 8192}, spec);
  const std::int64_t expert_width = sizes.intermediate_size;
  sizes.intermediate_size = config.integer("intermediate_size_mlp", kWidthRange, 16384);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.theta = kLlama4Theta})};
  const std::vector<bool> turning = read_turning_blocks(config, spec.blocks.size(), true);
  LlamaTraits traits;
  traits.mlp = "feed_forward";
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.query_key_lengths = config.flag("use_qk_norm", true);
  const RopeKind kind = spec.ropes.front().kind;
  if (traits.query_key_lengths && (kind == RopeKind::kYarn || kind == RopeKind::kLongRope))
    config.unsupported("use_qk_norm", "takes the length of heads behind a rope that changes it",
                       "a rope without an attention factor would do, as llama3's");
  traits.turns = read_turns(config, turning, spec);
  traits.windows = read_chunks(config, turning, spec), traits.chunks = true;
  traits.mixture = read_llama4_mixture(config, tensors, expert_width, spec);
  fill_llama(sizes, traits, spec);
}

std::optional<SlabNames> find_llama4_experts(const Json&, const std::string& tensor) {
  std::optional<SlabNames> found = stacked_experts_below(".feed_forward", tensor);
  if (found) found->transposed = true;
  return found;
}

}  // namespace

extern const Family kLlama4Family = {"llama4_text", "Llama4ForCausalLM", false,
                                     read_llama4,   &kLlama4Gguf,        find_llama4_experts};

}  // namespace llmq
