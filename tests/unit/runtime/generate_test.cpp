// The loop of tokens over a random model: chunking, batching, truncation and devices change nothing.
#include "runtime/generate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tiny_model.h"

namespace llmq::testing {
namespace {

const std::vector<std::int32_t> kPrompt = {1, 17, 42, 5, 60, 33, 8, 9, 10, 11, 12, 50, 3};

Engine::Options options_for(Compute compute) {
  Engine::Options options;
  options.compute = compute;
  options.max_context = 64;
  options.kv_tokens = 96;
  options.block_size = 4;
  return options;
}

std::vector<std::int32_t> greedy(Engine& engine, std::int64_t chunk) {
  GenerateOptions options;
  options.max_tokens = 24;
  options.ignore_eos = true;
  options.prefill_chunk = chunk;
  return generate_tokens(engine, kPrompt, options, [](std::int32_t) { return true; }).tokens;
}

std::vector<float> logits_of(Engine& engine, const Buffer& normed, std::int64_t rows) {
  const TensorView logits = engine.logits(
      normed.view(activation_dtype(engine.options().compute), {rows, engine.spec().hidden_size}));
  std::vector<float> values(static_cast<std::size_t>(rows * engine.spec().vocab_size));
  engine.backend().download(values.data(), logits);
  return values;
}

std::vector<float> forward(Engine& engine, std::uint64_t sequence, std::span<const std::int32_t> tokens) {
  const Engine::Step steps[] = {{sequence, tokens}};
  return logits_of(engine, engine.forward(steps), static_cast<std::int64_t>(tokens.size()));
}

TEST(Generate, PrefillChunksChangeNothing) {
  const TinyModel model;
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    Engine engine = model.load(make_reference_backend(), options_for(compute));
    const std::vector<std::int32_t> whole = greedy(engine, 512);
    EXPECT_EQ(whole.size(), 24u);
    for (const std::int64_t chunk : {1, 2, 5, 12, 13}) EXPECT_EQ(greedy(engine, chunk), whole) << chunk;
    EXPECT_EQ(engine.cache().free_blocks(), 24);  // every sequence gave its blocks back
  }
}

TEST(Generate, TheFakeDeviceSaysTheSame) {
  const TinyModel model;
  Engine reference = model.load(make_reference_backend(), options_for(Compute::kBFloat16));
  Engine fake = model.load(make_fake_backend(), options_for(Compute::kBFloat16));
  EXPECT_EQ(greedy(fake, 5), greedy(reference, 512));
}

TEST(Generate, StopsForItsReasons) {
  const TinyModel model;
  Engine engine = model.load(make_reference_backend(), options_for(Compute::kFloat32));
  GenerateOptions options;
  options.ignore_eos = true;
  options.max_tokens = 1000;
  const auto always = [](std::int32_t) { return true; };
  const Generated to_the_end = generate_tokens(engine, kPrompt, options, always);
  EXPECT_EQ(to_the_end.finish_reason, "length");
  EXPECT_EQ(to_the_end.tokens.size(), 64 - kPrompt.size() + 1);  // the last token is never run

  int seen = 0;
  const Generated called_off =
      generate_tokens(engine, kPrompt, options, [&](std::int32_t) { return ++seen < 3; });
  EXPECT_EQ(called_off.finish_reason, "stop");
  EXPECT_EQ(called_off.tokens.size(), 3u);
  options.max_tokens = 0;
  EXPECT_TRUE(generate_tokens(engine, kPrompt, options, always).tokens.empty());
  EXPECT_THROW(generate_tokens(engine, {}, options, always), Error);
  EXPECT_THROW(generate_tokens(engine, std::vector<std::int32_t>(65, 1), options, always), Error);
  options.max_tokens = 1;
  EXPECT_THROW(generate_tokens(engine, std::vector<std::int32_t>{61}, options, always), Error);
  EXPECT_EQ(engine.cache().free_blocks(), 24);
}

TEST(Generate, TheSameSeedGivesTheSameText) {
  const TinyModel model;
  Engine engine = model.load(make_reference_backend(), options_for(Compute::kFloat32));
  GenerateOptions options;
  options.ignore_eos = true;
  options.max_tokens = 20;
  options.sampling.temperature = 1.5;
  const auto run = [&](std::uint64_t seed) {
    options.sampling.seed = seed;
    return generate_tokens(engine, kPrompt, options, [](std::int32_t) { return true; }).tokens;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

TEST(Engine, TruncatedSequencesContinueAsIfNothingHadFollowed) {
  const TinyModel model;
  Engine engine = model.load(make_reference_backend(), options_for(Compute::kBFloat16));
  const std::uint64_t sequence = engine.cache().open_sequence();
  const auto prompt = std::span(kPrompt);
  forward(engine, sequence, prompt.first(6));
  const std::vector<float> wanted = forward(engine, sequence, prompt.subspan(6));
  engine.cache().truncate(sequence, 6);
  forward(engine, sequence, std::vector<std::int32_t>(20, 44));
  engine.cache().truncate(sequence, 6);
  EXPECT_EQ(engine.cache().length(sequence), 6);
  EXPECT_EQ(forward(engine, sequence, prompt.subspan(6)), wanted);
}

TEST(Engine, BatchMatesChangeNothing) {
  const TinyModel model;
  Engine engine = model.load(make_reference_backend(), options_for(Compute::kBFloat16));
  KvCache& cache = engine.cache();
  const std::vector<std::int32_t> other = {4, 4, 19};
  const std::uint64_t a = cache.open_sequence(), b = cache.open_sequence(), alone = cache.open_sequence();
  const std::vector<float> wanted = forward(engine, alone, kPrompt);
  const Engine::Step steps[] = {{a, other}, {b, kPrompt}};
  const std::vector<float> both = logits_of(engine, engine.forward(steps), 16);
  EXPECT_EQ(std::vector<float>(both.begin() + 3 * 61, both.end()), wanted);
}

// A step without room leaves every sequence as it was.
TEST(Engine, AFullCacheIsRefusedWhole) {
  const TinyModel model;
  Engine engine = model.load(make_reference_backend(), options_for(Compute::kFloat32));
  KvCache& cache = engine.cache();
  const std::uint64_t a = cache.open_sequence(), b = cache.open_sequence();
  const std::vector<std::int32_t> fifty(50, 3);
  const Engine::Step steps[] = {{a, fifty}, {b, fifty}};
  try {
    engine.forward(steps);
    ADD_FAILURE() << "100 positions fitted in 96";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
  }
  EXPECT_EQ(cache.length(a), 0);
  EXPECT_EQ(cache.length(b), 0);
  EXPECT_EQ(cache.free_blocks(), 24);
}

}  // namespace
}  // namespace llmq::testing
