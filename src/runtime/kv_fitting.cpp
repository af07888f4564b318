#include "runtime/kv_fitting.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "base/error.h"
#include "model/mixers/mixer.h"
#include "model/run_sublayer.h"

namespace llmq {
namespace {

constexpr std::int64_t kPiece = 256, kBlock = 16, kFirstTokens = 4;

// Pieces of the text as sequences of their own, with pages one behind the other; and where they stand for the
// statistics.
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
      for (std::int64_t b = 0; b < blocks; ++b)
        table.push_back(static_cast<std::int32_t>(piece * blocks + b));
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
  // use(first row, rows) of every piece, without its first tokens: they draw attention, and their keys are
  // like no others.
  template <class Use>
  void each(const Use& use) const {
    for (const SequenceRows& piece : rows.sequences)
      if (piece.rows > kFirstTokens) use(piece.first_row + kFirstTokens, piece.rows - kFirstTokens);
  }
  std::int64_t blocks() const { return static_cast<std::int64_t>(tables.size() * tables.front().size()); }
};

// Mean of x^T x over heads [first, first + count) of the pieces' rows of x F32 [T, heads, n]: [n, n].
std::vector<double> second_moment(Backend& backend, const Pieces& pieces, const TensorView& x,
                                  std::int64_t first, std::int64_t count) {
  const std::int64_t heads = x.shape[1], n = x.shape[2];
  const Buffer storage = backend.allocate(static_cast<std::size_t>(n * n) * sizeof(float));
  const TensorView gram = storage.view(DType::kF32, {n, n});
  const std::vector<float> zeros(static_cast<std::size_t>(n * n), 0.0f);
  backend.upload(gram, zeros.data());
  ExactSums sums(triangle_place(n, n));
  std::int64_t seen = 0;
  pieces.each([&](std::int64_t row, std::int64_t rows) {
    for (std::int64_t head = first; head < first + count; ++head) {
      TensorView one(x.as<float>() + (row * heads + head) * n, DType::kF32, Shape{rows, n}, x.device);
      one.row_stride = heads * n;
      backend.gram(gram, one);
      backend.drain_gram(sums, gram);
      seen += rows;
    }
  });
  const ZeroedNumbers<double> triangle = std::move(sums).round();
  std::vector<double> square(static_cast<std::size_t>(n * n), 0.0);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = i; j < n; ++j, ++at)
      if (seen > 0)
        square[static_cast<std::size_t>(i * n + j)] = square[static_cast<std::size_t>(j * n + i)] =
            triangle[at] / static_cast<double>(seen);
  return square;
}

std::vector<HeadBasis> fit_block(Backend& backend, const Pieces& pieces, const TensorView& q,
                                 const TensorView& k) {
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

const AttentionSpec& attention_of(const ForwardContext& context, std::size_t block) {
  const AttentionSpec* attention = context.spec.blocks[block].attention();
  if (attention == nullptr) fail(ErrorKind::kInternal, "block {} has no pages to fit", block);
  return *attention;
}

// What the fit needs of one member for one block. Blocks may have pages of different sizes.
class FittedBlock {
 public:
  FittedBlock(const ForwardContext& context, const Pieces& pieces, const TensorView& hidden,
              std::size_t number)
      : context_(context), pieces_(pieces), hidden_(hidden), number_(number) {
    const AttentionSpec& spec = attention_of(context, number);
    const std::int64_t tokens = hidden.rows();
    const DType dtype = activation_dtype(context.compute);
    const auto room = [&](Buffer& buffer, DType type, const Shape& shape) {
      buffer = context.backend.allocate(static_cast<std::size_t>(shape.elements() * element_bytes(type)));
      return buffer.view(type, shape);
    };
    q_ = room(storage_[0], DType::kF32, {tokens, spec.heads, spec.head_dim});
    k_ = room(storage_[1], DType::kF32, {tokens, spec.kv_heads, spec.head_dim});
    v_ = room(storage_[2], DType::kF32, {tokens, spec.kv_heads, spec.head_dim});
    x_ = room(storage_[3], dtype, {tokens, context.spec.hidden_size});
    const Shape page{pieces.blocks(), kBlock, spec.kv_heads, spec.head_dim};
    const TensorView keys = room(storage_[4], dtype, page), values = room(storage_[5], dtype, page);
    pages_ = {keys, values, kBlock};
  }

  // From `hidden` as it is before the block.
  std::vector<HeadBasis> bases(const BlockWeights& weights) const {
    const BlockSpec& block = context_.spec.blocks[number_];
    const AttentionSpec& attention = attention_of(context_, number_);
    run_before(context_.backend, block, weights, block.sublayer_of(attention.input), hidden_, x_);
    project(context_, block, weights, attention, x_, pieces_.spread, q_, k_, v_);
    return fit_block(context_.backend, pieces_, q_, k_);
  }
  MemberBlock in_block(const BlockWeights& weights) const { return {&context_, &weights, pages_, hidden_}; }

 private:
  const ForwardContext& context_;
  const Pieces& pieces_;
  TensorView hidden_, q_, k_, v_, x_;
  std::size_t number_;
  std::array<Buffer, 6> storage_;
  KvPages pages_;
};

// The transform of values is one for all blocks of a head width.
class Mixings {
 public:
  explicit Mixings(const ForwardContext& context) : context_(context) {}
  KvBasis prepare(std::size_t block, std::span<const HeadBasis> bases) {
    const int width = attention_of(context_, block).head_dim;
    std::shared_ptr<const PreparedWeight>& mixing = by_width_[width];
    if (mixing == nullptr) mixing = prepare_mixing(context_.backend, width);
    return prepare_kv_basis(context_.backend, bases, mixing);
  }

 private:
  const ForwardContext& context_;
  std::map<int, std::shared_ptr<const PreparedWeight>> by_width_;
};

}  // namespace

void fit_kv_bases(std::span<const ForwardContext> contexts, std::span<std::vector<BlockWeights>> blocks,
                  std::span<const TensorView> hidden, Exchange& exchange) {
  const Pieces pieces(hidden.front().rows(), contexts.front().positions);
  std::vector<Mixings> mixings(contexts.begin(), contexts.end());
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    std::vector<BlockWeights>& weights = blocks[block];
    std::deque<FittedBlock> members;
    std::vector<std::vector<HeadBasis>> bases;
    std::vector<MemberBlock> places;
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      const FittedBlock& member = members.emplace_back(contexts[i], pieces, hidden[i], block);
      bases.push_back(member.bases(weights[i]));
      places.push_back(member.in_block(weights[i]));
    }
    run_block(places, static_cast<int>(block), pieces.rows, exchange);
    for (std::size_t i = 0; i < contexts.size(); ++i)
      weights[i].kv_basis = mixings[i].prepare(block, bases[i]);
  }
}

}  // namespace llmq
