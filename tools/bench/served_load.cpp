#include "tools/bench/served_load.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/resident_memory.h"
#include "tools/interrupt.h"

namespace llmq::tools {
namespace {

constexpr double kLongestAnswer = 3600;  // seconds

ServerCounters difference(const ServerCounters& before, const ServerCounters& after) {
  return {after.found, after.drafted - before.drafted, after.accepted - before.accepted,
          after.prefix_queries - before.prefix_queries, after.prefix_hits - before.prefix_hits};
}

}  // namespace

OwnServer::OwnServer(PreparedServer& prepared, std::int64_t clients) {
  ServeOptions options;
  options.port = 0;
  options.http.max_connections = static_cast<std::size_t>(clients) + 64;
  options.http.request_seconds = kLongestAnswer;
  options.drain_seconds = 1;
  std::promise<int> listening;
  std::future<int> port = listening.get_future();
  thread_ = std::jthread(
      [&prepared, options, listening = std::move(listening)](const std::stop_token& stop) mutable {
        options.stop = stop;
        bool told = false;
        try {
          prepared.serve(options, [&](int found) {
            told = true;
            listening.set_value(found);
          });
        } catch (const std::exception& error) {
          if (!told)
            listening.set_exception(std::current_exception());
          else
            Log::get().warn(std::string("the server ended: ") + error.what());
        }
      });
  target = {"127.0.0.1", port.get(), ""};
}

HttpClientLimits patient() {
  HttpClientLimits limits;
  limits.quiet_seconds = limits.whole_seconds = kLongestAnswer;
  return limits;
}

void fit_load(bool prompts_given, bool answers_given, std::int64_t context, LoadMix& mix) {
  if (!prompts_given) mix.prompt_words = std::clamp<std::int64_t>(context / 3, 2, mix.prompt_words);
  if (!answers_given)
    mix.new_tokens =
        std::clamp<std::int64_t>(context / (mix.long_tail ? 4 * kLongestTail : 6), 2, mix.new_tokens);
  const std::int64_t longest = mix.prompt_words * 3 / 2 + mix.longest_answer();
  if (longest > context)
    fail(ErrorKind::kUsage,
         {fmt::format("the longest prompt and answer have {} tokens, the server's context {}", longest,
                      context),
          {},
          "--prompt-tokens",
          "give less"});
}

LoadRow measure_load(HttpClient& client, const LoadTarget& target, const LoadMix& mix, const LoadPace& pace,
                     double rate, bool own) {
  LoadMix warm_up = mix;
  warm_up.requests = std::min(pace.clients, mix.requests);
  warm_up.words_seed = mix.words_seed + 1;
  drive_load(client, target, plan_load(warm_up, std::numeric_limits<double>::infinity()),
             {pace.clients, true, false}, throw_if_interrupted);
  const ServerCounters before = server_counters(client, target.authorization);
  if (own) forget_peak_resident();
  LoadRow row;
  row.clients = pace.clients;
  row.rate = rate;
  row.static_batches = pace.static_batches;
  row.result = summarize_load(drive_load(client, target, plan_load(mix, rate), pace, throw_if_interrupted));
  if (own) row.peak_memory_bytes = peak_resident_bytes();
  row.counters = difference(before, server_counters(client, target.authorization));
  return row;
}

bool warn_of_failed_requests(const LoadRow& row, const std::string& name) {
  for (const auto& error : row.result.errors)
    Log::get().warn(fmt::format("{}: {} requests failed: {}", name, error.second, error.first));
  if (row.result.short_answers > 0)
    Log::get().warn(
        fmt::format("{}: {} answers are shorter than was asked for", name, row.result.short_answers));
  return row.result.failed == 0;
}

void warn_if_unsteady(const MachineFigures& machine) {
  if (machine.unsteady())
    Log::get().warn("the read bandwidth changed by more than a tenth meanwhile: something else was running");
}

}  // namespace llmq::tools
