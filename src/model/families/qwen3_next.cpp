// Qwen3-Next, and the decoders of Qwen3.5, 3.6 and 3.8: three blocks of four have a gated delta net, the
// others attention with a gate on what it gives, a quarter of whose heads turns; every norm but the delta
// net's multiplies by 1 + w; a mixture of experts with a shared one, or an MLP. Source: Transformers'
// configuration_ and modeling_ of qwen3_next, qwen3_5 and qwen3_5_moe.
//
// What predicts further tokens (mtp.*) lies beside the decoder and is carried along.
#include <string_view>

#include "model/gguf/qwen3_next_gguf.h"
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

constexpr RopeDefaults kQuarterTurns{.theta = 10000, .partial = true, .share = 0.25};

// What all of them have but the rope, and linears of the delta net where they are stored so.
LlamaTraits read_hybrid(ConfigFields& config, bool grouped, const LlamaSizes& sizes, ModelSpec& spec) {
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.norm_offset = 1;
  traits.query_key_norm = true;
  traits.gated_attention = true;
  traits.delta = read_delta(config, spec);
  traits.delta->grouped = grouped;
  spec.carried.parts = {"mtp"};
  config.require_neutral("mlp_bias", false);
  config.require_neutral("attn_output_gate", true);
  config.require_neutral("output_gate_type", "swish");
  config.require_neutral("use_sliding_window", false);
  for (const char* ours : {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"})
    config.find(ours);  // of what is carried along, and of the type of a state that is FP32 here
  if (sizes.activation != Activation::kSilu)
    config.unsupported("hidden_act", "is none of this family's, whose convolution ends in silu", "silu is");
  return traits;
}

void read_qwen3_next(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {32768, 2, 256, 1e-6, 5632}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, kQuarterTurns)};
  LlamaTraits traits = read_hybrid(config, true, sizes, spec);
  LlamaMixture& mixture = traits.mixture.emplace();
  mixture.blocks = read_sparse_blocks(config, spec);
  read_experts(config, tensors, 512, 10, mixture);
  mixture.width = config.integer("moe_intermediate_size", kWidthRange, 512);
  mixture.normalized = config.flag("norm_topk_prob", true);
  mixture.shared_width = config.integer("shared_expert_intermediate_size", kWidthRange, 512);
  fill_llama(sizes, traits, spec);
}

void read_qwen3_5_text(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {32768, 4, 256}, spec);
  spec.ropes = {read_sectioned_rope(config, spec.max_position, sizes.head_dim, kQuarterTurns)};
  fill_llama(sizes, read_hybrid(config, false, sizes, spec), spec);
}

void read_qwen3_5_moe_text(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {32768, 2, 256, 1e-6, 1}, spec);
  spec.ropes = {read_sectioned_rope(config, spec.max_position, sizes.head_dim, kQuarterTurns)};
  LlamaTraits traits = read_hybrid(config, false, sizes, spec);
  LlamaMixture& mixture = traits.mixture.emplace();
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 256, 8, mixture);
  mixture.width = config.integer("moe_intermediate_size", kWidthRange, 512);
  mixture.normalized = true;
  mixture.shared_width = config.integer("shared_expert_intermediate_size", kWidthRange, 512);
  fill_llama(sizes, traits, spec);
}

// Of the decoder alone: what is carried along keeps its bytes as they lie.
std::optional<SlabNames> find_decoders_experts(const Json& config, const std::string& tensor) {
  if (std::string_view(tensor).starts_with("mtp.")) return std::nullopt;
  return find_stacked_experts(config, tensor);
}

}  // namespace

extern const Family kQwen3NextFamily = {"qwen3_next",    "Qwen3NextForCausalLM", false,
                                        read_qwen3_next, &kQwen3NextGguf,        find_decoders_experts};
extern const Family kQwen35Text = {"qwen3_5_text", "Qwen3_5ForCausalLM", false, read_qwen3_5_text,
                                   &kQwen35Gguf};
extern const Family kQwen35MoeText = {"qwen3_5_moe_text",    "Qwen3_5MoeForCausalLM", false,
                                      read_qwen3_5_moe_text, &kQwen35MoeGguf,         find_decoders_experts};

}  // namespace llmq
