// The recurrent state of a sequence, bit for bit: what a step leaves of an earlier length, what taking
// guesses back leads to, and what comes back from host memory are what a run of just those tokens leads to.
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cuda/cuda_backend.h"
#include "runtime/engine.h"
#include "small_engine.h"

namespace llmq::testing {
namespace {

using Bytes = std::vector<std::byte>;

const std::vector<std::int32_t> kTokens = {5, 17, 33, 2, 60, 61, 62, 9, 11, 80, 4, 7, 23, 42, 55, 56};

std::shared_ptr<Backend> backend_named(const std::string& name) {
  return name == "emulated" ? make_emulated_cuda_backend(1) : make_cpu_backend(2);
}

class RecurrentBits : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  static Engine open_on(const std::string& device, const std::string& model) {
    Engine::Options options;
    options.max_context = 64;
    options.kv_tokens = 256;
    options.block_size = 4;
    return Engine::load(
        open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/golden/models/" + model + "/model"),
        backend_named(device), options);
  }

  // A sequence that has run some of kTokens, and its state.
  struct Run {
    explicit Run(Engine& with) : engine(with), pages(with.cache()), state(with.new_state()) {}
    void step(std::int64_t count, std::span<const StateSave> saves = {}) {
      const std::int64_t first = pages.length();
      pages.extend(count);
      const Engine::Step one{
          std::span(kTokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
          first,
          pages.tables(),
          nullptr,
          state.get(),
          saves};
      engine.forward({&one, 1});
    }
    void back_to(std::int64_t length) {
      engine.take_back(*state, length);
      pages.truncate(length);
    }
    Engine& engine;
    KvSequence pages;
    std::unique_ptr<SequenceState> state;
  };

  static Bytes bytes_of(const SequenceState& state) {
    Bytes bytes(state.bytes());
    state.read(bytes);
    return bytes;
  }
  // Of a run of the first tokens alone.
  const Bytes& fresh(std::int64_t length) {
    Bytes& known = fresh_[length];
    if (!known.empty()) return known;
    Run run(engine_);
    for (std::int64_t at = 0; at < length; ++at) run.step(1);
    return known = bytes_of(*run.state);
  }

  Engine engine_ = open_on(std::get<1>(GetParam()), std::get<0>(GetParam()));
  std::map<std::int64_t, Bytes> fresh_;
};

TEST_P(RecurrentBits, AStepLeavesWhatItWasBehindAPosition) {
  for (const std::int64_t begun : {0, 3}) {
    Run run(engine_);
    if (begun > 0) run.step(begun);
    std::vector<std::unique_ptr<SequenceState>> left;
    std::vector<StateSave> saves;
    for (const std::int64_t position : {4, 8, 12}) {
      left.push_back(engine_.new_state());
      saves.push_back({position, left.back().get()});
    }
    run.step(12 - begun, saves);
    for (const StateSave& save : saves) {
      EXPECT_EQ(save.to->length(), save.position);
      EXPECT_EQ(bytes_of(*save.to), fresh(save.position)) << save.position << ", begun at " << begun;
    }
    EXPECT_EQ(bytes_of(*run.state), fresh(12));
  }
}

TEST_P(RecurrentBits, GuessesAreTakenBackToAnyOfThem) {
  for (std::int64_t right = 0; right <= 4; ++right) {
    Run run(engine_);
    run.step(3);
    run.state->guess_from(6, 4);  // behind three more tokens, in the same step
    run.step(7);
    EXPECT_EQ(bytes_of(run.state->before_guesses()), fresh(6));
    run.back_to(6 + right);
    EXPECT_EQ(run.state->length(), 6 + right);
    EXPECT_EQ(bytes_of(*run.state), fresh(6 + right)) << right << " guesses were right";
    // and again, from where it is
    run.state->guess_from(6 + right, 6);
    for (int guess = 0; guess < 5; ++guess) run.step(1);  // one after the other, as a draft makes them
    run.back_to(6 + right + 2);
    EXPECT_EQ(bytes_of(*run.state), fresh(6 + right + 2));
    run.step(1);
    EXPECT_EQ(bytes_of(*run.state), fresh(6 + right + 3));
  }
}

TEST_P(RecurrentBits, FromTheFirstTokenOn) {
  Run run(engine_);
  run.state->guess_from(0, 3);
  run.step(3);
  run.back_to(2);
  EXPECT_EQ(bytes_of(*run.state), fresh(2));
}

TEST_P(RecurrentBits, HostMemoryHasAllOfIt) {
  Run run(engine_);
  run.step(7);
  KvCache& cache = engine_.cache();
  cache.give_swap_space(64);
  std::vector<std::int32_t> slots(static_cast<std::size_t>(cache.pages_of(run.state->bytes())));
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(60 - 2 * i);
  ASSERT_GT(slots.size(), 1u);
  ASSERT_LT(slots.size(), 30u);
  cache.swap_out(*run.state, slots);
  run.step(2);
  cache.swap_in(*run.state, slots, 7);
  EXPECT_EQ(run.state->length(), 7);
  EXPECT_EQ(bytes_of(*run.state), fresh(7));
}

TEST_P(RecurrentBits, WhatWasNotKeptIsRefused) {
  Run run(engine_);
  run.step(5);
  EXPECT_THROW(engine_.take_back(*run.state, 4), Error) << "nobody said that these were guesses";
  EXPECT_THROW(run.state->guess_from(4, 2), Error) << "it has seen 5";
  run.state->guess_from(6, 2);
  run.step(3);
  EXPECT_THROW(engine_.take_back(*run.state, 5), Error) << "the token before the guesses is none";
  const auto other = engine_.new_state();
  const StateSave save{9, other.get()};
  EXPECT_THROW(run.step(0, {&save, 1}), Error) << "the step does not reach it";
}

INSTANTIATE_TEST_SUITE_P(Devices, RecurrentBits,
                         ::testing::Combine(::testing::Values("qwen3_5_text", "qwen3_next"),
                                            ::testing::Values("cpu", "emulated")));

}  // namespace
}  // namespace llmq::testing
