// Engines with packed pages beside one with plain pages: what they lose, and what their bases save.
#include "runtime/kv_fitting.h"
#include "model/open_checkpoint.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/engine.h"
#include "tests/unit/runtime/relative_distance.h"

namespace llmq::testing {
namespace {

std::vector<std::int32_t> text(std::size_t length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(length);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(3 + random() % 2000);
  return ids;
}

// Hidden states of 300 tokens, in pieces as a prompt is cut, and one by one at the end.
std::vector<float> hidden(KvType type, std::size_t probe, int threads) {
  Engine::Options options;
  options.compute = Compute::kFloat32;
  options.max_context = options.kv_tokens = 512;
  options.kv = type;
  options.kv_probe = text(probe, 1);
  Engine engine = Engine::load(open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/models/tinystories-656k"),
                               make_cpu_backend(threads), options);
  const std::vector<std::int32_t> ids = text(300, 2);
  KvSequence sequence(engine.cache());
  std::vector<float> all;
  for (std::size_t first = 0; first < ids.size();) {
    const std::size_t count = std::min<std::size_t>(first < 250 ? 70 : 1, ids.size() - first);
    const Buffer normed = engine.forward(sequence, std::span(ids).subspan(first, count));
    const float* const floats = normed.as<const float>();
    all.insert(all.end(), floats, floats + count * static_cast<std::size_t>(engine.spec().hidden_size));
    first += count;
  }
  return all;
}

TEST(KvFitting, PackedPagesLoseLittleAndLessByTheirBasis) {
  const std::vector<float> plain = hidden({DType::kF32}, 0, 2);
  const KvType int8{DType::kBF16, kKvInt8}, int4{DType::kBF16, kKvInt4};
  const double fitted8 = relative_distance(hidden(int8, 600, 2), plain),
               fitted4 = relative_distance(hidden(int4, 600, 2), plain),
               bare4 = relative_distance(hidden(int4, 0, 2), plain);
  RecordProperty("int8", std::to_string(fitted8));
  RecordProperty("int4", std::to_string(fitted4));
  RecordProperty("int4_bare", std::to_string(bare4));
  EXPECT_GT(fitted8, 0);
  EXPECT_LT(fitted8, 0.02);
  EXPECT_GT(fitted4, fitted8);
  EXPECT_LT(fitted4, bare4);
}

TEST(KvFitting, TheSameBitsAtAnyThreadCount) {
  const KvType int4{DType::kBF16, kKvInt4};
  EXPECT_EQ(hidden(int4, 600, 1), hidden(int4, 600, 3));
}

}  // namespace
}  // namespace llmq::testing
