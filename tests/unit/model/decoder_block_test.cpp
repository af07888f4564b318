// A block over rows of several sequences: chunks of any size give the same bits as one pass.
#include "model/decoder_block.h"

#include <gtest/gtest.h>

#include "scratch_model.h"

namespace llmq {
namespace {

constexpr std::int64_t kBlockTokens = 4, kPages = 16;

// Three sequences in one batch: 5 rows behind a context of 3, 9 new rows, 1 row behind a context of 6. Their
// pages are interleaved.
struct Batch {
  std::vector<std::vector<std::int32_t>> tables = {{1, 4, 7}, {0, 3, 6}, {5, 2}};
  BatchRows rows;
  Batch() {
    const std::int64_t contexts[] = {3, 0, 6}, counts[] = {5, 9, 1};
    std::int64_t first = 0;
    for (std::size_t s = 0; s < 3; ++s) {
      for (std::int64_t i = 0; i < counts[s]; ++i) {
        const std::int64_t position = contexts[s] + i;
        rows.positions.push_back(static_cast<std::int32_t>(position));
        rows.slots.push_back(tables[s][static_cast<std::size_t>(position / kBlockTokens)] * kBlockTokens +
                             position % kBlockTokens);
      }
      rows.sequences.push_back({first, counts[s], contexts[s], tables[s]});
      first += counts[s];
    }
  }
};

float noise(std::uint32_t& state) {
  return static_cast<float>((state = state * 1664525u + 1013904223u) >> 16) / 32768.0f - 1.0f;
}

std::vector<float> run(Backend& backend, Compute compute, const LinearSource& source, const ModelSpec& spec,
                       const RowChunks& chunks) {
  ForwardContext context = make_forward_context(spec, backend, compute, 32);
  context.chunks = chunks;
  const BlockWeights weights = load_block(backend, compute, source, spec, 0);
  const Batch batch;
  const DType dtype = activation_dtype(compute);
  const Shape shape{kPages, kBlockTokens, spec.kv_heads, spec.head_dim};
  std::uint32_t state = 5;
  // Earlier keys and values: the same noise in both runs.
  std::vector<float> earlier(static_cast<std::size_t>(shape.elements()));
  for (float& x : earlier) x = noise(state);
  const auto page_bytes = static_cast<std::size_t>(shape.elements() * element_bytes(dtype));
  const Buffer keys = backend.allocate(page_bytes), values = backend.allocate(page_bytes);
  const KvPages pages{keys.view(dtype, shape), values.view(dtype, shape), static_cast<int>(kBlockTokens)};
  std::vector<std::int64_t> slots(static_cast<std::size_t>(kPages * kBlockTokens));
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
  const Buffer all = backend.allocate(earlier.size() * sizeof(float));
  const TensorView all_view = all.view(DType::kF32, {kPages * kBlockTokens, spec.kv_heads, spec.head_dim});
  backend.upload(all_view, earlier.data());
  backend.store_kv(pages, all_view, all_view, slots);

  const auto count = static_cast<std::int64_t>(batch.rows.positions.size());
  std::vector<float> hidden(static_cast<std::size_t>(count * spec.hidden_size));
  for (float& x : hidden) x = noise(state);
  const Buffer buffer = backend.allocate(hidden.size() * sizeof(float));
  const TensorView view = buffer.view(DType::kF32, {count, spec.hidden_size});
  backend.upload(view, hidden.data());
  forward_block(context, 0, weights, batch.rows, pages, view);
  backend.download(hidden.data(), view);
  return hidden;
}

TEST(DecoderBlock, ChunksOfAnySizeGiveTheSameBits) {
  ScratchModel model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  const auto backend = make_reference_backend();
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    const std::vector<float> whole = run(*backend, compute, source, spec, {});
    for (const std::int64_t rows : {1, 2, 3, 4, 6, 7, 14})
      EXPECT_EQ(run(*backend, compute, source, spec, {1, rows}), whole) << rows << " rows at once";
  }
}

TEST(DecoderBlock, NotANumberInANormIsRefusedByName) {
  ScratchModel model;
  std::vector<float> gain(16, 1.0f);
  gain[3] = std::numeric_limits<float>::infinity();
  model.tensors["model.layers.1.input_layernorm.weight"] = scratch_tensor("F32", {16}, gain);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  const auto backend = make_reference_backend();
  load_block(*backend, Compute::kFloat32, source, spec, 0);
  try {
    load_block(*backend, Compute::kFloat32, source, spec, 1);
    ADD_FAILURE() << "an infinite gain was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_EQ(error.detail().where, "model.layers.1.input_layernorm.weight");
  }
  load_block(*backend, Compute::kFloat32, source, spec, 1, true);
}

}  // namespace
}  // namespace llmq
