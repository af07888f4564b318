// A block over rows of several sequences: chunks of any size give the same bits as one pass.
#include "model/run_sublayer.h"
#include "model/divided_block.h"

#include <gtest/gtest.h>

#include <deque>

#include "device/cuda/cuda_backend.h"
#include "scratch_golden.h"
#include "scratch_model.h"
#include "support/named_parts.h"

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

// Earlier keys and values F32 [slots, kv_heads, head_dim]: the same noise in every run.
std::vector<float> noisy(std::int64_t count, std::uint32_t state) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = noise(state);
  return values;
}

// One member and what it holds.
struct Held {
  ForwardContext context;
  Buffer keys, values, hidden;
  TensorView view;
  KvPages pages;

  Held(Backend& backend, Compute compute, const ModelSpec& share, std::int64_t first_head,
       std::int64_t all_heads, const std::vector<float>& rows)
      : context(make_forward_context(share, backend, compute, 32)) {
    const DType dtype = activation_dtype(compute);
    const PagesSpec& layer = share.blocks[0].pages;
    const Shape shape{kPages, kBlockTokens, layer.kv_heads, layer.head_dim};
    const auto page_bytes = static_cast<std::size_t>(shape.elements() * element_bytes(dtype));
    keys = backend.allocate(page_bytes);
    values = backend.allocate(page_bytes);
    pages = {keys.view(dtype, shape), values.view(dtype, shape), static_cast<int>(kBlockTokens)};
    std::vector<std::int64_t> slots(static_cast<std::size_t>(kPages * kBlockTokens));
    const std::vector<float> earlier =
        noisy(static_cast<std::int64_t>(slots.size()) * all_heads * layer.head_dim, 5);
    std::vector<float> own;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] = static_cast<std::int64_t>(i);
      const auto from = earlier.begin() + (slots[i] * all_heads + first_head) * layer.head_dim;
      own.insert(own.end(), from, from + layer.kv_heads * layer.head_dim);
    }
    const Buffer all = backend.allocate(own.size() * sizeof(float));
    const TensorView all_view =
        all.view(DType::kF32, {kPages * kBlockTokens, layer.kv_heads, layer.head_dim});
    backend.upload(all_view, own.data());
    backend.store_kv(pages, all_view, all_view, slots);
    hidden = backend.allocate(rows.size() * sizeof(float));
    view = hidden.view(DType::kF32,
                       {static_cast<std::int64_t>(rows.size()) / share.hidden_size, share.hidden_size});
    backend.upload(view, rows.data());
  }
};

// Sees every site and stops nowhere.
class SeesAll final : public Tap {
 public:
  SeesAll(Backend& backend, Compute compute) : backend_(backend), dtype_(activation_dtype(compute)) {}
  TensorView place(const SiteSpec& site, SiteId, std::int64_t rows) override {
    held_.push_back(
        backend_.allocate(static_cast<std::size_t>(rows * site.channels * element_bytes(dtype_))));
    return held_.back().view(dtype_, {rows, site.channels});
  }
  Flow at(SiteId site, const TensorView&) override {
    seen.push_back(site);
    return Flow::kGoOn;
  }
  std::vector<SiteId> seen;

 private:
  Backend& backend_;
  DType dtype_;
  std::deque<Buffer> held_;
};

void run_tapped(const MemberBlock& member, const BlockSpec& block, const BatchRows& rows) {
  for (std::size_t part = 0; part < block.sublayers.size(); ++part) {
    SeesAll tap(member.context->backend, member.context->compute);
    EXPECT_TRUE(run_sublayer(member, 0, part, rows, tap));
    EXPECT_EQ(tap.seen, block.sublayers[part].sites);
  }
}

