// What the generator promises: checkpoints that the program reads as models of their family, the same from
// the same seed, with inputs' outliers and weights' spectra that random numbers do not have.
#include "memory/synthetic_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "model/open_checkpoint.h"
#include "support/temporary_directory.h"
#include "tokenizer/tokenizer.h"

namespace llmq::testing {
namespace {

class Synthetic : public ::testing::TestWithParam<std::string> {};

TEST_P(Synthetic, IsAModelOfItsFamily) {
  const TemporaryDirectory directory;
  const SyntheticShape shape = synthetic_shape(GetParam());
  const std::string path = (directory / "model").string();
  write_synthetic_checkpoint(system_io(), path, shape, 1, 2'000'000);
  const Checkpoint checkpoint = open_checkpoint(system_io(), path);
  EXPECT_GT(checkpoint.shards().size(), 1u);
  const ModelSpec spec = ModelSpec::read(checkpoint);
  EXPECT_EQ(spec.family, shape.family);
  EXPECT_EQ(spec.tied_head, shape.tied_head);
  EXPECT_EQ(static_cast<std::int64_t>(spec.blocks.size()), shape.layers);

  const Tokenizer tokenizer = Tokenizer::open(system_io(), path);
  const std::string text = "The quick brown fox, 2024:\n\tünïcode & more.";
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_LT(ids.size(), text.size());  // merges are used
  for (const std::int32_t id : ids) EXPECT_LT(id, shape.vocabulary);
}

INSTANTIATE_TEST_SUITE_P(Families, Synthetic,
                         ::testing::Values("small-llama", "small-mistral", "small-qwen2", "small-qwen3",
                                           "small-qwen3-moe"));

TEST(Synthetic, TheSeedAndNothingElseDecidesTheValues) {
  const TemporaryDirectory directory;
  const SyntheticShape shape = synthetic_shape("small-llama");
  const auto values = [&](const std::string& name, std::uint64_t seed, std::uint64_t shard_bytes) {
    write_synthetic_checkpoint(system_io(), directory / name, shape, seed, shard_bytes);
    const Checkpoint checkpoint = open_checkpoint(system_io(), (directory / name).string());
    return checkpoint.read_float32(checkpoint.at("model.layers.1.mlp.down_proj.weight"));
  };
  const std::vector<float> one = values("one", 7, 5'000'000'000);
  EXPECT_EQ(one, values("sharded", 7, 1'000'000));
  EXPECT_NE(one, values("other", 8, 5'000'000'000));
}

// Noise of standard deviation s has a largest singular value near s (sqrt(N) + sqrt(K)); the planted ones are
// four times that.
TEST(Synthetic, WeightsHaveSingularValuesAboveTheNoise) {
  const TemporaryDirectory directory;
  const SyntheticShape shape = synthetic_shape("small-llama");
  write_synthetic_checkpoint(system_io(), directory / "model", shape, 1);
  const Checkpoint checkpoint = open_checkpoint(system_io(), (directory / "model").string());
  const std::vector<float> w =
      checkpoint.read_float32(checkpoint.at("model.layers.0.self_attn.q_proj.weight"));
  const std::size_t n = 256, k = 256;
  std::vector<double> x(k, 1.0), y(n);
  double gain = 0;
  for (int step = 0; step < 30; ++step) {  // the power method
    for (std::size_t i = 0; i < n; ++i) {
      y[i] = 0;
      for (std::size_t j = 0; j < k; ++j) y[i] += w[i * k + j] * x[j];
    }
    std::fill(x.begin(), x.end(), 0.0);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < k; ++j) x[j] += w[i * k + j] * y[i];
    double norm = 0;
    for (const double v : x) norm += v * v;
    gain = std::sqrt(norm);
    for (double& v : x) v /= gain;
  }
  const double largest = std::sqrt(gain), noise = 0.7 / 16 * (16 + 16);
  EXPECT_GT(largest, 2 * noise);
}

}  // namespace
}  // namespace llmq::testing
