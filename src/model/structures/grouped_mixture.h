// What GLM's and DeepSeek's mixtures share: experts in groups, of which a row keeps some; an MLP in the first
// blocks; one expert of all rows that counts as it is; and blocks behind the last, which predict further
// tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/structures/llama_mixture.h"

namespace llmq {

// Where a config says nothing.
struct GroupedDefaults {
  std::int64_t experts, width, shared;
  int top_k;
  std::int64_t dense = 1;  // of the first blocks
  int groups = 1, kept_groups = 1;
  double weight_scale = 1;
};

// Which blocks have a mixture: those behind the first so many (first_k_dense_replace).
std::vector<bool> read_blocks_behind_dense(ConfigFields& config, const ModelSpec& spec, std::int64_t absent);
// n_group and topk_group, of a mixture whose experts and top_k are known; a group needs group_best experts.
void read_groups(ConfigFields& config, int groups, int kept_groups, LlamaMixture& mixture);
// Sizes of such a mixture in `blocks`, under GLM's and DeepSeek's names: experts of all rows, the factor of
// all weights, and the number of experts in a row.
LlamaMixture read_grouped_mixture(ConfigFields& config, std::int64_t tensors, std::vector<bool> blocks,
                                  const GroupedDefaults& defaults);
// A mixture whose router gives sigmoids, with a correction to choose by.
LlamaMixture read_sigmoid_mixture(ConfigFields& config, std::int64_t tensors, std::vector<bool> blocks,
                                  const GroupedDefaults& defaults);
// num_nextn_predict_layers, or num_mtp_layers as Transformers 5.23 has it: so many blocks are carried along.
void carry_further_blocks(ConfigFields& config, std::int64_t absent, ModelSpec& spec);
// find_stacked_experts() of the model's own blocks: those behind them keep their bytes, however they lie.
std::optional<SlabNames> find_stacked_experts_of_blocks(const Json& config, const std::string& tensor);

}  // namespace llmq