std::vector<float> run(const std::vector<Backend*>& members, Compute compute, const LinearSource& source,
                       const ModelSpec& spec, const RowChunks& chunks, bool tapped = false) {
  const ModelSpec share = member_spec(spec, static_cast<std::int64_t>(members.size()));
  const Batch batch;
  std::vector<float> hidden =
      noisy(static_cast<std::int64_t>(batch.rows.positions.size()) * spec.hidden_size, 7);
  const std::vector<BlockWeights> weights =
      load_block_shares(members, compute, source, spec.blocks[0], false, PackedWeights::kDequantized);
  std::deque<Held> held;
  std::vector<MemberBlock> places;
  for (std::size_t i = 0; i < members.size(); ++i) {
    Held& one = held.emplace_back(*members[i], compute, share,
                                  static_cast<std::int64_t>(i) * share.blocks[0].pages.kv_heads,
                                  spec.blocks[0].pages.kv_heads, hidden);
    one.context.chunks = chunks;
    places.push_back({&one.context, &weights[i], one.pages, one.view});
  }
  Exchange exchange;
  if (tapped)
    run_tapped(places.front(), spec.blocks[0], batch.rows);
  else
    run_block(places, 0, batch.rows, exchange);
  for (std::size_t i = members.size(); i-- > 0;) {
    const std::vector<float> others = hidden;
    members[i]->download(hidden.data(), held[i].view);
    if (i + 1 < members.size()) {
      EXPECT_EQ(hidden, others) << "the residual stream of members differs";
    }
  }
  return hidden;
}

void expect_equal_chunks(const ScratchModel& model) {
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  const auto backend = make_reference_backend();
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    const std::vector<float> whole = run({backend.get()}, compute, source, spec, {});
    for (const std::int64_t rows : {1, 2, 3, 4, 6, 7, 14})
      EXPECT_EQ(run({backend.get()}, compute, source, spec, {1, rows}), whole) << rows << " rows at once";
    EXPECT_EQ(run({backend.get()}, compute, source, spec, {}, true), whole) << "past a tap";
  }
}

TEST(RunBlock, ChunksOfAnySizeGiveTheSameBits) { expect_equal_chunks(ScratchModel()); }
TEST(RunBlock, ChunksWithoutANormBeforeGiveTheSameBits) { expect_equal_chunks(ScratchOlmo2()); }

TEST(RunBlock, ChunksOfMixersSideBySideGiveTheSameBits) { expect_equal_chunks(ScratchCohere2()); }

// With queries by way of a latent of their own, and without.
TEST(RunBlock, ChunksOverLatentsGiveTheSameBits) {
  for (const char* model : {"deepseek_v3", "deepseek_v3-halves"}) expect_equal_chunks(ScratchGolden(model));
}

TEST(RunBlock, ADeviceTakesAsManyRowsAsItsScratchHolds) {
  ScratchModel model;
  const ModelSpec spec = ModelSpec::read(model.open());
  constexpr std::int64_t kWidth = 2 * 25600;  // gate and up of a large model
  EXPECT_EQ(rows_at_once(row_chunks(0), kWidth), 256);
  EXPECT_EQ(rows_at_once(row_chunks(64 << 10), kWidth), 256);
  EXPECT_EQ(rows_at_once(row_chunks(256 << 20), kWidth), 1280);
  const auto host = make_reference_backend(), device = make_emulated_cuda_backend(1, {0, {}, {}, 256 << 20});
  EXPECT_EQ(rows_at_once(make_forward_context(spec, *host, Compute::kFloat32, 1).chunks, kWidth), 256);
  EXPECT_EQ(rows_at_once(make_forward_context(spec, *device, Compute::kFloat32, 1).chunks, kWidth), 1280);
}

// The second member's memory is closed to the first.
void expect_equal_members(const ScratchModel& model) {
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  const auto backend = make_reference_backend(), other = make_fake_backend();
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    const std::vector<float> whole = run({backend.get()}, compute, source, spec, {});
    for (const std::int64_t rows : {1, 4, 7, 256})
      EXPECT_EQ(run({backend.get(), other.get()}, compute, source, spec, {1, rows}), whole)
          << rows << " rows at once";
  }
}

