// Attention over latents where Llama has attention: DeepSeek V2 and V3, Kimi-K2, GLM-4.7-Flash.
#pragma once
#include <cstdint>

#include "model/block_builder.h"
#include "model/families/family.h"

namespace llmq {

struct LlamaLatent {
  int heads = 0;
  std::int64_t query_rank = 0;  // 0: queries are linear of the block's input
  std::int64_t rank = 0, plain = 0, turning = 0, value_dim = 0;
  bool bias = false;  // of the linears that read the block's input, but for q_proj, and of the output
  RopePairs pairs = RopePairs::kNeighbours;
  float scale = 0;
};

// Where a config says nothing. A null q_lora_rank says that there is none.
struct LatentDefaults {
  std::int64_t query_rank, rank, plain, turning, value_dim;
};

// The widths of heads, before read_llama_sizes(), which asks for qk_rope_head_dim as the head's.
LlamaLatent read_latent_widths(ConfigFields& config, const LatentDefaults& defaults);
// The rest, behind the rope of the turning channels has been read: with mscale_all_dim scores grow by the
// square of what it makes of the factor. Error where heads share keys, or are wider together than a row may
// be.
void read_latent_attention(ConfigFields& config, int heads, int kv_heads, const RopeSpec& rope,
                           LlamaLatent& latent);

LatentAttentionSpec latent_attention_of(const LlamaLatent& latent, BlockBuilder& builder,
                                        std::int64_t hidden);

}  // namespace llmq
