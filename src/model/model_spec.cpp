// config.json -> ModelSpec: sizes, blocks, linears, folds; then every stored tensor is matched against them,
// both ways.
//
// A tensor that the structure needs and the checkpoint lacks, one with another shape, and one that nobody
// would read are all refused: each means that config.json describes another model than the one stored.
#include "model/model_spec.h"

#include <set>

#include "base/error.h"
#include "model/family.h"
#include "model/tensor_check.h"

namespace llmq {
namespace {

constexpr const Family* kFamilies[] = {&kLlamaFamily, &kMistralFamily, &kQwen2Family, &kQwen3Family};

// Keys that say how the model was made, is stored or is sampled from, but not what it computes.
const std::set<std::string_view>& harmless_keys() {
  static const std::set<std::string_view> keys = {
      // provenance and storage
      "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype",
      "auto_map", "quantization_config", "is_llama_config", "transformers.js_config", "unsloth_version",
      "unsloth_fixed", "unsloth_training_settings", "model_name", "_attn_implementation",
      "_attn_implementation_autoset", "attn_implementation", "use_bfloat16", "use_flash_attn", "torchscript",
      // training
      "initializer_range", "attention_dropout", "hidden_dropout", "attention_probs_dropout_prob",
      "hidden_dropout_prob", "resid_pdrop", "embd_pdrop", "pretraining_tp", "use_cache",
      "gradient_checkpointing", "tf_legacy_loss", "max_sequence_length", "finetuning_task",
      // the shape of what Python returns
      "output_hidden_states", "output_attentions", "output_scores", "return_dict", "return_dict_in_generate",
      "chunk_size_feed_forward", "id2label", "label2id", "num_labels", "problem_type", "task_specific_params",
      "tie_last_hidden_states", "is_decoder", "tie_encoder_decoder", "cross_attention_hidden_size",
      // tokens
      "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id", "tokenizer_class", "prefix",
      // sampling defaults, which Transformers moves to generation_config.json
      "max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams",
      "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
      "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
      "bad_words_ids", "num_return_sequences", "forced_bos_token_id", "forced_eos_token_id",
      "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
      "begin_suppress_tokens"};
  return keys;
}

// Keys of relatives of these families that do nothing at this value and another model at any other.
void require_neutral_relatives(ConfigFields& config) {
  config.require_neutral("partial_rotary_factor", 1);
  config.require_neutral("rope_interleaved", false);
  config.require_neutral("is_encoder_decoder", false);
  config.require_neutral("add_cross_attention", false);
  config.require_neutral("pruned_heads", Json::object());
  config.require_neutral("embedding_multiplier", 1);
  config.require_neutral("residual_multiplier", 1);
  config.require_neutral("logits_scaling", 1);
  config.require_neutral("num_experts", 0);
  config.require_neutral("num_local_experts", 0);
  config.require_neutral("qk_layernorm", false);
  config.require_neutral("use_qk_norm", false);
  for (const char* key : {"attention_multiplier", "attn_logit_softcapping", "final_logit_softcapping",
                          "query_pre_attn_scalar", "no_rope_layers", "per_layer_config"})
    config.require_neutral(key, nullptr);
}

const Family& find_family(ConfigFields& config) {
  const std::string type = config.text("model_type");
  for (const Family* family : kFamilies)
    if (type == family->model_type) return *family;
  config.unsupported("model_type", fmt::format("the family \"{}\" is not known here", type),
                     "llama, mistral, qwen2 and qwen3 are");
}

void read_architecture(ConfigFields& config, const Family& family, ModelSpec& spec) {
  spec.architecture = family.architecture;
  const Json* names = config.find("architectures");
  if (names == nullptr) return;
  if (!names->is_array())
    config.bad("architectures", fmt::format("expected an array, found {}", names->kind()));
  for (const Json& name : names->items())
    if (!name.is_string() || name.as_string() != family.architecture)
      config.unsupported(
          "architectures",
          fmt::format("is {}, which is not known for family {}", name.dump(), family.model_type),
          fmt::format("{} is", family.architecture));
}

void read_activation(ConfigFields& config, ModelSpec& spec) {
  const std::string name = config.text("hidden_act", "silu");
  spec.silu = name == "silu" || name == "swish";
  if (!spec.silu && name != "gelu_pytorch_tanh" && name != "gelu_new")
    config.unsupported("hidden_act", fmt::format("the activation \"{}\" is not known here", name),
                       "silu, gelu_pytorch_tanh and gelu_new are");
}

void read_token_ids(ConfigFields& config, ModelSpec& spec) {
  const auto id = [&](const char* key, const Json& value) {
    if (!value.is_integer()) config.bad(key, fmt::format("expected a token id, found {}", value.kind()));
    if (value.as_integer() < 0 || value.as_integer() >= spec.vocab_size)
      config.bad(key, fmt::format("is {}, vocab_size is {}", value.as_integer(), spec.vocab_size));
    return static_cast<std::int32_t>(value.as_integer());
  };
  if (const Json* bos = config.find("bos_token_id")) spec.bos_id = id("bos_token_id", *bos);
  const Json* eos = config.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    spec.eos_ids.push_back(id("eos_token_id", *eos));
    return;
  }
  for (const Json& item : eos->items()) spec.eos_ids.push_back(id("eos_token_id", item));
}

void read_sizes(ConfigFields& config, const Family& family, ModelSpec& spec) {
  spec.hidden_size = config.integer("hidden_size", kWidthRange);
  spec.intermediate_size = config.integer("intermediate_size", kWidthRange);
  spec.vocab_size = config.integer("vocab_size", kWidthRange);
  spec.max_position = config.integer("max_position_embeddings", kPositionsRange, family.default_max_position);
  spec.blocks.resize(static_cast<std::size_t>(config.integer("num_hidden_layers", kLayersRange)));
  spec.heads = static_cast<int>(config.integer("num_attention_heads", kHeadsRange));
  const std::int64_t kv_default = config.is_null("num_key_value_heads") || family.default_kv_heads == 0
                                      ? spec.heads
                                      : family.default_kv_heads;
  spec.kv_heads = static_cast<int>(config.integer("num_key_value_heads", kHeadsRange, kv_default));
  if (spec.kv_heads > spec.heads || spec.heads % spec.kv_heads != 0)
    config.bad("num_key_value_heads",
               fmt::format("is {}, which does not divide num_attention_heads {}", spec.kv_heads, spec.heads));
  std::int64_t head_dim = family.default_head_dim;
  if (config.find("head_dim") != nullptr) {
    head_dim = config.integer("head_dim", kHeadDimRange);
  } else if (head_dim == 0) {
    if (spec.hidden_size % spec.heads != 0)
      config.bad("num_attention_heads",
                 fmt::format("is {}, which does not divide hidden_size {}", spec.heads, spec.hidden_size),
                 "give head_dim");
    head_dim = spec.hidden_size / spec.heads;
  }
  if (head_dim % 2 != 0)
    config.bad("head_dim", fmt::format("is {}; rope turns pairs and needs an even one", head_dim));
  spec.head_dim = static_cast<int>(head_dim);
  if (spec.heads * head_dim > kWidthRange.most)
    config.bad("num_attention_heads", fmt::format("{} heads of {} are more than {} channels", spec.heads,
                                                  head_dim, kWidthRange.most));
  spec.rms_norm_eps = static_cast<float>(config.number("rms_norm_eps", {0, 1}, 1e-6));
}

struct LinearPlace {
  LinearRole role;
  InputSite site;
  const char* name;
};
constexpr std::array<LinearPlace, kLinearRoles> kLinearPlaces = {{
    {LinearRole::kQuery, InputSite::kAttention, ".self_attn.q_proj"},
    {LinearRole::kKey, InputSite::kAttention, ".self_attn.k_proj"},
    {LinearRole::kValue, InputSite::kAttention, ".self_attn.v_proj"},
    {LinearRole::kOutput, InputSite::kOutput, ".self_attn.o_proj"},
    {LinearRole::kGate, InputSite::kMlp, ".mlp.gate_proj"},
    {LinearRole::kUp, InputSite::kMlp, ".mlp.up_proj"},
    {LinearRole::kDown, InputSite::kDown, ".mlp.down_proj"},
}};

std::pair<std::int64_t, std::int64_t> out_and_in(const ModelSpec& spec, LinearRole role) {
  const std::int64_t queries = std::int64_t{spec.heads} * spec.head_dim;
  const std::int64_t keys = std::int64_t{spec.kv_heads} * spec.head_dim;
  switch (role) {
    case LinearRole::kQuery:
      return {queries, spec.hidden_size};
    case LinearRole::kKey:
    case LinearRole::kValue:
      return {keys, spec.hidden_size};
    case LinearRole::kOutput:
      return {spec.hidden_size, queries};
    case LinearRole::kGate:
    case LinearRole::kUp:
      return {spec.intermediate_size, spec.hidden_size};
    case LinearRole::kDown:
      break;
  }
  return {spec.hidden_size, spec.intermediate_size};
}

// Producers whose output may be divided by a channel scale, with everybody who reads it. The gate's rows are
// no producer: an activation stands between them and x_down.
std::vector<FoldSpec> make_folds(const ModelSpec& spec, const BlockSpec& block) {
  using Producer = FoldSpec::Producer;
  const std::string value = block.linear(LinearRole::kValue).module,
                    up = block.linear(LinearRole::kUp).module;
  return {
      {InputSite::kAttention,
       Producer::kNormGain,
       block.prefix + ".input_layernorm",
       {LinearRole::kQuery, LinearRole::kKey, LinearRole::kValue},
       1},
      {InputSite::kOutput,
       Producer::kGroupedValueRows,
       value,
       {LinearRole::kOutput},
       spec.heads / spec.kv_heads},
      {InputSite::kMlp,
       Producer::kNormGain,
       block.prefix + ".post_attention_layernorm",
       {LinearRole::kGate, LinearRole::kUp},
       1},
      {InputSite::kDown, Producer::kLinearRows, up, {LinearRole::kDown}, 1},
  };
}

void fill_blocks(const FamilyTraits& traits, ModelSpec& spec) {
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    BlockSpec& block = spec.blocks[i];
    block.prefix = fmt::format("model.layers.{}", i);
    block.input_norm = block.prefix + ".input_layernorm.weight";
    block.post_attention_norm = block.prefix + ".post_attention_layernorm.weight";
    if (traits.query_key_norm) {
      block.query_norm = block.prefix + ".self_attn.q_norm.weight";
      block.key_norm = block.prefix + ".self_attn.k_norm.weight";
    }
    for (std::size_t r = 0; r < kLinearPlaces.size(); ++r) {
      const LinearPlace& place = kLinearPlaces[r];
      const auto [out, in] = out_and_in(spec, place.role);
      block.linears[r] = {place.role, place.site, block.prefix + place.name, out, in, traits.biases[r]};
    }
    block.folds = make_folds(spec, block);
    block.sliding_window = traits.sliding_windows[i];
  }
}

}  // namespace