TEST(RunBlock, MembersGiveTheBitsOfOneDevice) { expect_equal_members(ScratchModel()); }
// Each has the sinks of its own heads.
TEST(RunBlock, MembersOfHeadsWithSinksGiveTheBitsOfOneDevice) {
  ModelSpec spec = ModelSpec::read(ScratchModel().open());
  const std::string sinks = "model.layers.0.self_attn.sinks";
  spec.blocks[0].tensors.push_back({.place = {sinks}, .shape = {4}, .by_heads = true});
  std::get<AttentionSpec>(spec.blocks[0].sublayers[0].mixer).sinks = TensorId{0};
  ScratchModel model;
  model.tensors[sinks] = scratch_tensor("F32", {4}, std::vector<float>{-2, 0.5f, 1, 3});
  const Checkpoint checkpoint = model.open();
  const LinearSource source = LinearSource::open(checkpoint);
  const auto backend = make_reference_backend(), other = make_fake_backend();
  const std::vector<float> whole = run({backend.get()}, Compute::kFloat32, source, spec, {});
  EXPECT_EQ(run({backend.get(), other.get()}, Compute::kFloat32, source, spec, {}), whole);
  std::get<AttentionSpec>(spec.blocks[0].sublayers[0].mixer).sinks = {};
  EXPECT_NE(run({backend.get()}, Compute::kFloat32, source, spec, {}), whole);
}
TEST(RunBlock, MembersOfMixersSideBySideGiveTheBitsOfOneDevice) { expect_equal_members(ScratchCohere2()); }

TEST(RunBlock, AModelIsDividedWhereEverythingDivides) {
  ScratchModel model;
  const ModelSpec spec = ModelSpec::read(model.open());
  const ModelSpec half = member_spec(spec, 2);
  EXPECT_EQ(half.blocks[1].attention()->heads, 2);
  EXPECT_EQ(half.blocks[1].attention()->kv_heads, 1);
  EXPECT_EQ(half.blocks[1].pages.kv_heads, 1);
  EXPECT_EQ(half.blocks[1].mlp()->width, 12);
  EXPECT_EQ(half.hidden_size, 16);
  EXPECT_EQ(linear_named(half.blocks[1], "down_proj").out_features, 8);
  EXPECT_EQ(linear_named(half.blocks[1], "down_proj").in_features, 24);
  for (const std::int64_t members : {-1, 0, 3, 4}) {
    try {
      member_spec(spec, members);
      ADD_FAILURE() << members;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_EQ(error.detail().hint, "for this model use one of 1, 2");
    }
  }
}

// Nobody has all heads, over which the norm of q sums.
TEST(RunBlock, ANormOverAllHeadsIsNotDivided) {
  const ScratchOlmo2 model;
  const ModelSpec spec = ModelSpec::read(model.open());
  EXPECT_EQ(member_spec(spec, 1).blocks[1].attention()->heads, 4);
  const std::string refused = error_of([&] { member_spec(spec, 2); });
  EXPECT_NE(refused.find("norm of q and k over all heads cannot be divided over 2 devices"),
            std::string::npos)
      << refused;
  EXPECT_NE(refused.find("use one of 1"), std::string::npos) << refused;
}

TEST(RunBlock, NotANumberInANormIsRefusedByName) {
  ScratchModel model;
  std::vector<float> gain(16, 1.0f);
  gain[3] = std::numeric_limits<float>::infinity();
  model.tensors["model.layers.1.input_layernorm.weight"] = scratch_tensor("F32", {16}, gain);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const LinearSource source = LinearSource::open(checkpoint);
  const auto backend = make_reference_backend();
  load_block(*backend, Compute::kFloat32, source, spec.blocks[0]);
  try {
    load_block(*backend, Compute::kFloat32, source, spec.blocks[1]);
    ADD_FAILURE() << "an infinite gain was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_EQ(error.detail().where, "model.layers.1.input_layernorm.weight");
  }
  load_block(*backend, Compute::kFloat32, source, spec.blocks[1], true);
}

}  // namespace
}  // namespace llmq
