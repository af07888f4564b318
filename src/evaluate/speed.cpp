#include "evaluate/speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/seconds_since.h"
#include "runtime/serving_engine.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWarmUpTokens = 4, kPromptRows = 512;

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

// A serving engine of its own for each part: the prompts that the first one read are found by the second.
class Run {
 public:
  Run(Engine& engine, const SpeedCase& asked, std::span<const std::vector<std::int32_t>> prompts,
      std::string tenant)
      : engine_(engine), asked_(asked), prompts_(prompts), tenant_(std::move(tenant)) {}

  void read_prompts(Times& times) {
    ServingEngine serving(engine_, nullptr, options(kPromptRows));
    const Clock::time_point start = Clock::now();
    submit(serving, 1);
    while (!serving.idle()) {
      const std::size_t written = serving.step().size();
      times.first_tokens.insert(times.first_tokens.end(), written, seconds_since(start));
    }
    times.prefill += seconds_since(start);
  }

  // All sequences start in one step, which is not timed; then each step gives every one of them a token.
  void write(std::int64_t new_tokens, const std::function<void()>& between_steps, Times& times) {
    ServingEngine serving(engine_, nullptr,
                          options(kPromptRows + asked_.batch * engine_.options().block_size));
    submit(serving, new_tokens);
    serving.step();
    for (std::int64_t token = 1; token < new_tokens; ++token) {
      if (between_steps) between_steps();
      const Clock::time_point before = Clock::now();
      const std::size_t written = serving.step().size();
      times.steps.push_back(seconds_since(before));
      if (written != static_cast<std::size_t>(asked_.batch))
        fail(ErrorKind::kResource, "only {} of {} sequences run together: the KV cache is too small", written,
             asked_.batch);
    }
  }

 private:
  ServingOptions options(std::int64_t rows) const {
    ServingOptions serving;
    serving.limits = {asked_.batch, std::max(rows, asked_.batch), engine_.options().max_context + 1,
                      asked_.batch};
    return serving;
  }

  void submit(ServingEngine& serving, std::int64_t new_tokens) const {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      GenerationRequest request;
      request.id = i;
      request.prompt = prompts_[i];
      request.max_tokens = new_tokens;
      request.ignore_eos = true;
      request.tenant = tenant_;
      if (const auto refusal = serving.submit(std::move(request)))
        fail(ErrorKind::kUsage, "{}", refusal->message);
    }
  }

  Engine& engine_;
  const SpeedCase& asked_;
  std::span<const std::vector<std::int32_t>> prompts_;
  std::string tenant_;  // another one for every run: none finds the prompts of the one before
};

void run_once(Engine& engine, const SpeedCase& asked, std::span<const std::vector<std::int32_t>> prompts,
              int number, std::int64_t new_tokens, const std::function<void()>& between_steps, Times& times) {
  Run run(engine, asked, prompts, fmt::format("run {}", number));
  run.read_prompts(times);
  run.write(new_tokens, between_steps, times);
}

double bytes_per_step(const Engine& engine, const SpeedCase& asked) {
  const ModelSpec& spec = engine.spec();
  const DType dtype = activation_dtype(engine.options().compute);
  const double element = static_cast<double>(element_bytes(dtype)),
               position = static_cast<double>(spec.kv_bytes({dtype}));
  const double seen = static_cast<double>(asked.prompt_tokens) + static_cast<double>(asked.new_tokens) / 2;
  return engine.bytes_read(asked.batch) +
         static_cast<double>(asked.batch) *
             (seen * position + static_cast<double>(spec.hidden_size) * element);
}

double linear_weights(const ModelSpec& spec) {
  double weights = 0;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      weights += static_cast<double>(linear.out_features) * static_cast<double>(linear.in_features);
  return weights;
}

// Of attention, for one row that sees `seen` positions: products with the keys, and with the values.
double attention_operations(const ModelSpec& spec, double seen) {
  double operations = 0;
  for (const BlockSpec& block : spec.blocks)
    if (const auto attention = block.attention_sizes())
      operations += 4 * static_cast<double>(attention->width()) *
                    (attention->window > 0 ? std::min(seen, static_cast<double>(attention->window)) : seen);
  return operations;
}

void count_work(const Engine& engine, SpeedResult& result) {
  const ModelSpec& spec = engine.spec();
  const SpeedCase& asked = result.asked;
  const double prompt = static_cast<double>(asked.prompt_tokens), linears = linear_weights(spec),
               head = static_cast<double>(spec.vocab_size) * static_cast<double>(spec.hidden_size);
  result.bytes_per_step = bytes_per_step(engine, asked);
  result.operations_per_step =
      static_cast<double>(asked.batch) *
      (2 * (linears + head) + attention_operations(spec, prompt + static_cast<double>(asked.new_tokens) / 2));
  result.prefill_operations_per_token = 2 * linears + attention_operations(spec, prompt / 2);
  result.prefill_bytes_per_token = static_cast<double>(engine.weight_bytes()) /
                                   static_cast<double>(std::min(asked.prompt_tokens, kPromptRows));
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
  run_once(engine, asked, prompts, 0, std::min(asked.new_tokens, kWarmUpTokens), between_steps, discarded);
  for (int run = 1; run <= asked.runs; ++run)
    run_once(engine, asked, prompts, run, asked.new_tokens, between_steps, times);

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
  count_work(engine, result);
  return result;
}

}  // namespace llmq
