// The decoder that most families share: RMS norms, rotary attention with grouped KV heads, a gated MLP, no
// parallel residual. They differ in defaults, biases, the norms over heads of q and k, where a sliding window
// applies, and whether norms stand before the mixers, behind them, or both.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "model/families/family.h"
#include "model/structures/llama_delta.h"
#include "model/structures/llama_latent.h"
#include "model/structures/llama_mixture.h"

namespace llmq {

// Defaults for keys that a config may lack.
struct LlamaDefaults {
  std::int64_t max_position;
  std::int64_t kv_heads;  // 0: as many as heads. A null always means as many as heads.
  std::int64_t head_dim;  // 0: hidden_size / heads
  double eps = 1e-6;
  std::int64_t intermediate_size = 0;  // 0: it has to be there
};

struct LlamaSizes {
  int heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t intermediate_size = 0;
  float eps = 1e-6f;
  Activation activation = Activation::kSilu;
};

// Common sizes into `spec`, the others returned; hidden_act is silu, gelu_pytorch_tanh or gelu_new, and
// `activation` where it is absent.
LlamaSizes read_llama_sizes(ConfigFields& config, std::int64_t layers, const LlamaDefaults& defaults,
                            ModelSpec& spec, const char* activation = "silu");

// What the norms around the mixers are called; null: there is none.
struct LlamaNorms {
  const char *before_attention = "input_layernorm", *behind_attention = nullptr,
             *before_mlp = "post_attention_layernorm", *behind_mlp = nullptr;
};

struct LlamaTraits {
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool query_key_norm = false;           // over each head of q and k
  bool query_key_norm_over_all = false;  // over all heads of q at once, and over all of k
  bool query_key_lengths = false;        // over each head of q and k, without a gain, where keys turn
  bool gated_attention = false;          // q_proj has a gate beside each query
  LlamaNorms norms;
  const char* mlp = "mlp";
  float norm_offset = 0;                          // of every norm, those over heads too
  bool fused_qkv = false, fused_gate_up = false;  // are stored as one linear
  std::vector<std::int64_t> windows;  // per block, 0: full attention; none: full attention in each
  bool chunks = false;                // windows begin at their last multiples
  std::vector<RopeUse> turns;         // per block; none: every block turns whole heads by the first table
  std::optional<std::size_t> query_table;  // of queries, where it is another than that of keys
  std::optional<LlamaMixture> mixture;     // in the place of the MLP, in some blocks
  std::optional<LlamaDelta> delta;         // in the place of attention, in some blocks
  std::optional<LlamaLatent> latent;       // in the place of attention, in all blocks
  // Of the embedding, of the product of a query and a key (0: 1 / sqrt(head_dim)), of what a mixer adds, and
  // of the logits.
  float embedding_scale = 1, attention_scale = 0, residual_scale = 1;
  float attention_softcap = 0;  // of scores; 0: none
  bool sinks = false;           // a score of each head that has no value
  double logit_scale = 1;
};

// Embedding, blocks and the last norm, under Llama's names.
void fill_llama(const LlamaSizes& sizes, const LlamaTraits& traits, ModelSpec& spec);

}  // namespace llmq
