// What llama.cpp makes of a gated delta net. Rates are stored as -exp(A_log), norms as the 1 + w that they
// multiply by, but for the delta net's, and a convolution as [channels, taps]. Qwen3-Next's in_proj_qkvz,
// which has q, k, v and z of one key head after another, becomes two tensors, of which each has all heads of
// q, then of k, then of v, and all of z. In Qwen3.5 the value heads of one key head do not follow one
// another, but the first of every key head, then the second: what has a row, or a column, for each of their
// channels lies so. Sources: llama.cpp's conversion/qwen.py, src/models/qwen3next.cpp and qwen35.cpp.
#include "model/gguf/qwen3_next_gguf.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr auto kDeltaNames =
    joined(kAttentionNames, kHeadNormNames,
           std::array<GgufName, 6>{{{"post_attention_norm", "post_attention_layernorm"},
                                    {"ssm_a", "linear_attn.A_log", {}, true},
                                    {"ssm_dt.bias", "linear_attn.dt_bias", {}, true},
                                    {"ssm_conv1d", "linear_attn.conv1d"},
                                    {"ssm_norm", "linear_attn.norm", {}, false, true},
                                    {"ssm_out", "linear_attn.out_proj"}}});
constexpr std::array<GgufName, 4> kApartNames{{{"attn_qkv", "linear_attn.in_proj_qkv"},
                                               {"attn_gate", "linear_attn.in_proj_z"},
                                               {"ssm_beta", "linear_attn.in_proj_b"},
                                               {"ssm_alpha", "linear_attn.in_proj_a"}}};
constexpr std::array<GgufName, 3> kPerHeadNames{{{"attn_qkv", "linear_attn.in_proj_qkvz"},
                                                 {"attn_gate", "linear_attn.in_proj_qkvz"},
                                                 {"ssm_ba", "linear_attn.in_proj_ba"}}};
constexpr std::array<GgufName, 3> kMlpNames{
    {{"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"}}};
constexpr std::array<GgufName, 4> kFurtherNames{{{"nextn.eh_proj", "mtp.fc"},
                                                 {"nextn.enorm", "mtp.pre_fc_norm_embedding"},
                                                 {"nextn.hnorm", "mtp.pre_fc_norm_hidden"},
                                                 {"nextn.shared_head_norm", "mtp.norm"}}};

constexpr auto kNextBlockNames = joined(kDeltaNames, kPerHeadNames, kExpertNames);
constexpr auto kDenseBlockNames = joined(kDeltaNames, kApartNames, kMlpNames);
constexpr auto kMoeBlockNames = joined(kDeltaNames, kApartNames, kExpertNames);

constexpr GgufNames names_of(std::span<const GgufName> blocks) {
  return {"model.layers", kLlamaModelNames, blocks, kFurtherNames, "mtp.layers"};
}

// Value heads as they lie in Qwen3.5, behind `skipped` rows that lie as they do in Hugging Face's.
GgufOrder in_turn(const GgufWidths& widths, std::int64_t skipped, std::int64_t dim) {
  const std::int64_t each = widths.value_heads / widths.key_heads;
  GgufOrder order;
  if (skipped > 0) order.runs.push_back({0, {1, 1, skipped}, {0, 0, 1}});
  order.runs.push_back({skipped, {each, widths.key_heads, dim}, {dim, each * dim, 1}});
  return order;
}

// Channels [first, first + width) of what a key head has of in_proj_qkvz, `group` rows, head after head.
GgufOrder::Run of_groups(const GgufWidths& widths, std::int64_t group, std::int64_t first,
                         std::int64_t width) {
  return {first, {1, widths.key_heads, width}, {0, group, 1}};
}

std::optional<GgufPart> part_of_both(std::string_view name, const GgufWidths& widths, GgufOrder channels,
                                     GgufOrder heads) {
  const std::int64_t convolved =
      2 * widths.key_heads * widths.key_dim + widths.value_heads * widths.value_dim;
  if (name == "ssm_conv1d.weight")
    return GgufPart{{convolved, 1, widths.taps}, {convolved, widths.taps}, std::move(channels), {}};
  if (name == "ssm_a" || name == "ssm_dt.bias")
    return GgufPart{
        Shape{widths.value_heads}, Shape{widths.value_heads}, std::move(heads), {}, false, name == "ssm_a"};
  return std::nullopt;
}

