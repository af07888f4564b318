// ERNIE 4.5 without experts: Llama with heads of 128 channels whatever the width, of which rope turns pairs
// of neighbours, and biases of all linears or of none. Source: Transformers' configuration_ernie4_5 and
// modeling_ernie4_5.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_ernie(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes =
      read_llama_sizes(config, layers, {131072, 2, config.is_null("head_dim") ? 0 : 128, 1e-5, 3072}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.theta = 5e5})};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = traits.mlp_bias = config.flag("use_bias", false);
  traits.turns.assign(spec.blocks.size(), {0, spec.ropes.front().dims, RopePairs::kNeighbours});
  fill_llama(sizes, traits, spec);
}

// llama.cpp reads a bias of no linear but attention's, and adds none of its output.
void add_ernie_gguf(const GgufHeader& header, Json& config) {
  refuse_gguf_biases(header, "dense ERNIE 4.5");
  config["use_bias"] = false;  // which mlx-lm wants to be told
}

constexpr GgufFamily kErnieGguf = {.architecture = "ernie4_5",
                                   .names = kLlamaNames,
                                   .keys = kQwen3Keys,
                                   .vocabulary = {.says_prefix_last = true},
                                   .add_config = add_ernie_gguf};

}  // namespace

extern const Family kErnieFamily = {"ernie4_5", "Ernie4_5ForCausalLM", true, read_ernie, &kErnieGguf};

}  // namespace llmq
