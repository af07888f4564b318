// Gemma 4, its decoder alone: Gemma's norms before and behind each mixer, which multiply by w and not by
// 1 + w; values that pass a norm without a gain, so that no scale goes from v to o; queries and keys that are
// multiplied as they are. Every sixth block attends to all positions, with heads of another width, a rope
// that turns a share of the angles, and perhaps no v_proj (attention_k_eq_v): its value is what k_proj gives.
// A block ends with a factor (layer_scalar) of the residual stream. Source: Transformers' configuration_ and
// modeling_gemma4 (5.23).
//
// With enable_moe_block experts stand beside the MLP, each of the two with norms of its own, and one norm
// goes over their sum. The router reads the residual stream through a norm of its own: no fold reaches it.
//
// The last num_kv_shared_layers blocks have no keys and values: they read the pages of the last block of
// their kind before them, and their MLP may be twice as wide. What a checkpoint stores for them nobody reads;
// it is carried along. With hidden_size_per_layer_input a block ends with a product of what it has of an
// embedding of all blocks.
//
// Transformers 4 named the heads of full attention global_head_dim and num_global_key_value_heads;
// Transformers 5 writes per_layer_config.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "model/gguf/gemma4_gguf.h"
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

constexpr const char* kGemma4Activation = "gelu_pytorch_tanh";
constexpr const char* kPerBlock = "per_layer_config";
constexpr std::int64_t kFullEvery = 6;

struct Gemma4Heads {
  std::int64_t kv_heads = 0, head_dim = 0;
  bool operator==(const Gemma4Heads&) const = default;
};

struct Gemma4Model {
  LlamaSizes sizes;
  std::vector<bool> sliding;        // per block
  Gemma4Heads of_full, of_sliding;  // heads of k and v
  std::int64_t window = 0;
  bool biases = false, value_is_key = false, double_wide = false;
  std::vector<std::optional<std::size_t>> pages_of;  // per block: whose it reads; none: its own
  std::int64_t embedded = 0;                         // a block's share of an embedding; 0: there is none
  std::optional<LlamaMixture> mixture;
};

std::vector<bool> read_sliding(ConfigFields& config, const ModelSpec& spec) {
  std::vector<bool> sliding = read_layer_types(config, spec);
  if (!sliding.empty() && sliding.back())
    config.unsupported("layer_types",
                       "ends with sliding_attention, and Transformers makes the last block full",
                       "call it full_attention");
  for (std::size_t i = sliding.size(); i < spec.blocks.size(); ++i)  // of none where the key is missing
    sliding.push_back((static_cast<std::int64_t>(i) + 1) % kFullEvery != 0 && i + 1 < spec.blocks.size());
  return sliding;
}

std::size_t block_number(const ConfigFields& config, const std::string& key, std::size_t blocks) {
  std::size_t number = blocks;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  if (error != std::errc() || end != key.data() + key.size() || number >= blocks)
    config.bad(kPerBlock, fmt::format("names block \"{}\", and there are {}", key, blocks));
  return number;
}

// Of each block, where per_layer_config says it.
std::vector<Gemma4Heads> read_heads_by_block(ConfigFields& config, const Json& stated,
                                             const LlamaSizes& sizes, std::size_t blocks) {
  std::vector<Gemma4Heads> heads(blocks, {sizes.kv_heads, sizes.head_dim});
  if (!stated.is_object()) config.bad(kPerBlock, fmt::format("expected an object, found {}", stated.kind()));
  for (const auto& [key, value] : stated.members()) {
    Gemma4Heads& own = heads[block_number(config, key, blocks)];
    ConfigFields fields(value, config.file(), fmt::format("{}.{}", kPerBlock, key));
    own.head_dim = fields.integer("head_dim", kHeadDimRange, own.head_dim);
    own.kv_heads = fields.integer("num_key_value_heads", kHeadsRange, own.kv_heads);
    fields.refuse_unread({});
  }
  return heads;
}

void check_heads(ConfigFields& config, bool by_block, const Gemma4Heads& heads, const LlamaSizes& sizes) {
  const char* const key = by_block ? kPerBlock : "global_head_dim";
  if (heads.head_dim % 2 != 0)
    config.bad(key, fmt::format("gives heads of {} channels; rope turns pairs", heads.head_dim));
  if (sizes.heads % heads.kv_heads != 0)
    config.bad(by_block ? kPerBlock : "num_global_key_value_heads",
               fmt::format("gives {} KV heads, which do not divide num_attention_heads {}", heads.kv_heads,
                           sizes.heads));
  if (sizes.heads * heads.head_dim > kWidthRange.most)
    config.bad(key, fmt::format("{} heads of {} are more than {} channels", sizes.heads, heads.head_dim,
                                kWidthRange.most));
}

