// A model of two rope tables: each block's queries and keys turn by the table that it names, as a scalar
// formula in FP64 has it.
#include <gtest/gtest.h>

#include <cmath>

#include "model/mixers/mixer.h"
#include "model/run_sublayer.h"
#include "scratch_model.h"

namespace llmq {
namespace {

constexpr std::int64_t kTurnedRows = 5;
constexpr std::int32_t kPositions[kTurnedRows] = {0, 1, 7, 8, 30};

// Two tables, of which the second block uses the other one.
ModelSpec two_ropes(const Checkpoint& checkpoint, double theta, std::int64_t dims) {
  ModelSpec spec = ModelSpec::read(checkpoint);
  RopeSpec second = spec.ropes.front();
  second.theta = theta, second.dims = dims;
  spec.ropes.push_back(second);
  for (SublayerSpec& part : spec.blocks[1].sublayers)
    if (auto* attention = std::get_if<AttentionSpec>(&part.mixer)) attention->rope = {1, dims};
  return spec;
}

struct Projected {
  std::vector<float> q, k;
};

Projected projected(const ForwardContext& context, const LinearSource& source, std::size_t number,
                    const AttentionSpec& attention) {
  Backend& backend = context.backend;
  const BlockSpec& block = context.spec.blocks[number];
  const BlockWeights weights = load_block(backend, Compute::kFloat32, source, block);
  std::vector<float> rows(static_cast<std::size_t>(kTurnedRows * context.spec.hidden_size));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 23) / 8 - 1;
  std::vector<Buffer> held;
  const auto tensor = [&](const Shape& shape) {
    held.push_back(backend.allocate(static_cast<std::size_t>(shape.elements()) * sizeof(float)));
    return held.back().view(DType::kF32, shape);
  };
  const TensorView x = tensor({kTurnedRows, context.spec.hidden_size}),
                   q = tensor({kTurnedRows, attention.heads, attention.head_dim}),
                   k = tensor({kTurnedRows, attention.kv_heads, attention.head_dim}), v = tensor(k.shape);
  backend.upload(x, rows.data());
  project(context, block, weights, attention, x, kPositions, q, k, v);
  Projected result{std::vector<float>(static_cast<std::size_t>(q.shape.elements())),
                   std::vector<float>(static_cast<std::size_t>(k.shape.elements()))};
  backend.download(result.q.data(), q);
  backend.download(result.k.data(), k);
  return result;
}

// Heads [kTurnedRows, ..., head_dim] turned by hand.
std::vector<float> turned_heads(std::vector<float> heads, const RopeSpec& rope, std::int64_t head_dim) {
  const std::int64_t half = rope.dims / 2, each = static_cast<std::int64_t>(heads.size()) / kTurnedRows;
  for (std::int64_t row = 0; row < kTurnedRows; ++row)
    for (std::int64_t head = row * each; head < (row + 1) * each; head += head_dim)
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = kPositions[row] * std::pow(rope.theta, -2.0 * static_cast<double>(i) /
                                                                        static_cast<double>(rope.dims));
        float &a = heads[static_cast<std::size_t>(head + i)],
              &b = heads[static_cast<std::size_t>(head + i + half)];
        const double x = a, y = b;
        a = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
        b = static_cast<float>(y * std::cos(angle) + x * std::sin(angle));
      }
  return heads;
}

void expect_near(const std::vector<float>& is, const std::vector<float>& wanted) {
  ASSERT_EQ(is.size(), wanted.size());
  for (std::size_t i = 0; i < is.size(); ++i) ASSERT_NEAR(is[i], wanted[i], 1e-5) << i;
}

TEST(RopeUse, EveryBlockTurnsByItsOwnTable) {
  ScratchModel model;
  const Checkpoint checkpoint = model.open();
  const LinearSource source = LinearSource::open(checkpoint);
  for (const std::int64_t dims : {4, 2})
    for (const auto& backend : {make_reference_backend(), make_cpu_backend(2)}) {
      const ModelSpec spec = two_ropes(checkpoint, 50, dims);
      const ForwardContext context = make_forward_context(spec, *backend, Compute::kFloat32, 32);
      for (const std::size_t block : {0, 1}) {
        SCOPED_TRACE(fmt::format("block {}, {} channels, {}", block, dims, backend->name()));
        const AttentionSpec& attention = *spec.blocks[block].attention();
        AttentionSpec still = attention;
        still.rope = {};
        const Projected as_it_is = projected(context, source, block, attention),
                        plain = projected(context, source, block, still);
        expect_near(as_it_is.q, turned_heads(plain.q, spec.ropes[block], attention.head_dim));
        expect_near(as_it_is.k, turned_heads(plain.k, spec.ropes[block], attention.head_dim));
        EXPECT_NE(as_it_is.q, plain.q);
      }
    }
}

TEST(RopeUse, ATableThatIsNotThereIsRefused) {
  ScratchModel model;
  const Checkpoint checkpoint = model.open();
  const auto backend = make_reference_backend();
  ModelSpec spec = two_ropes(checkpoint, 50, 2);
  spec.ropes.back().dims = 4;  // the block turns two channels
  EXPECT_THROW(make_forward_context(spec, *backend, Compute::kFloat32, 8), Error);
  spec.ropes.pop_back();
  EXPECT_THROW(make_forward_context(spec, *backend, Compute::kFloat32, 8), Error);
}

}  // namespace
}  // namespace llmq
