#include "model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

namespace llmq {
namespace {

struct NameRow {
  std::string_view gguf, hugging_face;
};
constexpr std::array<NameRow, 3> kModelNames{
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr std::array<NameRow, 11> kBlockNames{{{"attn_norm", "input_layernorm"},
                                               {"attn_q", "self_attn.q_proj"},
                                               {"attn_k", "self_attn.k_proj"},
                                               {"attn_v", "self_attn.v_proj"},
                                               {"attn_output", "self_attn.o_proj"},
                                               {"attn_q_norm", "self_attn.q_norm"},
                                               {"attn_k_norm", "self_attn.k_norm"},
                                               {"ffn_norm", "post_attention_layernorm"},
                                               {"ffn_gate", "mlp.gate_proj"},
                                               {"ffn_up", "mlp.up_proj"},
                                               {"ffn_down", "mlp.down_proj"}}};

// "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj"; empty when unknown. `layers` bounds the number.
std::string translated_stem(std::string_view stem, std::int64_t layers) {
  for (const NameRow& row : kModelNames)
    if (row.gguf == stem) return std::string(row.hugging_face);
  if (!stem.starts_with("blk.")) return {};
  stem.remove_prefix(4);
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), layer);
  const auto digits = static_cast<std::size_t>(end - stem.data());
  if (error != std::errc() || layer < 0 || layer >= layers || (digits > 1 && stem[0] == '0')) return {};
  stem.remove_prefix(digits);
  if (!stem.starts_with('.')) return {};
  stem.remove_prefix(1);
  for (const NameRow& row : kBlockNames)
    if (row.gguf == stem) return fmt::format("model.layers.{}.{}", layer, row.hugging_face);
  return {};
}

// A name without its suffix, and the suffix: ".weight", ".bias" or nothing.
std::pair<std::string_view, std::string_view> stem_and_suffix(std::string_view name) {
  for (const std::string_view suffix : {".weight", ".bias"})
    if (name.ends_with(suffix)) return {name.substr(0, name.size() - suffix.size()), suffix};
  return {name, {}};
}

}  // namespace

std::string gguf_name(std::string_view hugging_face) {
  constexpr std::string_view kLayers = "model.layers.";
  const auto [stem, suffix] = stem_and_suffix(hugging_face);
  for (const NameRow& row : kModelNames)
    if (row.hugging_face == stem) return std::string(row.gguf) + std::string(suffix);
  const std::size_t dot = stem.starts_with(kLayers) ? stem.find('.', kLayers.size()) : std::string_view::npos;
  if (dot == std::string_view::npos) return {};
  for (const NameRow& row : kBlockNames)
    if (row.hugging_face == stem.substr(dot + 1))
      return fmt::format("blk.{}.{}{}", stem.substr(kLayers.size(), dot - kLayers.size()), row.gguf, suffix);
  return {};
}

std::string hugging_face_name(std::string_view gguf, std::int64_t layers) {
  const auto [stem, suffix] = stem_and_suffix(gguf);
  const std::string translated = translated_stem(stem, layers);
  return translated.empty() ? translated : translated + std::string(suffix);
}

}  // namespace llmq
