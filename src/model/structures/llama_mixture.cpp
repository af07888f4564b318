#include "model/structures/llama_mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "io/damaged_file.h"

namespace llmq {
namespace {

constexpr IntegerRange kExpertsRange{1, kMostExperts};

// Transformers 5 writes the one or the other, whatever the family's own name is.
constexpr const char* kCounts[] = {"num_local_experts", "num_experts", "n_routed_experts"};

const char* count_key(ConfigFields& config) {
  for (const char* const key : kCounts)
    if (config.find(key) != nullptr) return key;
  return kCounts[1];
}

std::int64_t expert_count(ConfigFields& config, std::int64_t absent) {
  const char* const key = count_key(config);
  const std::int64_t experts = config.integer(key, kExpertsRange, absent);
  for (const char* const other : kCounts)
    if (config.find(other) != nullptr && config.integer(other, kExpertsRange) != experts)
      config.bad(other, fmt::format("differs from {} {}", key, experts), "remove one of them");
  return experts;
}

ExpertSpec expert_of(const LlamaMixture& of, const std::string& place, const std::string& site,
                     std::int64_t width, const MixtureSpec& mixture, BlockBuilder& builder) {
  const MixtureNames& names = of.names;
  ExpertSpec expert;
  expert.gate = {builder.linear(fmt::format("{}.{}", place, names.gate), mixture.input, {width}, of.biases)};
  expert.up = {builder.linear(fmt::format("{}.{}", place, names.up), mixture.input, {width}, of.biases)};
  expert.inner = builder.site(site, width);
  expert.output =
      builder.linear(fmt::format("{}.{}", place, names.down), expert.inner, {mixture.hidden}, of.biases);
  return expert;
}

// use_sliding_window and layer_types say otherwise at most by an error.
void refuse_windows(ConfigFields& config, const ModelSpec& spec) {
  config.require_neutral("use_sliding_window", false);
  config.find("sliding_window");
  config.find("max_window_layers");
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding)
      config.unsupported("layer_types", "asks for sliding attention, which this family does not do here");
}

}  // namespace

std::vector<bool> read_sparse_blocks(ConfigFields& config, const ModelSpec& spec) {
  constexpr const char* kDense = "mlp_only_layers";
  const auto count = static_cast<std::int64_t>(spec.blocks.size());
  const std::int64_t step = config.integer("decoder_sparse_step", kLayersRange, 1);
  std::vector<bool> sparse;
  for (std::int64_t i = 0; i < count; ++i) sparse.push_back((i + 1) % step == 0);
  const Json* const dense = config.find(kDense);
  if (dense == nullptr) return sparse;
  if (!dense->is_array()) config.bad(kDense, fmt::format("expected an array, found {}", dense->kind()));
  for (const Json& block : dense->items()) {
    if (!block.is_integer() || block.as_integer() < 0 || block.as_integer() >= count)
      config.bad(kDense, fmt::format("names block {}, and there are {}", block.dump(), count));
    sparse[static_cast<std::size_t>(block.as_integer())] = false;
  }
  return sparse;
}

void read_experts(ConfigFields& config, std::int64_t tensors, std::int64_t experts, int top_k,
                  LlamaMixture& mixture, const char* top_k_key) {
  mixture.experts = expert_count(config, experts);
  const std::int64_t blocks = std::count(mixture.blocks.begin(), mixture.blocks.end(), true);
  if (mixture.experts * blocks > tensors)
    config.bad(count_key(config),
               fmt::format("is {}{} in {} blocks, but the checkpoint has {} tensors in all",
                           config.find(count_key(config)) == nullptr ? "missing, which stands for " : "",
                           mixture.experts, blocks, tensors));
  mixture.top_k = static_cast<int>(config.integer(top_k_key, kExpertsRange, top_k));
  if (mixture.top_k > mixture.experts)
    config.bad(top_k_key, fmt::format("is {}{}, and there are {} experts",
                                      config.find(top_k_key) == nullptr ? "missing, which stands for " : "",
                                      mixture.top_k, mixture.experts));
  for (const char* training : {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"})
    config.find(training);
}

LlamaMixture read_qwen_mixture(ConfigFields& config, std::int64_t tensors, const ModelSpec& spec,
                               std::int64_t experts, int top_k, std::int64_t width) {
  refuse_windows(config, spec);
  LlamaMixture mixture;
  mixture.blocks = read_sparse_blocks(config, spec);
  read_experts(config, tensors, experts, top_k, mixture);
  mixture.width = config.integer("moe_intermediate_size", kWidthRange, width);
  mixture.normalized = config.flag("norm_topk_prob", false);
  return mixture;
}

std::optional<SlabNames> stacked_experts_below(std::string_view parent, const std::string& tensor) {
  for (const auto& [ending, names] :
       {std::pair{".gate_up_proj", SlabNames{{}, ".gate_proj.weight", false, {".up_proj.weight"}}},
        std::pair{".down_proj", SlabNames{{}, ".down_proj.weight"}}}) {
    if (!tensor.ends_with(fmt::format("{}.experts{}", parent, ending))) continue;
    SlabNames found = names;
    found.before = tensor.substr(0, tensor.rfind('.') + 1);
    return found;
  }
  return std::nullopt;
}

std::optional<SlabNames> find_stacked_experts(const Json&, const std::string& tensor) {
  return stacked_experts_below(".mlp", tensor);
}

MixtureSpec mixture_of(const LlamaMixture& mixture, BlockBuilder& builder, std::int64_t hidden,
                       Activation activation) {
  MixtureSpec spec;
  spec.hidden = hidden, spec.width = mixture.width, spec.shared_width = mixture.shared_width;
  spec.top_k = mixture.top_k, spec.normalized = mixture.normalized,
  spec.activation = mixture.activation.value_or(activation);
  spec.score = mixture.score, spec.groups = mixture.groups, spec.kept_groups = mixture.kept_groups;
  spec.group_best = mixture.group_best, spec.weighs_input = mixture.weighs_input;
  spec.weight_scale = mixture.weight_scale;
  spec.input = builder.site(mixture.names.input, hidden);
  SiteId routed = spec.input;
  if (mixture.router_norm) {
    routed = builder.site("x_router", hidden);
    spec.router_norm =
        builder.norm_of(builder.vector(mixture.names.router_norm), *mixture.router_norm, hidden);
  }
  spec.router = builder.linear(mixture.names.router, routed, {mixture.experts}, mixture.biases);
  builder.never_quantized(spec.router);
  if (mixture.names.correction != nullptr)
    spec.correction = builder.host_tensor(mixture.names.correction, {mixture.experts});
  if (mixture.names.expert_scales != nullptr)
    spec.expert_scales = builder.host_tensor(mixture.names.expert_scales, {mixture.experts});
  for (std::int64_t e = 0; e < mixture.experts; ++e)
    spec.experts.push_back(expert_of(mixture, fmt::format("{}.{}", mixture.names.experts, e),
                                     fmt::format("x_down.{}", e), mixture.width, spec, builder));
  if (mixture.shared_width == 0) return spec;
  spec.shared =
      expert_of(mixture, mixture.names.shared, "x_down.shared", mixture.shared_width, spec, builder);
  if (mixture.names.shared_gate == nullptr) return spec;
  spec.shared_gate = builder.linear(mixture.names.shared_gate, spec.input, {1}, false);
  builder.never_quantized(*spec.shared_gate);
  return spec;
}

}  // namespace llmq
