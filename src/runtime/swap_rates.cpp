#include "runtime/swap_rates.h"

#include <algorithm>
#include <chrono>
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
  const auto pages = [&] { return std::span(sequence.tables().front().blocks); };
  SwapRates rates;
  rates.computed_seconds = seconds_of([&] {
                             engine.forward(sequence, tokens);
                             cache.synchronize();
                           }) /
                           static_cast<double>(count);
  // The first time touches the memory; one place for all, which is what the smallest swap space has.
  for (int time = 0; time < 2; ++time)
    rates.swapped_seconds = seconds_of([&] {
                              for (const std::int32_t block : pages()) {
                                const PageSwap page{block, 0};
                                cache.swap_out({&page, 1});
                                cache.swap_in({&page, 1});
                              }
                              cache.synchronize();
                            }) /
                            static_cast<double>(static_cast<std::int64_t>(pages().size()) * size);
  return rates;
}

}  // namespace llmq
