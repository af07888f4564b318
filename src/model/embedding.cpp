#include "model/embedding.h"

#include <algorithm>

#include "base/error.h"
#include "model/mixers/mixer.h"

namespace llmq {
namespace {

constexpr std::size_t kEmbeddedAtOnce = 256;

// Rows of a stored table, each as FP32 by itself.
class StoredRows {
 public:
  StoredRows(const Checkpoint& checkpoint, const std::string& tensor)
      : checkpoint_(checkpoint), table_(checkpoint.at(tensor)) {}
  std::int64_t width() const { return table_.view.cols(); }

  // Before read(), which any thread may call.
  void hold(std::int64_t row) { leases_.push_back(checkpoint_.hold_rows(table_, row, 1)); }
  void read(std::int64_t row, std::span<float> into) const {
    const std::uint64_t bytes = table_.view.bytes() / static_cast<std::uint64_t>(table_.view.rows());
    const auto* const from =
        static_cast<const std::byte*>(table_.view.pointer) + static_cast<std::uint64_t>(row) * bytes;
    to_float32(TensorView(static_cast<const void*>(from), table_.view.dtype, {1, width()}), into);
  }
  void release() { checkpoint_.release(table_); }  // the kernel maps the neighbours of each row too

 private:
  const Checkpoint& checkpoint_;
  const StoredTensor& table_;
  std::vector<Lease> leases_;  // to the end: a row that comes again is not read again
};

// hidden = scale * table[tokens]
void embed_scaled(Backend& backend, float scale, const TensorView& table,
                  std::span<const std::int32_t> tokens, const TensorView& hidden) {
  if (scale == 1) return backend.embed(hidden, table, tokens);
  const Buffer buffer = backend.allocate(hidden.bytes());
  const TensorView stored = buffer.view(DType::kF32, hidden.shape);
  backend.embed(stored, table, tokens);
  backend.clear(hidden);
  backend.add(hidden, stored, scale);
}

}  // namespace

void embed_rows(Backend& backend, const EmbeddingSpec& spec, const TensorView& table,
                const TensorView& positions_table, std::span<const std::int32_t> tokens,
                std::span<const std::int32_t> positions, const TensorView& hidden) {
  embed_scaled(backend, spec.scale, table, tokens, hidden);
  if (spec.positions.empty()) return;
  std::vector<std::int32_t> rows;
  for (const std::int32_t position : positions)
    rows.push_back(position + static_cast<std::int32_t>(spec.offset));
  const Buffer buffer = backend.allocate(hidden.bytes());
  const TensorView learned = buffer.view(DType::kF32, hidden.shape);
  backend.embed(learned, positions_table, rows);
  backend.add(hidden, learned, 1);
}

void embed_blocks(Backend& backend, Compute compute, const BlockEmbeddingSpec& spec,
                  const BlockEmbeddingWeights& weights, std::span<const std::int32_t> tokens,
                  const TensorView& hidden, const TensorView& embedded) {
  const std::int64_t width = embedded.cols(), most = static_cast<std::int64_t>(kEmbeddedAtOnce);
  for (std::int64_t first = 0; first < embedded.rows(); first += most) {
    const std::int64_t count = std::min(most, embedded.rows() - first);
    const TensorView h = hidden.row_slice(first, count), e = embedded.row_slice(first, count);
    const DType dtype = activation_dtype(compute);
    const Buffer rounded = backend.allocate(static_cast<std::size_t>(h.shape.elements()) *
                                            static_cast<std::size_t>(element_bytes(dtype))),
                 looked_up = backend.allocate(e.bytes());
    const TensorView x = rounded.view(dtype, h.shape), rows = looked_up.view(DType::kF32, e.shape);
    backend.convert(x, h);
    backend.linear(e, x, weights.projection, {});
    const TensorView shares(e.pointer, DType::kF32, {count * width / spec.width, spec.width}, e.device);
    run_norm(backend, spec.norm, weights.norm, shares, shares);
    backend.embed(rows, weights.table,
                  tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
    backend.add(e, rows, spec.scale);
  }
}

void embed_samples(Backend& backend, const ModelSpec& spec, const Checkpoint& checkpoint,
                   std::span<const std::vector<std::int32_t>> samples, const TensorView& hidden) {
  StoredRows table(checkpoint, spec.embedding.tensor);
  std::optional<StoredRows> learned;
  if (!spec.embedding.positions.empty()) learned.emplace(checkpoint, spec.embedding.positions);
  const auto width = static_cast<std::size_t>(table.width());
  std::vector<float> rows;
  std::int64_t row = 0;
  for (const std::vector<std::int32_t>& sample : samples)
    for (std::size_t first = 0; first < sample.size(); first += kEmbeddedAtOnce) {
      const std::size_t count = std::min(kEmbeddedAtOnce, sample.size() - first);
      const auto position_of = [&](std::size_t i) {
        return static_cast<std::int64_t>(first + i) + spec.embedding.offset;
      };
      for (std::size_t i = 0; i < count; ++i) {
        const std::int32_t id = sample[first + i];
        if (id < 0 || id >= spec.vocab_size)
          fail(ErrorKind::kBadInput, "calibration id {} is outside the model's vocabulary of {}", id,
               spec.vocab_size);
        table.hold(id);
        if (learned) learned->hold(position_of(i));
      }
      rows.resize(count * width);
      backend.workers().parallel_for(count, [&](std::size_t i, int) {
        const std::span<float> into = std::span(rows).subspan(i * width, width);
        table.read(sample[first + i], into);
        for (float& value : into) value *= spec.embedding.scale;
        if (!learned) return;
        thread_local std::vector<float> position;
        position.resize(width);
        learned->read(position_of(i), position);
        for (std::size_t c = 0; c < width; ++c) into[c] += position[c];
      });
      backend.upload(hidden.row_slice(row, static_cast<std::int64_t>(count)), rows.data());
      row += static_cast<std::int64_t>(count);
      table.release();
      if (learned) learned->release();
    }
}

SampledBlockEmbedding::SampledBlockEmbedding(Backend& backend, Compute compute, const ModelSpec& spec,
                                             const Checkpoint& checkpoint, std::size_t block)
    : backend_(backend), compute_(compute), spec_(spec), checkpoint_(checkpoint), block_(block) {
  const BlockEmbeddingSpec& own = *spec.block_embedding;
  const StoredTensor& weight = checkpoint.at(own.weight());
  const std::vector<float> values = checkpoint.read_float32(weight);
  const TensorView all(values.data(), DType::kF32, weight.view.shape);
  projection_ =
      backend.prepare(all.row_slice(static_cast<std::int64_t>(block) * own.width, own.width), compute);
  norm_ = load_norm(backend, own.norm, checkpoint.read_float32(checkpoint.at(own.norm.gain.tensor)), {});
}

void SampledBlockEmbedding::embed(std::span<const std::vector<std::int32_t>> samples,
                                  const TensorView& embedded) const {
  const BlockEmbeddingSpec& own = *spec_.block_embedding;
  const Shape shape{embedded.rows(), spec_.hidden_size};
  const DType dtype = activation_dtype(compute_);
  const Buffer hidden = backend_.allocate(static_cast<std::size_t>(shape.elements()) * sizeof(float)),
               rounded = backend_.allocate(static_cast<std::size_t>(shape.elements()) *
                                           static_cast<std::size_t>(element_bytes(dtype))),
               looked_up = backend_.allocate(embedded.bytes());
  const TensorView h = hidden.view(DType::kF32, shape), x = rounded.view(dtype, shape),
                   rows = looked_up.view(DType::kF32, embedded.shape);
  embed_samples(backend_, spec_, checkpoint_, samples, h);
  backend_.convert(x, h);
  backend_.linear(embedded, x, *projection_, {});
  run_norm(backend_, own.norm, norm_, embedded, embedded);
  StoredRows table(checkpoint_, own.table);
  const auto width = static_cast<std::size_t>(own.width);
  std::vector<float> all(static_cast<std::size_t>(table.width())), shares;
  for (const std::vector<std::int32_t>& sample : samples)
    for (const std::int32_t id : sample) {
      table.hold(id);
      table.read(id, all);
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(block_ * width);
      shares.insert(shares.end(), first, first + own.width);
    }
  table.release();
  backend_.upload(rows, shares.data());
  backend_.add(embedded, rows, own.scale);
}

}  // namespace llmq
