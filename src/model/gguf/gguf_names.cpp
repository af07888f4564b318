#include "model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace llmq {
namespace {

constexpr std::string_view kBlocks = "blk.";

using HasTensor = std::function<bool(std::string_view tensor)>;

const GgufName* find_gguf(std::span<const GgufName> rows, std::string_view stem, bool whole) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const GgufName& row) {
    return row.gguf == stem && row.whole == whole && row.beside.empty();
  });
  return found == rows.end() ? nullptr : &*found;
}

// The same of a block, whose rows may ask for another tensor beside theirs.
const GgufName* find_in_block(std::span<const GgufName> rows, std::int64_t block, std::string_view stem,
                              bool whole, const HasTensor& has) {
  for (const GgufName& row : rows)
    if (row.gguf == stem && row.whole == whole && !row.beside.empty() && has &&
        has(fmt::format("{}{}.{}.weight", kBlocks, block, row.beside)))
      return &row;
  return find_gguf(rows, stem, whole);
}

// "blk.3.attn_q" -> 3, "attn_q"; -1 where it is not of a block.
std::pair<std::int64_t, std::string_view> block_and_rest(std::string_view name) {
  if (!name.starts_with(kBlocks)) return {-1, name};
  name.remove_prefix(kBlocks.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (error != std::errc() || layer < 0 || (digits > 1 && name[0] == '0')) return {-1, {}};
  name.remove_prefix(digits);
  if (!name.starts_with('.')) return {-1, {}};
  return {layer, name.substr(1)};
}

// "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj"; empty when unknown. `layers` and `further` bound the
// number.
TranslatedName translated(const GgufNames& names, std::string_view stem, std::int64_t layers,
                          std::int64_t further, bool whole, const HasTensor& has) {
  if (const GgufName* row = find_gguf(names.of_model, stem, whole))
    return {std::string(row->hugging_face), row->heads};
  const auto [layer, rest] = block_and_rest(stem);
  if (layer < 0 || layer >= layers + further) return {};
  const bool renumbered = layer >= layers && !names.further.empty();
  if (const GgufName* const row = find_in_block(names.of_block, layer, rest, whole, has))
    return {fmt::format("{}.{}.{}", renumbered ? names.further : names.blocks,
                        renumbered ? layer - layers : layer, row->hugging_face),
            row->heads, row->unshifted,
            row->then.empty() ? std::string() : fmt::format("{}.{}.{}", names.blocks, layer, row->then)};
  const GgufName* const row = layer < layers ? nullptr : find_gguf(names.of_further, rest, whole);
  if (row == nullptr) return {};
  if (!renumbered) return {fmt::format("{}.{}.{}", names.blocks, layer, row->hugging_face)};
  return {layer == layers ? std::string(row->hugging_face) : std::string()};
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

std::vector<std::string> gguf_names(const GgufFamily& family, std::string_view hugging_face) {
  auto [stem, suffix] = stem_and_suffix(hugging_face);
  std::vector<std::string> found;
  for (const GgufName& row : family.names.of_model)
    if (row.hugging_face == stem) return {fmt::format("{}{}", row.gguf, suffix)};
  const std::string blocks = std::string(family.names.blocks) + ".";
  if (!stem.starts_with(blocks)) return {};
  stem.remove_prefix(blocks.size());
  const std::size_t dot = stem.find('.');
  if (dot == std::string_view::npos) return {};
  for (const GgufName& row : family.names.of_block)
    if (row.whole && hugging_face.substr(blocks.size() + dot + 1) == row.hugging_face)
      return {fmt::format("{}{}.{}", kBlocks, stem.substr(0, dot), row.gguf)};
  for (const GgufName& row : family.names.of_block)
    if (!row.whole &&
        (is_of(stem.substr(dot + 1), row.hugging_face) || is_of(stem.substr(dot + 1), row.then)))
      found.push_back(fmt::format("{}{}.{}{}", kBlocks, stem.substr(0, dot), row.gguf, suffix));
  return found;
}

std::string gguf_name(const GgufFamily& family, std::string_view hugging_face) {
  std::vector<std::string> names = gguf_names(family, hugging_face);
  return names.empty() ? std::string() : std::move(names.front());
}

std::vector<std::string> gguf_further_names(const GgufFamily& family, std::string_view hugging_face,
                                            std::int64_t layers) {
  const GgufNames& names = family.names;
  const bool renumbered = !names.further.empty();
  const std::string blocks = std::string(renumbered ? names.further : names.blocks) + ".";
  std::int64_t block = layers;
  std::string_view rest = hugging_face;
  if (hugging_face.starts_with(blocks)) {
    rest.remove_prefix(blocks.size());
    std::int64_t number = -1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || number < 0 || end == rest.data() + rest.size() || *end != '.') return {};
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
    block = renumbered ? layers + number : number;
    std::vector<std::string> found = gguf_names(family, fmt::format("{}.{}.{}", names.blocks, block, rest));
    if (!found.empty() || renumbered) return found;
  } else if (!renumbered) {
    return {};
  }
  const auto [stem, suffix] = stem_and_suffix(rest);
  for (const GgufName& row : names.of_further)
    if (row.hugging_face == stem) return {fmt::format("{}{}.{}{}", kBlocks, block, row.gguf, suffix)};
  return {};
}

TranslatedName hugging_face_name(const GgufFamily& family, std::string_view gguf, std::int64_t layers,
                                 std::int64_t further, const HasTensor& has) {
  if (TranslatedName whole = translated(family.names, gguf, layers, further, true, has); !whole.name.empty())
    return whole;
  const auto [stem, suffix] = stem_and_suffix(gguf);
  if (suffix.empty()) return {};
  TranslatedName result = translated(family.names, stem, layers, further, false, has);
  if (!result.name.empty()) result.name += suffix;
  if (!result.then.empty()) result.then += suffix;
  return result;
}

std::string_view name_in_gguf_block(std::string_view gguf) { return block_and_rest(gguf).second; }
std::int64_t gguf_block_of(std::string_view gguf) { return block_and_rest(gguf).first; }

}  // namespace llmq
