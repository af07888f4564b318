// config.json -> ModelSpec: sizes, blocks, linears, folds; then every stored tensor is matched against them,
// both ways.
//
// A tensor that the structure needs and the checkpoint lacks, one with another shape, and one that nobody
// would read are all refused: each means that config.json describes another model than the one stored.
#include "model/model_spec.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "io/codes/mlx.h"
#include "model/decoder_config.h"
#include "model/families/nearest_family.h"
#include "model/families/wrapper.h"
#include "model/tensor_check.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

template <class Row>
std::string listed_types(std::span<const Row* const> rows) {
  std::string known;
  for (const Row* row : rows)
    known += (known.empty() ? "" : row == rows.back() ? " and " : ", ") + std::string(row->model_type);
  return known;
}

const Family& find_family(const Checkpoint& checkpoint, ConfigFields& config) {
  const std::string type = config.text("model_type");
  for (const Family* family : families())
    if (type == family->model_type) return *family;
  const std::string nearest = nearest_families(checkpoint, type);
  config.unsupported(
      "model_type",
      fmt::format("the family \"{}\" is not known here{}{}", type, nearest.empty() ? "" : "; ", nearest),
      fmt::format("{} are, and around a decoder {}", listed_types(families()), listed_types(wrappers())));
}

// Numbers made of MLX's codes are those of a model whose tensors mlx-lm leaves as they are.
void check_mlx(const Checkpoint& checkpoint, const ModelSpec& spec, ConfigFields& config) {
  const std::string why = mlx_refusal(spec);
  if (!why.empty() && is_made_of_codes(checkpoint)) config.unsupported("model_type", "is of MLX, and " + why);
}

}  // namespace

std::string mlx_refusal(const ModelSpec& spec) {
  if (spec.wrapper || !spec.carried.parts.empty())
    return "mlx-lm stores a decoder alone, without what lies beside this one";
  if (is_same_in_mlx(spec.family)) return {};
  return fmt::format("mlx-lm stores models of {} otherwise than Transformers, or does not know them",
                     spec.family);
}

ModelSpec ModelSpec::read(const Checkpoint& checkpoint) {
  const std::string file =
      (checkpoint.is_gguf() ? checkpoint.path() : checkpoint.path() / "config.json").string();
  ConfigFields config(checkpoint.config(), file, "");
  ModelSpec spec;
  bool tied = false;
  if (const Wrapper* const wrapper = find_wrapper(config.text("model_type"))) {
    tied = read_wrapper(checkpoint, *wrapper, config, spec);
  } else {
    const Family& family = find_family(checkpoint, config);
    spec.family = family.model_type;
    read_architecture(config, family.architecture, family.model_type, spec);
    // Each block needs more tensors than one: a layer count from a hostile config allocates no more than the
    // checkpoint already does.
    read_decoder(config, family, static_cast<std::int64_t>(checkpoint.tensors().size()), spec);
    find_carried(checkpoint, spec.carried);
    tied = config.flag("tie_word_embeddings", family.ties_by_default);
  }
  check_mlx(checkpoint, spec, config);
  resolve_head(checkpoint, tied, spec);
  check_tensors(checkpoint, file, spec);
  if (EmbeddingSpec& table = spec.embedding; table.scale_in_table_type)
    table.scale = stored_float(table.scale, checkpoint.at(table.tensor).view.dtype);
  if (spec.block_embedding) {
    BlockEmbeddingSpec& table = *spec.block_embedding;
    table.scale *= stored_float(table.table_factor, checkpoint.at(table.table).view.dtype);
  }
  return spec;
}

bool CarriedSpec::carries(std::string_view name) const {
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return name.starts_with(part) && (name.size() == part.size() || name[part.size()] == '.');
  });
}

std::int64_t ModelSpec::parameters() const {
  const auto of_norm = [](const NormSpec& norm) {
    return (norm.gain.exists() ? norm.gain_shape().elements() : 0) + (norm.bias.exists() ? norm.width : 0);
  };
  std::int64_t count = vocab_size * hidden_size * (tied_head ? 1 : 2) + of_norm(final_norm);
  if (!embedding.positions.empty()) count += (max_position + embedding.offset) * hidden_size;
  if (block_embedding)
    count += static_cast<std::int64_t>(blocks.size()) * block_embedding->width *
                 (block_embedding->rows + hidden_size) +
             of_norm(block_embedding->norm);
  for (const BlockSpec& block : blocks) {
    for (const NormSpec& norm : block.norms) count += of_norm(norm);
    for (const MixerTensor& tensor : block.tensors) count += tensor.shape.elements();
    for (const LinearSpec& linear : block.linears)
      count += linear.out_features * (linear.in_features + (linear.has_bias() ? 1 : 0));
  }
  return count;
}

std::set<std::string> ModelSpec::never_quantized() const {
  std::set<std::string> weights;
  for (const BlockSpec& block : blocks)
    for (const LinearSpec& linear : block.linears)
      if (!linear.quantizable) weights.insert(linear.weight.tensor);
  return weights;
}

std::int64_t ModelSpec::widest_inner() const {
  std::int64_t widest = 0;
  for (const BlockSpec& block : blocks)
    for (const SublayerSpec& part : block.sublayers)
      for (const SiteId site : std::span(part.sites).subspan(1))
        widest = std::max(widest, block.at(site).channels);
  return widest;
}

std::uint64_t ModelSpec::kv_bytes(const KvType& type) const {
  std::int64_t bytes = 0;
  for (const BlockSpec& block : blocks) bytes += block.pages.kv_heads * type.bytes(block.pages.head_dim);
  return static_cast<std::uint64_t>(bytes);
}

std::uint64_t ModelSpec::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const BlockSpec& block : blocks)
    if (const DeltaSpec* const delta = block.delta()) bytes += delta->state_bytes();
  return bytes;
}

bool ModelSpec::shares_pages() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlockSpec& block) {
    return block.attention() != nullptr && block.attention()->shared_pages;
  });
}

std::int64_t ModelSpec::widest_page() const {
  std::int64_t widest = 0;
  for (const BlockSpec& block : blocks)
    widest = std::max(widest, std::int64_t{block.pages.kv_heads} * block.pages.head_dim);
  return widest;
}

void require_written(const ModelSpec& spec, const std::string& format, const std::string& file) {
  if (spec.only_format.empty() || format == spec.only_format) return;
  fail(ErrorKind::kUnsupported,
       {fmt::format("no checkpoint of family {} is written as {}: {}", spec.family, format, spec.unwritten),
        file, "format", fmt::format("write format: {}", spec.only_format)});
}

}  // namespace llmq