const char* site_name(InputSite site) {
  switch (site) {
    case InputSite::kAttention:
      return "x_attn";
    case InputSite::kOutput:
      return "x_o";
    case InputSite::kMlp:
      return "x_mlp";
    case InputSite::kDown:
      return "x_down";
  }
  return "?";
}

ModelSpec ModelSpec::read(const Checkpoint& checkpoint) {
  const std::string file =
      (checkpoint.is_gguf() ? checkpoint.path() : checkpoint.path() / "config.json").string();
  ConfigFields config(checkpoint.config(), file, "");
  const Family& family = find_family(config);
  ModelSpec spec;
  spec.family = family.model_type;
  read_architecture(config, family, spec);
  read_sizes(config, family, spec);
  // Each block needs at least nine tensors: a layer count from a hostile config allocates no more than the
  // checkpoint already does.
  if (spec.blocks.size() > checkpoint.tensors().size())
    config.bad("num_hidden_layers", fmt::format("is {}, but the checkpoint has {} tensors in all",
                                                spec.blocks.size(), checkpoint.tensors().size()));
  read_activation(config, spec);
  read_token_ids(config, spec);
  spec.rope = read_rope(config, spec.max_position);
  const FamilyTraits traits = family.read(config, spec);
  const bool tied = config.flag("tie_word_embeddings", false);
  require_neutral_relatives(config);
  config.refuse_unread(harmless_keys());

  fill_blocks(traits, spec);
  resolve_head(checkpoint, tied, spec);
  spec.final_norm = "model.norm.weight";
  check_tensors(checkpoint, file, spec);
  return spec;
}

std::int64_t ModelSpec::parameters() const {
  std::int64_t count = vocab_size * hidden_size * (tied_head ? 1 : 2) + hidden_size;
  for (const BlockSpec& block : blocks) {
    count += 2 * hidden_size + (block.query_norm.empty() ? 0 : 2 * head_dim);
    for (const LinearSpec& linear : block.linears)
      count += linear.out_features * (linear.in_features + (linear.has_bias ? 1 : 0));
  }
  return count;
}

}  // namespace llmq
