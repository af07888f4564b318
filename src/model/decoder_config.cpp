#include "model/decoder_config.h"

#include "base/error.h"

namespace llmq {
namespace {

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

}  // namespace

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

void read_architecture(ConfigFields& config, const char* architecture, const char* family, ModelSpec& spec) {
  spec.architecture = architecture;
  const Json* names = config.find("architectures");
  if (names == nullptr) return;
  if (!names->is_array())
    config.bad("architectures", fmt::format("expected an array, found {}", names->kind()));
  for (const Json& name : names->items())
    if (!name.is_string() || name.as_string() != architecture)
      config.unsupported("architectures",
                         fmt::format("is {}, which is not known for family {}", name.dump(), family),
                         fmt::format("{} is", architecture));
}

void read_token_ids(ConfigFields& config, ModelSpec& spec) {
  const auto id = [&](const char* key, const Json& value) {
    if (!value.is_integer()) config.bad(key, fmt::format("expected a token id, found {}", value.kind()));
    if (value.as_integer() < 0 || value.as_integer() >= spec.vocab_size)
      config.bad(key, fmt::format("is {}, vocab_size is {}", value.as_integer(), spec.vocab_size));
    return static_cast<std::int32_t>(value.as_integer());
  };
  if (const Json* bos = config.find("bos_token_id"); bos != nullptr && !spec.bos_id)
    spec.bos_id = id("bos_token_id", *bos);
  const Json* eos = config.find("eos_token_id");
  if (eos == nullptr || !spec.eos_ids.empty()) return;
  if (!eos->is_array()) {
    spec.eos_ids.push_back(id("eos_token_id", *eos));
    return;
  }
  for (const Json& item : eos->items()) spec.eos_ids.push_back(id("eos_token_id", item));
}

void read_decoder(ConfigFields& config, const Family& family, std::int64_t tensors, ModelSpec& spec) {
  family.read(config, tensors, spec);
  read_token_ids(config, spec);
  config.find("tie_word_embeddings");  // whose absence means something else to each family
  require_neutral_relatives(config);
  config.refuse_unread(harmless_keys());
}

}  // namespace llmq
