#include "quant/plan/block_slice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "model/block_builder.h"

namespace llmq {
namespace {

constexpr std::int64_t kMultiple = 128, kVocabulary = 4096;

std::int64_t narrowed(std::int64_t size, std::int64_t divisor) {
  return std::min(size, std::max<std::int64_t>(1, (size / divisor + kMultiple / 2) / kMultiple) * kMultiple);
}

class Narrowing {
 public:
  explicit Narrowing(const LinearSource& source) : source_(source) {}

  // The first rows and columns of a tensor that is [rows, columns] or, with one row, [columns]: as it is
  // stored, or in FP32 where it is stored in blocks.
  void take(const std::string& name, std::int64_t rows, std::int64_t columns, bool flat = false) {
    if (name.empty()) return;
    const StoredTensor& tensor = source_.checkpoint().at(name);
    const Lease lease = source_.checkpoint().hold(tensor);
    const DTypeRow& type = dtype_row(tensor.view.dtype);
    const std::int64_t width = tensor.view.cols();
    const auto* const bytes = tensor.view.as<const std::byte>();
    if (type.block_elements == 1 && tensor.in_order())
      return add(name, type.dtype, bytes, rows, width, columns, flat);
    std::vector<float> values;
    if (!tensor.in_order()) {
      values = source_.checkpoint().read_float32(tensor);
    } else {
      values.resize(static_cast<std::size_t>(rows * width));
      to_float32(TensorView(static_cast<const void*>(bytes), type.dtype, {rows, width}), values);
    }
    add(name, DType::kF32, std::as_bytes(std::span(values)).data(), rows, width, columns, flat);
  }

  void take_linear(const LinearSpec& whole, const LinearSpec& narrow) {
    if (source_.is_packed(whole.module)) {
      ThreadPool here(1);
      const ZeroedNumbers<float> values = source_.weight(whole, here, true);
      add(whole.weight.tensor, DType::kF32, std::as_bytes(std::span(values)).data(), narrow.out_features,
          whole.in_features, narrow.in_features, false);
    } else {
      take(whole.weight.tensor, narrow.out_features, narrow.in_features);
    }
    if (whole.has_bias()) take(whole.bias.tensor, 1, narrow.out_features, true);
  }

  Checkpoint checkpoint() const { return Checkpoint::of_tensors(tensors_, Json::object()); }

 private:
  // `from` has elements of a type without blocks, [rows, width].
  void add(const std::string& name, DType dtype, const std::byte* from, std::int64_t rows, std::int64_t width,
           std::int64_t columns, bool flat) {
    const auto element = static_cast<std::size_t>(dtype_row(dtype).block_bytes),
               row_bytes = static_cast<std::size_t>(columns) * element;
    Checkpoint::OwnedTensor& owned = tensors_.emplace_back();
    owned.name = name;
    owned.dtype = dtype;
    owned.shape = flat ? Shape{columns} : Shape{rows, columns};
    owned.bytes.resize(static_cast<std::size_t>(rows) * row_bytes);
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(owned.bytes.data() + static_cast<std::size_t>(r) * row_bytes,
                  from + static_cast<std::size_t>(r * width) * element, row_bytes);
  }

