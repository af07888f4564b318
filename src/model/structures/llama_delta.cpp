#include "model/structures/llama_delta.h"

#include <fmt/format.h>

#include <algorithm>

namespace llmq {
namespace {

constexpr IntegerRange kDeltaDimRange{1, 1 << 12}, kTapsRange{2, 16};

std::vector<bool> read_linear_blocks(ConfigFields& config, const ModelSpec& spec) {
  const std::int64_t interval = config.integer("full_attention_interval", kLayersRange, 4);
  std::vector<bool> linear = read_layer_types(config, spec, "linear_attention");
  for (std::size_t i = linear.size(); i < spec.blocks.size(); ++i)  // of none where the key is missing
    linear.push_back((static_cast<std::int64_t>(i) + 1) % interval != 0);
  return linear;
}

}  // namespace

LlamaDelta read_delta(ConfigFields& config, const ModelSpec& spec) {
  LlamaDelta delta;
  const auto integer = [&](const char* key, IntegerRange range, std::int64_t absent) {
    return static_cast<int>(config.integer(key, range, absent));
  };
  delta.heads.key_heads = integer("linear_num_key_heads", kHeadsRange, 16);
  delta.heads.value_heads = integer("linear_num_value_heads", kHeadsRange, 32);
  delta.heads.key_dim = integer("linear_key_head_dim", kDeltaDimRange, 128);
  delta.heads.value_dim = integer("linear_value_head_dim", kDeltaDimRange, 128);
  delta.taps = integer("linear_conv_kernel_dim", kTapsRange, 4);
  if (delta.heads.value_heads % delta.heads.key_heads != 0)
    config.bad("linear_num_value_heads",
               fmt::format("is {}, and the {} of linear_num_key_heads do not divide it",
                           delta.heads.value_heads, delta.heads.key_heads));
  if (std::max(delta.heads.keys(), delta.heads.values()) > kWidthRange.most)
    config.bad("linear_num_value_heads",
               fmt::format("heads of {} and {} channels are more than {} together", delta.heads.key_dim,
                           delta.heads.value_dim, kWidthRange.most));
  delta.blocks = read_linear_blocks(config, spec);
  if (std::all_of(delta.blocks.begin(), delta.blocks.end(), [](bool linear) { return linear; }))
    config.unsupported("layer_types", "has no full_attention, and no block would have pages",
                       "one full_attention block is needed");
  return delta;
}

DeltaSpec delta_of(const LlamaDelta& delta, BlockBuilder& builder, std::int64_t hidden, float eps) {
  DeltaSpec spec;
  spec.heads = delta.heads, spec.taps = delta.taps;
  const std::int64_t values = spec.heads.values(), each = spec.heads.value_heads;
  spec.input = builder.site("x_delta", hidden), spec.inner = builder.site("x_out", values);
  const auto linear = [&](const char* name, std::int64_t rows) {
    return builder.linear(fmt::format("linear_attn.{}", name), spec.input, {rows}, false);
  };
  // Few rows each, and what they make goes through an exponential: loaders expect them dense.
  const auto dense = [&](const char* name, std::int64_t rows) {
    const LinearId id = linear(name, rows);
    builder.never_quantized(id);
    return id;
  };
  if (delta.grouped) {
    spec.mixed = {linear("in_proj_qkvz", spec.convolved() + values)};
    spec.share = {dense("in_proj_ba", 2 * each)};
  } else {
    spec.mixed = {linear("in_proj_qkv", spec.convolved())};
    spec.gate = Part{linear("in_proj_z", values)};
    spec.share = {dense("in_proj_b", each)};
    spec.decay = Part{dense("in_proj_a", each)};
  }
  spec.output = builder.linear("linear_attn.out_proj", spec.inner, {hidden}, false);
  NormSpec norm;
  norm.eps = eps;
  spec.norm = builder.norm("linear_attn.norm", norm, spec.heads.value_dim);
  spec.conv = builder.tensor("linear_attn.conv1d.weight", {spec.convolved(), 1, spec.taps}, true);
  spec.rate = builder.tensor("linear_attn.A_log", {each});
  spec.shift = builder.tensor("linear_attn.dt_bias", {each});
  return spec;
}

}  // namespace llmq