void read_kv_heads(ConfigFields& config, Gemma4Model& model) {
  const Gemma4Heads usual{model.sizes.kv_heads, model.sizes.head_dim};
  Gemma4Heads global{config.integer("num_global_key_value_heads", kHeadsRange, usual.kv_heads),
                     config.integer("global_head_dim", kHeadDimRange, 512)};
  if (!model.value_is_key) global.kv_heads = usual.kv_heads;  // as Transformers reads it
  model.of_full = global, model.of_sliding = usual;
  constexpr const char* kWidth = "global_head_dim";
  const Json* const stated = config.find(kPerBlock);
  if (stated != nullptr) {
    const std::vector<Gemma4Heads> heads =
        read_heads_by_block(config, *stated, model.sizes, model.sliding.size());
    std::optional<Gemma4Heads> of_kind[2];
    for (std::size_t i = 0; i < heads.size(); ++i)
      if (std::optional<Gemma4Heads>& kind = of_kind[model.sliding[i] ? 1 : 0]; !kind)
        kind = heads[i];
      else if (*kind != heads[i])
        config.unsupported(kPerBlock,
                           fmt::format("gives block {} other heads than those of its kind before it", i),
                           "one for each kind of layer_types is known here");
    model.of_full = of_kind[0].value_or(global), model.of_sliding = of_kind[1].value_or(usual);
    if (config.find(kWidth) != nullptr && model.of_full.head_dim != global.head_dim)
      config.bad(kWidth,
                 fmt::format("is {}, and {} says {}", global.head_dim, kPerBlock, model.of_full.head_dim),
                 "keep one of the two");
  }
  check_heads(config, stated != nullptr, model.of_full, model.sizes);
  check_heads(config, stated != nullptr, model.of_sliding, model.sizes);
}

void read_shared_pages(ConfigFields& config, Gemma4Model& model) {
  constexpr const char* kShared = "num_kv_shared_layers";
  const auto blocks = static_cast<std::int64_t>(model.sliding.size());
  const std::int64_t shared = config.integer(kShared, {0, kLayersRange.most}, 0);
  if (shared >= blocks)
    config.bad(kShared, fmt::format("is {} of {} blocks, and none is left that has pages", shared, blocks));
  model.double_wide = config.flag("use_double_wide_mlp", false);
  std::optional<std::size_t> last[2];  // of full attention, of the window
  for (std::size_t i = 0; i < model.sliding.size(); ++i) {
    std::optional<std::size_t>& of_kind = last[model.sliding[i] ? 1 : 0];
    const bool shares = static_cast<std::int64_t>(i) >= blocks - shared;
    if (shares && !of_kind)
      config.bad(kShared, fmt::format("lets block {} read the pages of another one of its kind, and no such "
                                      "block before it has any",
                                      i));
    model.pages_of.push_back(shares ? of_kind : std::nullopt);
    if (!shares) of_kind = i;
  }
}

NormSpec gemma4_norm(const LlamaSizes& sizes) {
  NormSpec norm;
  norm.eps = sizes.eps;
  return norm;
}

std::optional<LlamaMixture> read_gemma4_mixture(ConfigFields& config, std::int64_t tensors,
                                                const LlamaSizes& sizes, const ModelSpec& spec) {
  constexpr const char* kKeys[] = {"num_experts", "top_k_experts", "moe_intermediate_size"};
  if (!config.flag("enable_moe_block", false)) {
    for (const char* const key : kKeys) config.find(key);
    return std::nullopt;
  }
  for (const char* const key : kKeys)
    if (config.find(key) == nullptr) config.bad(key, "is missing", "enable_moe_block asks for it");
  LlamaMixture mixture;
  mixture.names.router = "router.proj", mixture.names.experts = "experts", mixture.names.input = "x_experts";
  mixture.names.router_norm = "router.scale", mixture.names.expert_scales = "router.per_expert_scale";
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 0, 0, mixture, "top_k_experts");
  mixture.width = config.integer("moe_intermediate_size", kWidthRange);
  mixture.normalized = true;
  mixture.router_norm = gemma4_norm(sizes);
  mixture.router_norm->scale = 1 / std::sqrt(static_cast<double>(spec.hidden_size));
  return mixture;
}

