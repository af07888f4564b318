// The loop of tokens over a random model: chunking, batching, truncation and devices change nothing.
#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <memory>

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

std::vector<float> forward(Engine& engine, KvSequence& sequence, std::span<const std::int32_t> tokens) {
  return logits_of(engine, engine.forward(sequence, tokens), static_cast<std::int64_t>(tokens.size()));
}

TEST(Generate, PrefillChunksChangeNothing) {
  const TinyModel model;
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    Engine engine = model.load(make_reference_backend(), options_for(compute));
    const std::vector<std::int32_t> whole = greedy(engine, 512);
    EXPECT_EQ(whole.size(), 24u);
    for (const std::int64_t chunk : {1, 2, 5, 12, 13}) EXPECT_EQ(greedy(engine, chunk), whole) << chunk;
    EXPECT_EQ(engine.cache().blocks().free(), 24);  // every sequence gave its blocks back
  }
}

TEST(Generate, TheFakeDeviceSaysTheSame) {
  const TinyModel model;
  Engine reference = model.load(make_reference_backend(), options_for(Compute::kBFloat16));
  Engine fake = model.load(make_fake_backend(), options_for(Compute::kBFloat16));
  EXPECT_EQ(greedy(fake, 5), greedy(reference, 512));
}

// Blocks that look at everything, and ones of which the second looks back eight positions.
std::vector<std::unique_ptr<TinyModel>> models() {
  std::vector<std::unique_ptr<TinyModel>> all;
  all.push_back(std::make_unique<TinyModel>());
  all.push_back(std::make_unique<TinyModel>(8, TinyModel::Windows::kInTheSecondBlock));
  return all;
}

// The fake device's memory is closed to the reference and the other way round, and both compute the same. A
// page cannot be on both, so that there is one table unless all blocks are on one of them.
TEST(Generate, EarlyBlocksOnAnotherDeviceSayTheSame) {
  for (const auto& model : models()) {
    std::size_t groups = 0;
    const std::vector<std::int32_t> whole = [&] {
      Engine engine = model->load(make_reference_backend(), options_for(Compute::kBFloat16));
      groups = engine.cache().blocks().groups();
      return greedy(engine, 512);
    }();
    for (const int early : {0, 1, 2})
      for (const bool fake_first : {true, false}) {
        Engine::Options options = options_for(Compute::kBFloat16);
        options.early = {fake_first ? make_fake_backend() : make_reference_backend(), early};
        Engine engine = model->load(fake_first ? make_reference_backend() : make_fake_backend(), options);
        EXPECT_EQ(greedy(engine, 5), whole) << early;
        EXPECT_EQ(engine.cache().blocks().groups(), early == 1 ? 1 : groups);
        const BlockCopy copy{0, 1};
        EXPECT_NO_THROW(engine.cache().copy(std::span(&copy, 1))) << early;
      }
  }
}

// The logits of every row, bit for bit; the members' memories are closed to one another.
TEST(Engine, ADividedModelHasTheBitsOfAWholeOne) {
  for (const auto& model : models())
    for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
      Engine whole = model->load(make_reference_backend(), options_for(compute));
      Engine::Options options = options_for(compute);
      options.further_members = {make_fake_backend()};
      Engine divided = model->load(make_fake_backend(), options);
      EXPECT_EQ(divided.device_name(), "2 x fake");
      EXPECT_EQ(divided.cache().bytes(), whole.cache().bytes());
      EXPECT_EQ(divided.cache().blocks().groups(), whole.cache().blocks().groups());
      KvSequence one(whole.cache()), two(divided.cache());
      EXPECT_EQ(forward(divided, two, kPrompt), forward(whole, one, kPrompt));
      EXPECT_EQ(greedy(divided, 5), greedy(whole, 512));
      options.early = {make_reference_backend(), 1};
      EXPECT_THROW(model->load(make_fake_backend(), options), Error);
    }
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
  EXPECT_EQ(engine.cache().blocks().free(), 24);
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
  KvSequence sequence(engine.cache());
  const auto prompt = std::span(kPrompt);
  forward(engine, sequence, prompt.first(6));
  const std::vector<float> wanted = forward(engine, sequence, prompt.subspan(6));
  sequence.truncate(6);
  forward(engine, sequence, std::vector<std::int32_t>(20, 44));
  sequence.truncate(6);
  EXPECT_EQ(sequence.length(), 6);
  EXPECT_EQ(forward(engine, sequence, prompt.subspan(6)), wanted);
}

TEST(Engine, BatchMatesChangeNothing) {
  const TinyModel model;
  Engine engine = model.load(make_reference_backend(), options_for(Compute::kBFloat16));
  KvCache& cache = engine.cache();
  const std::vector<std::int32_t> other = {4, 4, 19};
  KvSequence a(cache), b(cache), alone(cache);
  const std::vector<float> wanted = forward(engine, alone, kPrompt);
  a.extend(3);
  b.extend(13);
  const Engine::Step steps[] = {{other, 0, a.tables()}, {kPrompt, 0, b.tables()}};
  const std::vector<float> both = logits_of(engine, engine.forward(steps), 16);
  EXPECT_EQ(std::vector<float>(both.begin() + 3 * 61, both.end()), wanted);
}

// Rows that are not neighbours are gathered for the head; what they say is the same, also where memory is
// closed to the host.
TEST(Engine, LogitsOfAnyRows) {
  const TinyModel model;
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const std::shared_ptr<Backend>& backend : {make_reference_backend(), make_fake_backend()}) {
      Engine engine = model.load(backend, options_for(compute));
      KvSequence sequence(engine.cache());
      const Buffer normed = engine.forward(sequence, kPrompt);
      const std::vector<float> all = logits_of(engine, normed, 13);
      for (const std::vector<std::int32_t>& rows : {std::vector<std::int32_t>{3, 4, 5}, {0, 7, 12}, {9, 2}}) {
        const std::span<const float> some = engine.host_logits(normed, 13, rows);
        ASSERT_EQ(some.size(), rows.size() * 61);
        for (std::size_t i = 0; i < some.size(); ++i)
          ASSERT_EQ(some[i], all[static_cast<std::size_t>(rows[i / 61]) * 61 + i % 61]);
      }
    }
}

// A step without room leaves the sequence as it was.
TEST(Engine, WhatDoesNotFitIsRefusedWhole) {
  const TinyModel model;
  Engine engine = model.load(make_reference_backend(), options_for(Compute::kFloat32));
  KvSequence a(engine.cache()), b(engine.cache());
  a.extend(50);
  const auto refused = [&](const std::vector<std::int32_t>& tokens, ErrorKind kind) {
    try {
      engine.forward(b, tokens);
      ADD_FAILURE() << tokens.size() << " tokens ran";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
    }
    EXPECT_EQ(b.length(), 0);
    EXPECT_EQ(engine.cache().blocks().free(), 24 - 13);
  };
  refused(std::vector<std::int32_t>(50, 3), ErrorKind::kResource);  // 100 positions in 96
  // no such token, found after room was made
  refused({1, 61}, ErrorKind::kBadInput);
  const Engine::Step beyond = {kPrompt, 45, a.tables()};  // 58 positions in 13 blocks of 4
  EXPECT_THROW(engine.forward(std::span(&beyond, 1)), Error);
}

}  // namespace
}  // namespace llmq::testing
