// config.json -> ModelSpec: sizes, blocks, linears, folds; then every stored tensor is matched against them,
// both ways.
//
// A tensor that the structure needs and the checkpoint lacks, one with another shape, and one that nobody
// would read are all refused: each means that config.json describes another model than the one stored.
#include "model/model_spec.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "model/families/family.h"
#include "model/tensor_check.h"

namespace llmq {
namespace {

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
// Those that the family has read mean what it made of them.
void require_neutral_relatives(ConfigFields& config) {
  const auto neutral = [&](const char* key, const Json& value) {
    if (!config.was_read(key)) config.require_neutral(key, value);
  };
  neutral("partial_rotary_factor", 1);
  neutral("rope_interleaved", false);
  neutral("is_encoder_decoder", false);
  neutral("add_cross_attention", false);
  neutral("pruned_heads", Json::object());
  neutral("embedding_multiplier", 1);
  neutral("residual_multiplier", 1);
  neutral("logits_scaling", 1);
  neutral("num_experts", 0);
  neutral("num_local_experts", 0);
  neutral("qk_layernorm", false);
  neutral("use_qk_norm", false);
  for (const char* key : {"attention_multiplier", "attn_logit_softcapping", "final_logit_softcapping",
                          "query_pre_attn_scalar", "no_rope_layers", "per_layer_config"})
    neutral(key, nullptr);
}

const Family& find_family(ConfigFields& config) {
  const std::string type = config.text("model_type");
  std::string known;
  for (const Family* family : families()) {
    if (type == family->model_type) return *family;
    const bool last = family == families().back();
    known += (known.empty() ? "" : last ? " and " : ", ") + std::string(family->model_type);
  }
  config.unsupported("model_type", fmt::format("the family \"{}\" is not known here", type), known + " are");
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

}  // namespace

ModelSpec ModelSpec::read(const Checkpoint& checkpoint) {
  const std::string file =
      (checkpoint.is_gguf() ? checkpoint.path() : checkpoint.path() / "config.json").string();
  ConfigFields config(checkpoint.config(), file, "");
  const Family& family = find_family(config);
  ModelSpec spec;
  spec.family = family.model_type;
  read_architecture(config, family, spec);
  // Each block needs more tensors than one: a layer count from a hostile config allocates no more than the
  // checkpoint already does.
  family.read(config, static_cast<std::int64_t>(checkpoint.tensors().size()), spec);
  read_token_ids(config, spec);
  const bool tied = config.flag("tie_word_embeddings", family.ties_by_default);
  require_neutral_relatives(config);
  config.refuse_unread(harmless_keys());

  resolve_head(checkpoint, tied, spec);
  check_tensors(checkpoint, file, spec);
  return spec;
}

std::int64_t ModelSpec::parameters() const {
  const auto of_norm = [](const NormSpec& norm) { return norm.width * (norm.bias.exists() ? 2 : 1); };
  std::int64_t count = vocab_size * hidden_size * (tied_head ? 1 : 2) + of_norm(final_norm);
  if (!embedding.positions.empty()) count += (max_position + embedding.offset) * hidden_size;
  for (const BlockSpec& block : blocks) {
    for (const NormSpec& norm : block.norms) count += of_norm(norm);
    for (const LinearSpec& linear : block.linears)
      count += linear.out_features * (linear.in_features + (linear.has_bias() ? 1 : 0));
  }
  return count;
}

std::set<std::string> ModelSpec::never_quantized() const {
  std::set<std::string> weights;
  for (const BlockSpec& block : blocks)
    for (const LinearSpec& linear : block.linears)
      if (!linear.quantizable) weights.insert(linear.weight.tensor);
  return weights;
}

std::int64_t ModelSpec::widest_inner() const {
  std::int64_t widest = 0;
  for (const BlockSpec& block : blocks)
    for (const SublayerSpec& part : block.sublayers)
      for (const SiteId site : std::span(part.sites).subspan(1))
        widest = std::max(widest, block.at(site).channels);
  return widest;
}

std::uint64_t ModelSpec::kv_bytes(const KvType& type) const {
  std::int64_t bytes = 0;
  for (const BlockSpec& block : blocks) bytes += block.pages.kv_heads * type.bytes(block.pages.head_dim);
  return static_cast<std::uint64_t>(bytes);
}

std::int64_t ModelSpec::widest_page() const {
  std::int64_t widest = 0;
  for (const BlockSpec& block : blocks)
    widest = std::max(widest, std::int64_t{block.pages.kv_heads} * block.pages.head_dim);
  return widest;
}

}  // namespace llmq