std::optional<GgufPart> part_of_grouped(std::string_view name, const GgufWidths& widths) {
  const std::int64_t keys = widths.key_dim, values = widths.value_heads / widths.key_heads * widths.value_dim,
                     group = 2 * (keys + values), all = group * widths.key_heads;
  const auto part = [&](std::int64_t rows, std::vector<GgufOrder::Run> runs) {
    return GgufPart{{all, widths.hidden}, {rows, widths.hidden}, {std::move(runs)}, {}};
  };
  const auto run = [&](std::int64_t first, std::int64_t width) {
    return of_groups(widths, group, first, width);
  };
  if (name == "attn_qkv.weight")
    return part(all - values * widths.key_heads, {run(0, keys), run(keys, keys), run(2 * keys, values)});
  if (name == "attn_gate.weight") return part(values * widths.key_heads, {run(2 * keys + values, values)});
  return part_of_both(name, widths, {}, {});
}

std::optional<GgufPart> part_in_turn(std::string_view name, const GgufWidths& widths) {
  const std::int64_t keys = 2 * widths.key_heads * widths.key_dim,
                     values = widths.value_heads * widths.value_dim;
  const GgufOrder heads = in_turn(widths, 0, 1), channels = in_turn(widths, 0, widths.value_dim),
                  convolved = in_turn(widths, keys, widths.value_dim);
  if (std::optional<GgufPart> part = part_of_both(name, widths, convolved, heads)) return part;
  if (widths.key_heads == widths.value_heads) return std::nullopt;
  const auto rows = [&](std::int64_t count, const GgufOrder& order) {
    return GgufPart{{count, widths.hidden}, {count, widths.hidden}, order, {}};
  };
  if (name == "attn_qkv.weight") return rows(keys + values, convolved);
  if (name == "attn_gate.weight") return rows(values, channels);
  if (name == "ssm_beta.weight" || name == "ssm_alpha.weight") return rows(widths.value_heads, heads);
  if (name == "ssm_out.weight")
    return GgufPart{{widths.hidden, values}, {widths.hidden, values}, {}, channels};
  return std::nullopt;
}

constexpr std::array<GgufKey, 10> kFirstKeys{
    GgufKey::kBlockCount,    GgufKey::kContextLength, GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,     GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,     GgufKey::kRopeSections,
    GgufKey::kFrequencyBase, GgufKey::kNormEpsilon};
constexpr std::array<GgufKey, 4> kExpertKeys{GgufKey::kExpertCount, GgufKey::kExpertUsedCount,
                                             GgufKey::kKeyLength, GgufKey::kFileType};
constexpr std::array<GgufKey, 2> kWidthKeys{GgufKey::kExpertWidth, GgufKey::kSharedExpertWidth};
constexpr std::array<GgufKey, 2> kNoExpertKeys{GgufKey::kKeyLength, GgufKey::kFileType};
constexpr std::array<GgufKey, 9> kLastKeys{
    GgufKey::kFurtherBlocks,   GgufKey::kConvolutionTaps,   GgufKey::kStateKeyWidth,
    GgufKey::kStateKeyHeads,   GgufKey::kStateValueHeads,   GgufKey::kStateInnerWidth,
    GgufKey::kRecurrentBlocks, GgufKey::kAttentionInterval, GgufKey::kTurningDimensions};
constexpr std::array<GgufKey, 1> kDefaultSections{GgufKey::kDefaultRopeSections};
constexpr auto kNextKeys = joined(kFirstKeys, kExpertKeys, kWidthKeys, kLastKeys);
constexpr auto kDenseKeys = joined(kFirstKeys, kNoExpertKeys, kLastKeys, kDefaultSections);
constexpr auto kMoeKeys = joined(kFirstKeys, kExpertKeys, kWidthKeys, kLastKeys, kDefaultSections);

// Which blocks are recurrent is said one by one, or by how often one is not.
void add_layer_types(const GgufHeader& header, const std::string& architecture, Json& config) {
  const std::string key = architecture + ".attention.recurrent_layers";
  const std::string interval = architecture + ".full_attention_interval";
  if (header.find(interval) != nullptr) config["full_attention_interval"] = gguf_size(header, interval);
  if (header.find(key) == nullptr) return;
  const std::vector<std::int64_t> recurrent = header.integers(key);
  const auto blocks = static_cast<std::size_t>(config.at("num_hidden_layers").as_integer());
  if (recurrent.size() < blocks)
    bad_gguf(header, key, fmt::format("names {} blocks, and there are {}", recurrent.size(), blocks));
  Json types = Json::array();
  for (std::size_t i = 0; i < blocks; ++i)
    types.push_back(recurrent[i] != 0 ? "linear_attention" : "full_attention");
  config["layer_types"] = std::move(types);
}