// What changes the mathematics and is not known here.
void require_gemma4(ConfigFields& config) {
  for (const char* key : {"hidden_activation", "hidden_act"}) config.require_neutral(key, kGemma4Activation);
  // "vision" lets tokens of one image see one another, and there are none.
  if (const Json* const both = config.find("use_bidirectional_attention");
      both != nullptr && !(*both == Json("vision")) && !(*both == Json(false)))
    config.unsupported("use_bidirectional_attention",
                       fmt::format("is {}, and text is attended to causally here", both->dump()));
  config.find("cache_implementation");
}

AttentionSpec gemma4_attention(const Gemma4Model& model, std::size_t number, std::int64_t hidden,
                               BlockBuilder& builder) {
  const bool sliding = model.sliding[number];
  const Gemma4Heads& heads = sliding ? model.of_sliding : model.of_full;
  AttentionSpec attention;
  attention.heads = model.sizes.heads, attention.kv_heads = static_cast<int>(heads.kv_heads);
  attention.head_dim = static_cast<int>(heads.head_dim);
  attention.window = sliding ? model.window : 0, attention.scale = 1;
  attention.rope = {sliding ? 1u : 0u, heads.head_dim};
  attention.input = builder.site("x_attn", hidden);
  attention.inner = builder.site("x_o", attention.inner_width());
  const std::int64_t keys = heads.kv_heads * heads.head_dim;
  const auto linear = [&](const char* name, std::int64_t rows) {
    return Part{builder.linear(name, attention.input, {rows}, model.biases)};
  };
  const NormSpec norm = gemma4_norm(model.sizes);
  attention.query = linear("self_attn.q_proj", attention.inner_width());
  attention.query_norm = builder.norm("self_attn.q_norm", norm, heads.head_dim);
  attention.shared_pages = model.pages_of[number];
  if (attention.shared_pages) {
    attention.output = builder.linear("self_attn.o_proj", attention.inner, {hidden}, model.biases);
    return attention;
  }
  attention.key = attention.value = linear("self_attn.k_proj", keys);
  if (sliding || !model.value_is_key) attention.value = linear("self_attn.v_proj", keys);
  attention.output = builder.linear("self_attn.o_proj", attention.inner, {hidden}, model.biases);
  attention.key_norm = builder.norm("self_attn.k_norm", norm, heads.head_dim);
  attention.value_norm = builder.norm_of({}, norm, heads.head_dim);
  return attention;
}

MlpSpec gemma4_mlp(std::int64_t width, Activation activation, std::int64_t hidden, BlockBuilder& builder) {
  MlpSpec mlp;
  mlp.width = width, mlp.activation = activation;
  mlp.input = builder.site("x_mlp", hidden), mlp.inner = builder.site("x_down", width);
  mlp.gate = Part{builder.linear("mlp.gate_proj", mlp.input, {width}, false)};
  mlp.up = {builder.linear("mlp.up_proj", mlp.input, {width}, false)};
  mlp.output = builder.linear("mlp.down_proj", mlp.inner, {hidden}, false);
  return mlp;
}

EmbeddedSpec gemma4_embedded(const Gemma4Model& model, std::int64_t hidden, BlockBuilder& builder) {
  EmbeddedSpec embedded;
  embedded.width = model.embedded;
  embedded.activation = model.sizes.activation;
  embedded.input = builder.site("x_gate", hidden),
  embedded.inner = builder.site("x_embedded", model.embedded);
  embedded.gate = {builder.linear("per_layer_input_gate", embedded.input, {model.embedded}, false)};
  embedded.output = builder.linear("per_layer_projection", embedded.inner, {hidden}, false);
  return embedded;
}

// (norm(projection of h / sqrt(hidden)) + sqrt(width) * table[token]) / sqrt(2). What is divided before a
// norm is a matter of its epsilon.
BlockEmbeddingSpec gemma4_block_embedding(ConfigFields& config, const Gemma4Model& model,
                                          const ModelSpec& spec) {
  constexpr const char* kRows = "vocab_size_per_layer_input";
  BlockEmbeddingSpec embedding;
  embedding.table = "model.embed_tokens_per_layer.weight";
  embedding.projection = "model.per_layer_model_projection";
  embedding.rows = config.integer(kRows, kWidthRange, 262144);
  if (embedding.rows < spec.vocab_size)
    config.bad(kRows,
               fmt::format("is {}, and vocab_size {}: a token has no row", embedding.rows, spec.vocab_size));
  embedding.width = model.embedded;
  embedding.norm = gemma4_norm(model.sizes);
  embedding.norm.eps *= static_cast<float>(spec.hidden_size);
  embedding.norm.scale = std::sqrt(0.5);
  embedding.norm.gain = {"model.per_layer_projection_norm.weight"};
  embedding.norm.width = model.embedded;
  embedding.scale = static_cast<float>(std::sqrt(0.5));
  embedding.table_factor = static_cast<float>(std::sqrt(static_cast<double>(model.embedded)));
  return embedding;
}

