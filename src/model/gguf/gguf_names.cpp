#include "model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace llmq {
namespace {

constexpr std::string_view kBlocks = "blk.";

const GgufName* find_gguf(std::span<const GgufName> rows, std::string_view stem, bool whole) {
  const auto found = std::find_if(
      rows.begin(), rows.end(), [&](const GgufName& row) { return row.gguf == stem && row.whole == whole; });
  return found == rows.end() ? nullptr : &*found;
}

// "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj"; empty when unknown. `layers` bounds the number.
TranslatedName translated(const GgufNames& names, std::string_view stem, std::int64_t layers, bool whole) {
  if (const GgufName* row = find_gguf(names.of_model, stem, whole))
    return {std::string(row->hugging_face), row->heads};
  if (!stem.starts_with(kBlocks)) return {};
  stem.remove_prefix(kBlocks.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), layer);
  const auto digits = static_cast<std::size_t>(end - stem.data());
  if (error != std::errc() || layer < 0 || layer >= layers || (digits > 1 && stem[0] == '0')) return {};
  stem.remove_prefix(digits);
  if (!stem.starts_with('.')) return {};
  stem.remove_prefix(1);
  const GgufName* const row = find_gguf(names.of_block, stem, whole);
  if (row == nullptr) return {};
  return {fmt::format("{}.{}.{}", names.blocks, layer, row->hugging_face), row->heads};
}

// A name without its suffix, and the suffix: ".weight", ".bias" or nothing.
std::pair<std::string_view, std::string_view> stem_and_suffix(std::string_view name) {
  for (const std::string_view suffix : {".weight", ".bias"})
    if (name.ends_with(suffix)) return {name.substr(0, name.size() - suffix.size()), suffix};
  return {name, {}};
}

// "mlp.experts.7.up_proj" is of "mlp.experts.*.up_proj".
bool is_of(std::string_view stem, std::string_view row) {
  const std::size_t star = row.find('*');
  if (star == std::string_view::npos) return stem == row;
  const std::string_view before = row.substr(0, star), behind = row.substr(star + 1);
  if (stem.size() <= before.size() + behind.size() || !stem.starts_with(before) || !stem.ends_with(behind))
    return false;
  const std::string_view number = stem.substr(star, stem.size() - before.size() - behind.size());
  return number.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::string gguf_name(const GgufFamily& family, std::string_view hugging_face) {
  auto [stem, suffix] = stem_and_suffix(hugging_face);
  for (const GgufName& row : family.names.of_model)
    if (row.hugging_face == stem) return fmt::format("{}{}", row.gguf, suffix);
  const std::string blocks = std::string(family.names.blocks) + ".";
  if (!stem.starts_with(blocks)) return {};
  stem.remove_prefix(blocks.size());
  const std::size_t dot = stem.find('.');
  if (dot == std::string_view::npos) return {};
  for (const GgufName& row : family.names.of_block)
    if (row.whole && hugging_face.substr(blocks.size() + dot + 1) == row.hugging_face)
      return fmt::format("{}{}.{}", kBlocks, stem.substr(0, dot), row.gguf);
  for (const GgufName& row : family.names.of_block)
    if (!row.whole && is_of(stem.substr(dot + 1), row.hugging_face))
      return fmt::format("{}{}.{}{}", kBlocks, stem.substr(0, dot), row.gguf, suffix);
  return {};
}

TranslatedName hugging_face_name(const GgufFamily& family, std::string_view gguf, std::int64_t layers) {
  if (TranslatedName whole = translated(family.names, gguf, layers, true); !whole.name.empty()) return whole;
  const auto [stem, suffix] = stem_and_suffix(gguf);
  if (suffix.empty()) return {};
  TranslatedName result = translated(family.names, stem, layers, false);
  if (!result.name.empty()) result.name += suffix;
  return result;
}

}  // namespace llmq