void add_delta(const GgufHeader& header, Json& config) {
  const std::string architecture(header.string("general.architecture")), ssm = architecture + ".ssm.";
  add_layer_types(header, architecture, config);
  const std::int64_t values = gguf_size(header, ssm + "time_step_rank"),
                     inner = gguf_size(header, ssm + "inner_size");
  if (inner % values != 0)
    bad_gguf(header, ssm + "inner_size", fmt::format("is {}, and there are {} value heads", inner, values));
  config["linear_conv_kernel_dim"] = gguf_size(header, ssm + "conv_kernel");
  config["linear_key_head_dim"] = gguf_size(header, ssm + "state_size");
  config["linear_num_key_heads"] = gguf_size(header, ssm + "group_count");
  config["linear_num_value_heads"] = values;
  config["linear_value_head_dim"] = inner / values;
  config["attention_bias"] = false;
  // A share that is the family's own need not be said, so that it would not be taken for all of a head.
  if (config.find("partial_rotary_factor") == nullptr) config["partial_rotary_factor"] = 1.0;
}

// Text turns alike whatever the sections are; who converts back wants them.
void add_sections(const GgufHeader& header, Json& config) {
  const std::string key = std::string(header.string("general.architecture")) + ".rope.dimension_sections";
  if (header.find(key) == nullptr) return;
  std::vector<std::int64_t> sections = header.integers(key);
  if (sections.size() == 4 && sections.back() == 0) sections.pop_back();
  if (config.at("rope_scaling").is_null()) config["rope_scaling"] = Json::object({{"rope_type", "default"}});
  Json list = Json::array();
  for (const std::int64_t section : sections) list.push_back(section);
  config["rope_scaling"]["mrope_section"] = std::move(list);
  config["rope_scaling"]["mrope_interleaved"] = true;
}

void add_experts(const GgufHeader& header, Json& config) {
  const std::string architecture(header.string("general.architecture"));
  add_gguf_experts(header, "num_experts", config);
  config["moe_intermediate_size"] = gguf_size(header, architecture + ".expert_feed_forward_length");
  config["shared_expert_intermediate_size"] =
      gguf_size(header, architecture + ".expert_shared_feed_forward_length");
}

void add_qwen3_next_gguf(const GgufHeader& header, Json& config) {
  add_delta(header, config);
  add_experts(header, config);
  config["decoder_sparse_step"] = 1;
  config["norm_topk_prob"] = true;
}

void add_qwen35_gguf(const GgufHeader& header, Json& config) {
  add_delta(header, config);
  add_sections(header, config);
}

void add_qwen35_moe_gguf(const GgufHeader& header, Json& config) {
  add_qwen35_gguf(header, config);
  add_experts(header, config);
}

constexpr GgufFamily hybrid(const char* architecture, std::span<const GgufName> names,
                            std::span<const GgufKey> keys) {
  return {.architecture = architecture,
          .names = names_of(names),
          .keys = keys,
          .partial_rope = true,
          .one_state_width = true,
          .without_tower = true,
          .norm_shift = 1};
}

constexpr GgufFamily next_family() {
  GgufFamily family = hybrid("qwen3next", kNextBlockNames, kNextKeys);
  family.part = part_of_grouped;
  family.experts = GgufExperts::kSumToOne;
  family.add_config = add_qwen3_next_gguf;
  return family;
}
constexpr GgufFamily dense_family() {
  GgufFamily family = hybrid("qwen35", kDenseBlockNames, kDenseKeys);
  family.part = part_in_turn;
  family.add_config = add_qwen35_gguf;
  return family;
}
constexpr GgufFamily moe_family() {
  GgufFamily family = hybrid("qwen35moe", kMoeBlockNames, kMoeKeys);
  family.part = part_in_turn;
  family.experts = GgufExperts::kSumToOne;
  family.add_config = add_qwen35_moe_gguf;
  return family;
}

}  // namespace

const GgufFamily kQwen3NextGguf = next_family(), kQwen35Gguf = dense_family(), kQwen35MoeGguf = moe_family();

}  // namespace llmq