  const LinearSource& source_;
  std::vector<Checkpoint::OwnedTensor> tensors_;
};

}  // namespace

ModelSpec single_block(const ModelSpec& spec, std::size_t block) {
  if (spec.shares_pages() || spec.block_embedding)
    fail(ErrorKind::kUnsupported,
         {fmt::format("blocks of this {} have something of others, and none is timed alone", spec.family),
          {},
          {},
          {}});
  ModelSpec one = spec;
  one.blocks = {spec.blocks.at(block)};
  return one;
}

namespace {

void set_rows(BlockSpec& block, Part part, std::int64_t rows) {
  block.linears[static_cast<std::size_t>(part.linear)].parts.at(part.part) = rows;
}
void set_channels(BlockSpec& block, SiteId site, std::int64_t channels) {
  block.sites[static_cast<std::size_t>(site)].channels = channels;
}
void set_shape(BlockSpec& block, TensorId id, const Shape& shape) {
  block.tensors[static_cast<std::size_t>(id)].shape = shape;
}
void set_width(BlockSpec& block, std::optional<NormId> norm, std::int64_t width) {
  if (norm) block.norms[static_cast<std::size_t>(*norm)].width = width;
}
// A norm of all heads is as wide as they are, one of each head stays; or it has a gain of each.
void narrow_heads(BlockSpec& block, std::optional<NormId> norm, const AttentionSpec& attention,
                  std::int64_t heads) {
  if (norm && block.at(*norm).heads > 0) block.norms[static_cast<std::size_t>(*norm)].heads = heads;
  if (norm && block.at(*norm).width != attention.head_dim) set_width(block, norm, heads * attention.head_dim);
}

// Heads by as much as leaves one KV head, and as many query heads to each as there are, if they suffice.
void narrow_mixer(AttentionSpec& attention, std::int64_t divisor, std::int64_t hidden, BlockSpec& block) {
  const int by = static_cast<int>(divisor), repeat = attention.heads / attention.kv_heads;
  attention.kv_heads = std::max(1, attention.kv_heads / by);
  attention.heads = attention.kv_heads * std::clamp(attention.heads / by / attention.kv_heads, 1, repeat);
  block.pages = pages_of(attention);
  const std::int64_t kv = std::int64_t{attention.kv_heads} * attention.head_dim;
  if (attention.grouped) {
    set_rows(block, attention.query, attention.kv_heads * attention.group_rows());
  } else {
    set_rows(block, attention.query, attention.query_rows());
    set_rows(block, attention.key, kv);
    set_rows(block, attention.value, kv);
  }
  set_channels(block, attention.inner, attention.inner_width());
  set_rows(block, {attention.output}, hidden);
  if (attention.sinks) set_shape(block, *attention.sinks, {attention.heads});
  narrow_heads(block, attention.query_norm, attention, attention.heads);
  narrow_heads(block, attention.key_norm, attention, attention.kv_heads);
  auto& producer = block.sites[static_cast<std::size_t>(attention.inner)].producer;
  if (auto* rows = std::get_if<LinearRows>(&producer)) *rows = rows_of_values(attention);
}

void narrow_mixer(MlpSpec& mlp, std::int64_t divisor, std::int64_t hidden, BlockSpec& block) {
  mlp.width = narrowed(mlp.width, divisor);
  if (mlp.gate) set_rows(block, *mlp.gate, mlp.width);
  set_rows(block, mlp.up, mlp.width);
  set_channels(block, mlp.inner, mlp.width);
  set_rows(block, {mlp.output}, hidden);
}

// Key heads by as much as leaves one, and as many value heads to each as there are.
void narrow_mixer(DeltaSpec& delta, std::int64_t divisor, std::int64_t hidden, BlockSpec& block) {
  DeltaHeads& heads = delta.heads;
  const int repeat = heads.value_heads / heads.key_heads;
  heads.key_heads = std::max(1, heads.key_heads / static_cast<int>(divisor));
  heads.value_heads = heads.key_heads * repeat;
  set_rows(block, delta.mixed, delta.convolved() + (delta.grouped() ? heads.values() : 0));
  set_rows(block, delta.share, heads.value_heads * (delta.grouped() ? 2 : 1));
  if (delta.gate) set_rows(block, *delta.gate, heads.values());
  if (delta.decay) set_rows(block, *delta.decay, heads.value_heads);
  set_rows(block, {delta.output}, hidden);
  set_channels(block, delta.inner, delta.inner_width());
  set_shape(block, delta.conv, {delta.convolved(), 1, delta.taps});
  for (const TensorId id : {delta.rate, delta.shift}) set_shape(block, id, {heads.value_heads});
}

void narrow_mixer(LatentAttentionSpec&, std::int64_t, std::int64_t, BlockSpec& block) {
  fail(ErrorKind::kUnsupported,
       {fmt::format("{} has attention over latents, of which no slice is timed", block.prefix), {}, {}, {}});
}

// Which experts a slice's rows go to says nothing of the whole.
void narrow_mixer(MixtureSpec&, std::int64_t, std::int64_t, BlockSpec& block) {
  fail(ErrorKind::kUnsupported,
       {fmt::format("{} has a mixture of experts, of which no slice is timed", block.prefix), {}, {}, {}});
}

// Its factors are of a table of the model's.
void narrow_mixer(EmbeddedSpec&, std::int64_t, std::int64_t, BlockSpec& block) {
  fail(ErrorKind::kUnsupported,
       {fmt::format("{} has an embedding of its own, of which no slice is timed", block.prefix), {}, {}, {}});
}

void narrow_block(BlockSpec& block, std::int64_t divisor, std::int64_t hidden) {
  for (SublayerSpec& part : block.sublayers) {
    const auto narrow = [&](auto& mixer) { narrow_mixer(mixer, divisor, hidden, block); };
    std::visit(narrow, part.mixer);
    if (part.beside) std::visit(narrow, *part.beside);
    set_channels(block, part.sites.front(), hidden);
    set_width(block, part.before, hidden);
    set_width(block, part.after, hidden);
  }
  for (LinearSpec& linear : block.linears) {
    linear.in_features = block.at(linear.site).channels;
    linear.out_features = std::accumulate(linear.parts.begin(), linear.parts.end(), std::int64_t{0});
  }
}

}  // namespace

BlockSlice slice_block(const LinearSource& source, const ModelSpec& spec, std::size_t block,
                       std::int64_t divisor) {
  BlockSlice slice{{}, single_block(spec, block)};
  ModelSpec& to = slice.spec;
  to.hidden_size = narrowed(spec.hidden_size, divisor);
  to.vocab_size = std::min(spec.vocab_size, kVocabulary);
  to.final_norm.width = to.hidden_size;
  Narrowing narrowing(source);
  narrowing.take(spec.embedding.tensor, to.vocab_size, to.hidden_size);
  narrowing.take(spec.embedding.positions, spec.max_position + spec.embedding.offset, to.hidden_size);
  BlockSpec& structure = to.blocks.front();
  narrow_block(structure, divisor, to.hidden_size);
  for (const LinearSpec& linear : structure.linears)
    narrowing.take_linear(spec.blocks[block].at(linear.id), linear);
  for (const NormSpec& norm : structure.norms) {
    narrowing.take(norm.gain.tensor, std::max<std::int64_t>(norm.heads, 1), norm.width, norm.heads == 0);
    narrowing.take(norm.bias.tensor, 1, norm.width, true);
  }
  for (const MixerTensor& tensor : structure.tensors) {
    const std::int64_t columns = tensor.shape.back();
    narrowing.take(tensor.place.tensor, tensor.shape.elements() / columns, columns, tensor.shape.rank() == 1);
  }
  slice.checkpoint = narrowing.checkpoint();
  return slice;
}

}  // namespace llmq