// Releases store keys and values of blocks that share pages, as Transformers' class has a list of what it
// passes over for.
void carry_unread_keys(const Gemma4Model& model, ModelSpec& spec) {
  for (std::size_t i = 0; i < model.pages_of.size(); ++i)
    for (const char* const part : {"k_proj", "v_proj", "k_norm", "v_norm"})
      if (model.pages_of[i])
        spec.carried.parts.push_back(fmt::format("model.layers.{}.self_attn.{}", i, part));
}

BlockSpec gemma4_block(const Gemma4Model& model, std::size_t number, std::int64_t hidden) {
  BlockBuilder builder(fmt::format("model.layers.{}", number));
  const auto norm = [&](const char* name) { return builder.norm(name, gemma4_norm(model.sizes), hidden); };
  const NormId before_attention = norm("input_layernorm"),
               behind_attention = norm("post_attention_layernorm"),
               before_mlp = norm("pre_feedforward_layernorm"), behind = norm("post_feedforward_layernorm");
  builder.attention(before_attention, gemma4_attention(model, number, hidden, builder), behind_attention);
  const bool wide = model.double_wide && model.pages_of[number];
  const MlpSpec mlp =
      gemma4_mlp(model.sizes.intermediate_size * (wide ? 2 : 1), model.sizes.activation, hidden, builder);
  if (model.mixture) {
    builder.mlp(before_mlp, mlp, norm("post_feedforward_layernorm_1"));
    const NormId before_experts = norm("pre_feedforward_layernorm_2"),
                 behind_experts = norm("post_feedforward_layernorm_2");
    builder.mixture(before_experts, mixture_of(*model.mixture, builder, hidden, model.sizes.activation),
                    behind_experts);
    builder.join_last_two(behind);
  } else {
    builder.mlp(before_mlp, mlp, behind);
  }
  if (model.embedded != 0)
    builder.embedded(gemma4_embedded(model, hidden, builder), norm("post_per_layer_input_norm"));
  builder.scale_stream(builder.host_tensor("layer_scalar", {1}));
  return std::move(builder).block();
}

void read_gemma4(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  require_gemma4(config);
  Gemma4Model model;
  model.sizes = read_llama_sizes(config, tensors, {131072, 4, 256}, spec, kGemma4Activation);
  model.sliding = read_sliding(config, spec);
  model.window = config.integer("sliding_window", {1, kPositionsRange.most}, 512);
  model.biases = config.flag("attention_bias", false);
  model.value_is_key = config.flag("attention_k_eq_v", false);
  read_kv_heads(config, model);
  spec.ropes = read_ropes_of_heads(config, spec.max_position,
                                   {{{"full_attention", model.of_full.head_dim, 1e6, 0.25},
                                     {"sliding_attention", model.of_sliding.head_dim}}});
  read_shared_pages(config, model);
  model.embedded = config.integer("hidden_size_per_layer_input", {0, kWidthRange.most}, 256);
  if (model.embedded != 0)
    spec.block_embedding = gemma4_block_embedding(config, model, spec);
  else
    config.find("vocab_size_per_layer_input");
  carry_unread_keys(model, spec);
  model.mixture = read_gemma4_mixture(config, tensors, model.sizes, spec);
  spec.embedding.tensor = "model.embed_tokens.weight";
  spec.embedding.scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden_size)));
  spec.embedding.scale_in_table_type = true;
  spec.final_norm = gemma4_norm(model.sizes);
  spec.final_norm.gain = {"model.norm.weight"};
  spec.final_norm.width = spec.hidden_size;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    spec.blocks[i] = gemma4_block(model, i, spec.hidden_size);
  spec.logit_softcap = static_cast<float>(config.number("final_logit_softcapping", {1e-3, 1e6}, 0));
}

std::optional<SlabNames> find_gemma4_experts(const Json&, const std::string& tensor) {
  return stacked_experts_below("", tensor);
}

}  // namespace

extern const Family kGemma4Family = {"gemma4_text", "Gemma4ForCausalLM", true,
                                     read_gemma4,   &kGemma4Gguf,        find_gemma4_experts};

}  // namespace llmq
