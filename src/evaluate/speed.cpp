#include "evaluate/speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "runtime/greedy_batch.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWarmUpTokens = 4;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Prompts without meaning, all different, the same in every run.
std::vector<std::int32_t> prompt_of(std::int64_t sequence, const SpeedCase& asked, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  std::uint64_t state = static_cast<std::uint64_t>(sequence) + 1;
  for (std::int64_t i = 0; i < asked.prompt_tokens; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocabulary)));
  }
  return ids;
}

struct Times {
  std::vector<double> first_tokens, steps;
  double prefill = 0;  // of all runs
};

void run_once(Engine& engine, const SpeedCase& asked, std::span<const std::vector<std::int32_t>> prompts,
              std::int64_t new_tokens, const std::function<void()>& between_steps, Times& times) {
  GreedyBatch batch(engine, asked.batch);
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    batch.prefill(i, prompts[i]);
    times.first_tokens.push_back(since(start));
  }
  times.prefill += times.first_tokens.back();
  for (std::int64_t token = 1; token < new_tokens; ++token) {
    if (between_steps) between_steps();
    const Clock::time_point before = Clock::now();
    batch.step();
    times.steps.push_back(since(before));
  }
}

double bytes_per_step(const Engine& engine, const SpeedCase& asked) {
  const ModelSpec& spec = engine.spec();
  const double element = static_cast<double>(element_bytes(activation_dtype(engine.options().compute)));
  const double position =
      2.0 * static_cast<double>(spec.blocks.size()) * spec.kv_heads * spec.head_dim * element;
  const double seen = static_cast<double>(asked.prompt_tokens) + static_cast<double>(asked.new_tokens) / 2;
  return static_cast<double>(engine.weight_bytes()) +
         static_cast<double>(asked.batch) *
             (seen * position + static_cast<double>(spec.hidden_size) * element);
}

void check(const Engine& engine, const SpeedCase& asked) {
  if (asked.batch < 1 || asked.prompt_tokens < 1 || asked.new_tokens < 2 || asked.runs < 1)
    fail(ErrorKind::kUsage,
         "a batch of {} with prompts of {} tokens and {} new ones, {} times, measures nothing", asked.batch,
         asked.prompt_tokens, asked.new_tokens, asked.runs);
  if (asked.prompt_tokens + asked.new_tokens > engine.options().max_context)
    fail(ErrorKind::kUsage, "{} prompt and {} new tokens do not fit into {} positions", asked.prompt_tokens,
         asked.new_tokens, engine.options().max_context);
}

}  // namespace

double nearest_rank(std::span<const double> sorted, double share) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(std::clamp(rank, 1.0, static_cast<double>(sorted.size()))) - 1];
}

double SpeedResult::bandwidth_fraction(double read_bytes_per_second) const {
  return itl_p50 > 0 && read_bytes_per_second > 0 ? bytes_per_step / itl_p50 / read_bytes_per_second : 0;
}

SpeedResult measure_speed(Engine& engine, const SpeedCase& asked,
                          const std::function<void()>& between_steps) {
  check(engine, asked);
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int64_t i = 0; i < asked.batch; ++i)
    prompts.push_back(prompt_of(i, asked, engine.spec().vocab_size));
  Times discarded, times;
  run_once(engine, asked, prompts, std::min(asked.new_tokens, kWarmUpTokens), between_steps, discarded);
  for (int run = 0; run < asked.runs; ++run)
    run_once(engine, asked, prompts, asked.new_tokens, between_steps, times);

  SpeedResult result;
  result.asked = asked;
  double decoding = 0;
  for (const double step : times.steps) decoding += step;
  const double all_runs = static_cast<double>(asked.batch) * asked.runs;
  result.tokens_per_second = all_runs * static_cast<double>(asked.new_tokens - 1) / decoding;
  result.prefill_tokens_per_second = all_runs * static_cast<double>(asked.prompt_tokens) / times.prefill;
  std::sort(times.first_tokens.begin(), times.first_tokens.end());
  std::sort(times.steps.begin(), times.steps.end());
  result.ttft_p50 = nearest_rank(times.first_tokens, 0.5);
  result.ttft_p95 = nearest_rank(times.first_tokens, 0.95);
  result.itl_p50 = nearest_rank(times.steps, 0.5);
  result.itl_p95 = nearest_rank(times.steps, 0.95);
  result.bytes_per_step = bytes_per_step(engine, asked);
  return result;
}

}  // namespace llmq
