// A model whose blocks have pages of different sizes: the cache holds them, and each block's coordinates are
// fitted with the heads and the width that it has.
#include <gtest/gtest.h>

#include <numeric>

#include "device/upload_values.h"
#include "io/safetensors.h"
#include "model/block_builder.h"
#include "model/open_checkpoint.h"
#include "runtime/kv_cache.h"
#include "runtime/kv_fitting.h"
#include "support/temporary_directory.h"
#include "tests/unit/runtime/relative_distance.h"

namespace llmq::testing {
namespace {

constexpr std::int64_t kThreeBlocksHidden = 32, kPromptTokens = 200;
constexpr int kBlockSize = 16;

BlockSpec block_of(const std::string& prefix, int heads, int kv_heads, int head_dim, std::size_t rope) {
  BlockBuilder builder(prefix);
  const std::int64_t queries = std::int64_t{heads} * head_dim, keys = std::int64_t{kv_heads} * head_dim;
  const NormId first = builder.norm("norm_of_attention", {}, kThreeBlocksHidden),
               second = builder.norm("norm_of_mlp", {}, kThreeBlocksHidden);
  AttentionSpec attention;
  attention.heads = heads, attention.kv_heads = kv_heads, attention.head_dim = head_dim;
  attention.rope = {rope, head_dim};
  attention.input = builder.site("x_attn", kThreeBlocksHidden),
  attention.inner = builder.site("x_o", queries);
  attention.query = {builder.linear("q", attention.input, {queries}, false)};
  attention.key = {builder.linear("k", attention.input, {keys}, false)};
  attention.value = {builder.linear("v", attention.input, {keys}, false)};
  attention.output = builder.linear("o", attention.inner, {kThreeBlocksHidden}, false);
  builder.attention(first, attention);
  MlpSpec mlp;
  mlp.width = 48;
  mlp.input = builder.site("x_mlp", kThreeBlocksHidden), mlp.inner = builder.site("x_down", mlp.width);
  mlp.gate = Part{builder.linear("gate", mlp.input, {mlp.width}, false)};
  mlp.up = {builder.linear("up", mlp.input, {mlp.width}, false)};
  mlp.output = builder.linear("down", mlp.inner, {kThreeBlocksHidden}, false);
  builder.mlp(second, mlp);
  return std::move(builder).block();
}

// Four heads of 8 that ask two, two of 16 that ask one, and four of 8 again.
ModelSpec three_blocks() {
  ModelSpec spec;
  spec.hidden_size = kThreeBlocksHidden;
  spec.max_position = 512;
  spec.ropes.resize(2);
  spec.ropes[0].dims = 8, spec.ropes[1].dims = 16;
  spec.blocks = {block_of("a", 4, 2, 8, 0), block_of("b", 2, 1, 16, 1), block_of("c", 4, 4, 8, 0)};
  return spec;
}

std::vector<float> noise(std::int64_t count, float scale, std::uint64_t& state) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(scale * (static_cast<float>(state >> 40) * 0x1p-23f - 1));
  }
  return values;
}

Checkpoint write(const ModelSpec& spec, const TemporaryDirectory& directory) {
  std::uint64_t state = 1;
  std::vector<TensorDeclaration> declared;
  std::vector<std::vector<float>> values;
  const auto add = [&](const std::string& name, const Shape& shape) {
    declared.push_back({name, DType::kF32, shape});
    values.push_back(noise(shape.elements(), 0.5f, state));
  };
  for (const BlockSpec& block : spec.blocks) {
    for (const NormSpec& norm : block.norms) add(norm.gain.tensor, {norm.width});
    for (const LinearSpec& linear : block.linears)
      add(linear.weight.tensor, {linear.out_features, linear.in_features});
  }
  directory.write("config.json", "{}");
  SafetensorsWriter writer(system_io(), directory / "model.safetensors", declared, {{"format", "pt"}});
  for (std::size_t i = 0; i < values.size(); ++i)
    writer.add(declared[i].name, std::as_bytes(std::span(values[i])));
  writer.finish();
  return open_checkpoint(system_io(), directory.path().string());
}

