#include "runtime/kv_fitting.h"

#include <algorithm>
#include <functional>

namespace llmq {
namespace {

constexpr std::int64_t kPiece = 256, kBlock = 16, kFirstTokens = 4;

// Pieces of the text as sequences of their own, with pages one behind the other; and where they stand for the statistics.
struct Pieces {
  std::vector<std::vector<std::int32_t>> tables;
  BatchRows rows;
  std::vector<std::int32_t> spread;  // positions

  Pieces(std::int64_t tokens, std::int64_t context) {
    const std::int64_t length = std::min({kPiece, context, tokens}), count = (tokens + length - 1) / length;
    const std::int64_t blocks = (length + kBlock - 1) / kBlock;
    tables.resize(static_cast<std::size_t>(count));
    for (std::int64_t piece = 0; piece < count; ++piece) {
      std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(piece)];
      for (std::int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<std::int32_t>(piece * blocks + b));
      const std::int64_t first = piece * length, rest = std::min(length, tokens - first);
      const std::int64_t start = count > 1 ? piece * (context - length) / (count - 1) : 0;
      rows.sequences.push_back({first, rest, 0, table});
      for (std::int64_t p = 0; p < rest; ++p) {
        rows.positions.push_back(static_cast<std::int32_t>(p));
        rows.slots.push_back(piece * blocks * kBlock + p);
        spread.push_back(static_cast<std::int32_t>(start + p));
      }
    }
  }
  // use(first row, rows) of every piece, without its first tokens: they draw attention, and their keys are like no others.
  template <class Use>
  void each(const Use& use) const {
    for (const SequenceRows& piece : rows.sequences)
      if (piece.rows > kFirstTokens) use(piece.first_row + kFirstTokens, piece.rows - kFirstTokens);
  }
  std::int64_t blocks() const { return static_cast<std::int64_t>(tables.size() * tables.front().size()); }
};

// Mean of x^T x over heads [first, first + count) of the pieces' rows of x F32 [T, heads, n]: [n, n].
std::vector<double> second_moment(Backend& backend, const Pieces& pieces, const TensorView& x, std::int64_t first, std::int64_t count) {
  const std::int64_t heads = x.shape[1], n = x.shape[2];
  const Buffer storage = backend.allocate(static_cast<std::size_t>(n * n) * sizeof(float));
  const TensorView gram = storage.view(DType::kF32, {n, n});
  const std::vector<float> zeros(static_cast<std::size_t>(n * n), 0.0f);
  backend.upload(gram, zeros.data());
  std::vector<double> triangle(static_cast<std::size_t>(n * (n + 1) / 2), 0.0);
  std::int64_t seen = 0;
  pieces.each([&](std::int64_t row, std::int64_t rows) {
    for (std::int64_t head = first; head < first + count; ++head) {
      TensorView one(x.as<float>() + (row * heads + head) * n, DType::kF32, Shape{rows, n}, x.device);
      one.row_stride = heads * n;
      backend.gram(gram, one);
      backend.drain_gram(triangle, gram);
      seen += rows;
    }
  });
  std::vector<double> square(static_cast<std::size_t>(n * n), 0.0);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = i; j < n; ++j, ++at)
      if (seen > 0) square[static_cast<std::size_t>(i * n + j)] = square[static_cast<std::size_t>(j * n + i)] = triangle[at] / static_cast<double>(seen);
  return square;
}

std::vector<HeadBasis> fit_block(Backend& backend, const Pieces& pieces, const TensorView& q, const TensorView& k) {
  const std::int64_t heads = k.shape[1], group = q.shape[1] / heads;
  std::vector<std::vector<double>> keys, queries;
  for (std::int64_t head = 0; head < heads; ++head) {
    keys.push_back(second_moment(backend, pieces, k, head, 1));
    queries.push_back(second_moment(backend, pieces, q, head * group, group));
  }
  std::vector<HeadBasis> bases(keys.size());
  const auto fit = [&](std::size_t head, int) { bases[head] = fit_head_basis(keys[head], queries[head]); };
  backend.workers().parallel_for(keys.size(), std::cref(fit));
  return bases;
}

}  // namespace

void fit_kv_bases(const ForwardContext& context, std::span<BlockWeights> blocks, const TensorView& hidden) {
  Backend& backend = context.backend;
  const ModelSpec& spec = context.spec;
  const std::int64_t tokens = hidden.rows();
  const Pieces pieces(tokens, context.positions);
  const DType dtype = activation_dtype(context.compute);
  const auto floats = [&](std::int64_t heads) {
    return backend.allocate(static_cast<std::size_t>(tokens * heads * spec.head_dim) * sizeof(float));
  };
  const Buffer q = floats(spec.heads), k = floats(spec.kv_heads), v = floats(spec.kv_heads);
  const auto view = [&](const Buffer& of, std::int64_t heads) { return of.view(DType::kF32, {tokens, heads, spec.head_dim}); };
  const Buffer input = backend.allocate(static_cast<std::size_t>(tokens * spec.hidden_size * element_bytes(dtype)));
  const TensorView x = input.view(dtype, {tokens, spec.hidden_size});
  const Shape page{pieces.blocks(), kBlock, spec.kv_heads, spec.head_dim};
  const auto bytes = static_cast<std::size_t>(page.elements() * element_bytes(dtype));
  const Buffer keys = backend.allocate(bytes), values = backend.allocate(bytes);
  const KvPages pages{keys.view(dtype, page), values.view(dtype, page), kBlock};
  const std::shared_ptr<const PreparedWeight> mixing = prepare_mixing(backend, spec.head_dim);
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    BlockWeights& weights = blocks[block];
    attention_input(context, weights, hidden, x);
    project(context, weights, x, pieces.spread, view(q, spec.heads), view(k, spec.kv_heads), view(v, spec.kv_heads));
    const std::vector<HeadBasis> bases = fit_block(backend, pieces, view(q, spec.heads), view(k, spec.kv_heads));
    forward_block(context, static_cast<int>(block), weights, pieces.rows, pages, hidden);
    weights.kv_basis = prepare_kv_basis(backend, bases, mixing);
  }
}

}  // namespace llmq
