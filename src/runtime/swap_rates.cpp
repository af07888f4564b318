#include "runtime/swap_rates.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "base/seconds_since.h"

namespace llmq {
namespace {

constexpr std::int64_t kTried = 64;

template <class Work>
double seconds_of(const Work& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return seconds_since(begun);
}

}  // namespace

SwapRates measure_swap(Engine& engine) {
  KvCache& cache = engine.cache();
  const int size = cache.blocks().block_size();
  const std::int64_t count = std::min({kTried, engine.options().max_context, cache.blocks().positions()});
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(count), 0);
  KvSequence sequence(cache);
  SwapRates rates;
  rates.computed_seconds = seconds_of([&] {
                             engine.forward(sequence, tokens);
                             cache.synchronize();
                           }) /
                           static_cast<double>(count);
  // The first time touches the memory; one place for all, which is what the smallest swap space has.
  for (int time = 0; time < 2; ++time)
    rates.swapped_seconds =
        seconds_of([&] {
          for (const PageTable& table : sequence.tables())
            for (const std::int32_t block : table.blocks) {
              const PageSwap page{block, 0};
              cache.swap_out({&page, 1});
              cache.swap_in({&page, 1});
            }
          cache.synchronize();
        }) /
        static_cast<double>(static_cast<std::int64_t>(sequence.tables().front().blocks.size()) * size);
  if (const SequenceState* const state = sequence.state([&] { return engine.new_state(); })) {
    std::vector<std::int32_t> slots(static_cast<std::size_t>(cache.pages_of(state->bytes())));
    std::iota(slots.begin(), slots.end(), 0);
    const auto other = engine.new_state();
    for (int time = 0; time < 2; ++time)
      rates.state_seconds = seconds_of([&] {
        cache.swap_out(*state, slots);
        cache.swap_in(*other, slots, state->length());
        cache.synchronize();
      });
  }
  return rates;
}

std::int64_t SwapRates::fewest_positions() const {
  return 1 + static_cast<std::int64_t>(std::min(1e15, state_seconds / (computed_seconds - swapped_seconds)));
}

}  // namespace llmq