class KvPageSizes : public ::testing::Test {
 protected:
  // What a text becomes behind all blocks, with pages of this kind in a cache.
  std::vector<float> behind(const KvType& type, bool fitted) {
    const ForwardContext context = make_forward_context(spec_, *backend_, Compute::kFloat32, 256);
    std::vector<std::vector<BlockWeights>> weights;
    for (const BlockSpec& block : spec_.blocks)
      weights.emplace_back().push_back(load_block(*backend_, Compute::kFloat32, source_, block));
    std::uint64_t state = 7;
    Exchange exchange;
    if (fitted) {
      const Buffer probe = upload_values(*backend_, noise(300 * kThreeBlocksHidden, 1, state));
      const TensorView view = probe.view(DType::kF32, {300, kThreeBlocksHidden});
      fit_kv_bases({&context, 1}, weights, {&view, 1}, exchange);
    }
    state = 11;
    std::vector<float> rows = noise(kPromptTokens * kThreeBlocksHidden, 1, state);
    const Buffer hidden = upload_values(*backend_, rows);
    KvCache cache(spec_, *backend_, type, kPromptTokens, kBlockSize);
    KvSequence sequence(cache);
    sequence.extend(kPromptTokens);
    const std::vector<std::int32_t>& table = sequence.tables().front().blocks;
    BatchRows batch;
    batch.sequences.push_back({0, kPromptTokens, 0, table});
    for (std::int64_t p = 0; p < kPromptTokens; ++p) {
      batch.positions.push_back(static_cast<std::int32_t>(p));
      batch.slots.push_back(table[static_cast<std::size_t>(p / kBlockSize)] * kBlockSize + p % kBlockSize);
    }
    for (std::size_t block = 0; block < spec_.blocks.size(); ++block) {
      const int number = static_cast<int>(block);
      run_block(MemberBlock{&context, &weights[block][0], cache.pages(number),
                            hidden.view(DType::kF32, {kPromptTokens, kThreeBlocksHidden})},
                number, batch);
    }
    backend_->download(rows.data(), hidden.view(DType::kF32, {kPromptTokens, kThreeBlocksHidden}));
    return rows;
  }

  const TemporaryDirectory directory_;
  const ModelSpec spec_ = three_blocks();
  const Checkpoint checkpoint_ = write(spec_, directory_);
  const LinearSource source_ = LinearSource::open(checkpoint_);
  const std::shared_ptr<Backend> backend_ = make_cpu_backend(2);
};

TEST_F(KvPageSizes, EveryBlockIsFittedByItsOwnHeads) {
  const KvType plain{DType::kF32}, int8{DType::kBF16, kKvInt8};
  const std::vector<float> wanted = behind(plain, false);
  // In their coordinates keys and values are what they were: nothing is rounded in plain pages.
  EXPECT_LT(relative_distance(behind(plain, true), wanted), 1e-5);
  const double lost = relative_distance(behind(int8, true), wanted);
  RecordProperty("int8", std::to_string(lost));
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, 0.02);
}

TEST_F(KvPageSizes, ACacheHasThemInOneTable) {
  KvCache cache(spec_, *backend_, {DType::kF32}, 20, kBlockSize);
  EXPECT_EQ(cache.blocks().groups(), 1u);
  EXPECT_EQ(cache.bytes(), 2u * 32u * (2u * 8u + 16u + 4u * 8u) * 4u);
  const BlockCopy copy{0, 1};
  EXPECT_NO_THROW(cache.copy({&copy, 1}));
}

// Copies and the host take the pages of a block's own pool.
TEST_F(KvPageSizes, ACacheHasAPoolForEachSizeWhereWindowsPass) {
  ModelSpec spec = spec_;
  spec.blocks[1].pages.window = 100;
  KvCache cache(spec, {backend_.get(), backend_.get(), backend_.get()}, {DType::kF32}, 40, kBlockSize, true,
                20);
  const std::size_t size = kBlockSize * sizeof(float);
  EXPECT_EQ(cache.blocks().pools(), 3u);
  EXPECT_EQ(cache.bytes(), 2 * size * (3 * 2 * 8 + 2 * 16 + 3 * 4 * 8));
  EXPECT_EQ(cache.page_bytes(), 2 * size * 4 * 8);
  const auto fill = [&](const TensorView& all, float first) {
    const std::int64_t page = all.shape.elements() / all.shape[0];
    std::vector<float> values(static_cast<std::size_t>(all.shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = first + static_cast<float>(static_cast<std::int64_t>(i) / page);
    backend_->upload(all, values.data());
  };
  const auto page_of = [&](const TensorView& all, std::size_t page) {
    std::vector<float> values(static_cast<std::size_t>(all.shape.elements()));
    backend_->download(values.data(), all);
    return values[page * values.size() / static_cast<std::size_t>(all.shape[0])];
  };
  for (int layer = 0; layer < 3; ++layer) {
    fill(cache.pages(layer).keys, static_cast<float>(100 * layer));
    fill(cache.pages(layer).values, static_cast<float>(100 * layer + 50));
  }
  const std::int32_t begin = cache.blocks().begin_of(1);
  const BlockCopy copy{begin, begin + 1};
  cache.copy({&copy, 1});
  EXPECT_EQ(page_of(cache.pages(1).keys, 1), 100);
  EXPECT_EQ(page_of(cache.pages(1).values, 1), 150);
  cache.give_swap_space(2);
  const PageSwap out[] = {{cache.blocks().begin_of(2) + 2, 1}, {1, 0}};
  cache.swap_out(out);
  const PageSwap in[] = {{cache.blocks().begin_of(2), 1}, {0, 0}};
  cache.swap_in(in);
  EXPECT_EQ(page_of(cache.pages(2).keys, 0), 202);
  EXPECT_EQ(page_of(cache.pages(2).values, 0), 252);
  EXPECT_EQ(page_of(cache.pages(0).values, 0), 51);
  EXPECT_EQ(page_of(cache.pages(0).values, 2), 52);
  EXPECT_EQ(page_of(cache.pages(2).keys, 1), 201) << "no other page is touched";
}

}  // namespace
}  // namespace llmq::testing
