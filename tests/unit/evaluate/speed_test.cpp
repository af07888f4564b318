// Speed is not judged here: what is counted, and that the timed work is the real one.
#include "evaluate/speed.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/runtime/tiny_model.h"

namespace llmq {
namespace {

Engine tiny(std::int64_t kv_tokens) {
  static const testing::TinyModel model;
  Engine::Options options;
  options.max_context = 64;
  options.kv_tokens = kv_tokens;
  return model.load(make_cpu_backend(1), options);
}

TEST(NearestRank, IsAValueThatWasThere) {
  const double values[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(nearest_rank(values, 0.5), 5);
  EXPECT_EQ(nearest_rank(values, 0.95), 10);
  EXPECT_EQ(nearest_rank(std::span(values, 1), 0.5), 1);
  EXPECT_EQ(nearest_rank({}, 0.5), 0);
}

TEST(MeasureSpeed, LeavesTheCacheAsItWas) {
  Engine engine = tiny(3 * 32);
  const std::int32_t before = engine.cache().blocks().free();
  const SpeedResult result = measure_speed(engine, {3, 20, 6, 2});
  EXPECT_EQ(engine.cache().blocks().free(), before);
  EXPECT_GT(result.tokens_per_second, 0);
  EXPECT_GT(result.prefill_tokens_per_second, 0);
  EXPECT_LE(result.ttft_p50, result.ttft_p95);
  EXPECT_LE(result.itl_p50, result.itl_p95);
}

TEST(MeasureSpeed, TheFirstTokenComesAfterThePrompt) {
  Engine engine = tiny(2 * 32);
  const SpeedResult result = measure_speed(engine, {1, 20, 4, 1});
  EXPECT_GT(result.ttft_p50, 0.5 * 20 / result.prefill_tokens_per_second);
}

// BF16 panels hold whole vectors of columns and pairs of rows: never less than the weights, and for this
// model, whose widths are multiples of 16, at most what panels of 64 columns make of them.
TEST(MeasureSpeed, CountsTheBytesOfAStep) {
  Engine engine = tiny(2 * 32);
  const SpeedResult one = measure_speed(engine, {1, 20, 4, 1}), two = measure_speed(engine, {2, 20, 4, 1});
  const double weights = 2.0 * (2 * (32 * 32 * 2 + 16 * 32 * 2 + 48 * 32 * 3) + 61 * 32);
  const double sequence = 2.0 * 2 * 2 * 8 * 2 * (20 + 2) + 32 * 2;  // keys and values, the embedding's row
  EXPECT_DOUBLE_EQ(two.bytes_per_step - one.bytes_per_step, sequence);
  EXPECT_GE(one.bytes_per_step - sequence, weights);
  EXPECT_LE(one.bytes_per_step - sequence, 4 * weights);
  EXPECT_DOUBLE_EQ(one.bandwidth_fraction(1e9), one.bytes_per_step / one.itl_p50 / 1e9);
}

TEST(MeasureSpeed, RefusesWhatMeasuresNothing) {
  Engine engine = tiny(64);
  EXPECT_THROW(measure_speed(engine, {1, 20, 1, 1}), Error);
  EXPECT_THROW(measure_speed(engine, {0, 20, 4, 1}), Error);
  EXPECT_THROW(measure_speed(engine, {1, 62, 4, 1}), Error);
}

}  // namespace
}  // namespace llmq
