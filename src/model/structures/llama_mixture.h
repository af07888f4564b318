// A mixture of experts where Llama has its MLP: a router, experts of one width with a gate, and perhaps one
// that every row passes. Families differ in names, in which blocks have it, and in the weights.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/block_builder.h"
#include "model/families/family.h"

namespace llmq {

struct MixtureNames {  // below a block
  const char* router = "mlp.gate";
  const char* experts = "mlp.experts";
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";  // of an expert
  const char* shared = "mlp.shared_expert";
  const char* shared_gate = "mlp.shared_expert_gate";  // null: the shared expert counts as it is
  const char* correction = nullptr;                    // null: experts are chosen by their scores alone
  const char* router_norm = nullptr;                   // with LlamaMixture::router_norm: its gain
  const char* expert_scales = nullptr;                 // null: there are none
  const char* input = "x_mlp";                         // the site that experts read
};

struct LlamaMixture {
  MixtureNames names;
  std::int64_t experts = 0;
  int top_k = 0;
  bool normalized = false;
  bool weighs_input = false;
  RouterScore score = RouterScore::kSoftmax;
  int groups = 1, kept_groups = 1, group_best = 2;
  double weight_scale = 1;
  bool biases = false;                       // of the router and of all experts
  std::optional<Activation> activation;      // of experts, where it is another than the model's
  std::int64_t width = 0, shared_width = 0;  // 0: there is no shared expert
  std::vector<bool> blocks;                  // which of them; the others have an MLP
  std::optional<NormSpec> router_norm;       // of the residual stream, which the router reads then
};

// Which blocks have one: where mlp_only_layers and decoder_sparse_step have it, as Qwen counts.
std::vector<bool> read_sparse_blocks(ConfigFields& config, const ModelSpec& spec);
// num_experts, num_local_experts or n_routed_experts, and num_experts_per_tok, with these defaults. No more
// experts in `blocks` than a checkpoint of so many tensors can hold; keys that only training reads are passed
// over.
void read_experts(ConfigFields& config, std::int64_t tensors, std::int64_t experts, int top_k,
                  LlamaMixture& mixture, const char* top_k_key = "num_experts_per_tok");
// The mixture of Qwen's families: blocks by mlp_only_layers and decoder_sparse_step, moe_intermediate_size
// and norm_topk_prob; the defaults of their sizes are given. A window in any block is refused.
LlamaMixture read_qwen_mixture(ConfigFields& config, std::int64_t tensors, const ModelSpec& spec,
                               std::int64_t experts, int top_k, std::int64_t width);

// Of "<parent>.experts.gate_up_proj", gates before the others, and "<parent>.experts.down_proj".
std::optional<SlabNames> stacked_experts_below(std::string_view parent, const std::string& tensor);
// mlp.experts.gate_up_proj [experts, gate and up, hidden] and mlp.experts.down_proj, as Transformers 5 holds
// them and some tools write them, for families that name experts so.
std::optional<SlabNames> find_stacked_experts(const Json& config, const std::string& tensor);

MixtureSpec mixture_of(const LlamaMixture& mixture, BlockBuilder& builder, std::int64_t hidden,
                       Activation activation);

}  // namespace llmq
