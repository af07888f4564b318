#include "tools/bench_serve.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "evaluate/load_report.h"
#include "export/inspect.h"
#include "tools/interrupt.h"
#include "tools/machine_figures.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

constexpr std::int64_t kMostClients = 4096, kMostRequests = 100'000;
constexpr double kLongestAnswer = 3600;  // seconds: a long queue is what is measured, not an error

double parse_rate(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  char* end = nullptr;
  const double rate = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(rate >= 1e-3 && rate <= 1e6))
    fail(ErrorKind::kUsage, {"'" + text + "' is no number of requests per second", {}, "--rate", "give 0.001 .. 1000000, or inf"});
  return rate;
}

void check(const ServeBench& options) {
  const auto refuse = [](const std::string& what, const char* flag, const std::string& hint) { fail(ErrorKind::kUsage, {what, {}, flag, hint}); };
  for (const std::int64_t clients : options.clients)
    if (clients < 1 || clients > kMostClients) refuse(fmt::format("{} clients", clients), "--clients", fmt::format("give 1 .. {}", kMostClients));
  for (const std::string& rate : options.rates) parse_rate(rate);
  if (options.requests && (*options.requests < 1 || *options.requests > kMostRequests))
    refuse(fmt::format("{} requests", *options.requests), "--requests", fmt::format("give 1 .. {}", kMostRequests));
  if (options.prompt_tokens && (*options.prompt_tokens < 2 || *options.prompt_tokens > 1'000'000)) refuse("prompts of that length", "--prompt-tokens", "give 2 .. 1000000");
  if (options.new_tokens && (*options.new_tokens < 2 || *options.new_tokens > 1'000'000)) refuse("answers of that length", "--new-tokens", "give 2 .. 1000000");
  if (!(options.shared_prefix >= 0 && options.shared_prefix <= 1)) refuse("a share outside of 0 .. 1", "--shared-prefix", "give 0.25 for every fourth request");
}

// Of this program's own server: a load that no context holds is refused; lengths that nobody chose are made to fit.
void fit(const ServeBench& options, std::int64_t context, LoadMix& mix) {
  if (!options.prompt_tokens) mix.prompt_words = std::clamp<std::int64_t>(context / 3, 2, mix.prompt_words);
  if (!options.new_tokens) mix.new_tokens = std::clamp<std::int64_t>(context / 6, 2, mix.new_tokens);
  const std::int64_t longest = (mix.prompt_words + mix.new_tokens) * 3 / 2;
  if (longest > context)
    fail(ErrorKind::kUsage, {fmt::format("the longest prompt and answer have {} tokens, the server's context {}", longest, context), {}, "--prompt-tokens", "give less"});
}

LoadMix mix_of(const ServeBench& options) {
  LoadMix mix;
  mix.requests = options.requests.value_or(std::min(kMostRequests, 8 * *std::max_element(options.clients.begin(), options.clients.end())));
  mix.prompt_words = options.prompt_tokens.value_or(mix.prompt_words);
  mix.new_tokens = options.new_tokens.value_or(mix.new_tokens);
  mix.shared_share = options.shared_prefix;
  mix.seed = options.seed;
  return mix;
}

// The first key of the file, as the header that a server reads.
std::string authorization_of(const ServeBench& options) {
  if (options.api_key_file.empty()) return {};
  const std::string text = read_text(system_io(), options.api_key_file, 1u << 20);
  ApiKeys::parse(text, options.api_key_file);  // in the form that serve reads
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string key = text.substr(at, end - at);
    while (!key.empty() && static_cast<unsigned char>(key.back()) <= ' ') key.pop_back();
    if (!key.empty() && key[0] != '#') return "Bearer " + key;
    at = end + 1;
  }
  return {};
}

// This program's own server on a free port, until the object goes.
class OwnServer {
 public:
  OwnServer(PreparedServer& prepared, std::int64_t clients) {
    ServeOptions options;
    options.port = 0;
    options.http.max_connections = static_cast<std::size_t>(clients) + 64;
    options.http.request_seconds = kLongestAnswer;
    options.drain_seconds = 1;
    std::promise<int> listening;
    std::future<int> port = listening.get_future();
    thread_ = std::jthread([&prepared, options, listening = std::move(listening)](const std::stop_token& stop) mutable {
      options.stop = stop;
      bool told = false;
      try {
        prepared.serve(options, [&](int found) {
          told = true;
          listening.set_value(found);
        });
      } catch (const std::exception& error) {
        if (!told) listening.set_exception(std::current_exception());
        else Log::get().warn(std::string("the server ended: ") + error.what());
      }
    });
    target = {"127.0.0.1", port.get(), ""};
  }
  HttpTarget target;

 private:
  std::jthread thread_;
};

HttpClientLimits patient() {
  HttpClientLimits limits;
  limits.quiet_seconds = limits.whole_seconds = kLongestAnswer;
  return limits;
}

ServerCounters difference(const ServerCounters& before, const ServerCounters& after) {
  return {after.found, after.drafted - before.drafted, after.accepted - before.accepted, after.prefix_queries - before.prefix_queries, after.prefix_hits - before.prefix_hits};
}

// Warm-up, discarded, and one row. Each has words of its own.
LoadRow measure_row(HttpClient& client, const LoadTarget& target, LoadMix mix, std::int64_t clients, double rate, bool own) {
  const LoadPace pace{clients, std::isinf(rate)};
  LoadMix warm_up = mix;
  warm_up.requests = std::min(clients, mix.requests);
  warm_up.words_seed = mix.words_seed + 1;
  drive_load(client, target, plan_load(warm_up, std::numeric_limits<double>::infinity()), {clients, true}, throw_if_interrupted);
  const ServerCounters before = server_counters(client, target.authorization);
  if (own) forget_peak_resident();
  LoadRow row{clients, rate, {}, {}, {}};
  row.result = summarize_load(drive_load(client, target, plan_load(mix, rate), pace, throw_if_interrupted));
  if (own) row.peak_memory_bytes = peak_resident_bytes();
  row.counters = difference(before, server_counters(client, target.authorization));
  return row;
}

void measure(const ServeBench& options, const HttpTarget& at, LoadTarget target, LoadReport& report) {
  HttpClient client(at, patient());
  if (target.model.empty()) target.model = first_model(client, target.authorization);
  report.model = target.model;
  Progress progress("bench", static_cast<double>(options.clients.size() * options.rates.size()));
  LoadMix mix = report.mix;
  for (const std::int64_t clients : options.clients)
    for (const std::string& rate : options.rates) {
      mix.words_seed = 1000 * options.seed + 2 * report.rows.size();
      const LoadRow& row = report.rows.emplace_back(measure_row(client, target, mix, clients, parse_rate(rate), options.endpoint.empty()));
      progress.advance(1, fmt::format("{} clients · {} requests/s", clients, rate), fmt::format("{:.1f} tokens/s", row.result.tokens_per_second), true);
    }
}

std::string triple(const Percentiles& seconds) { return fmt::format("{:.1f} / {:.1f} / {:.1f}", 1e3 * seconds.p50, 1e3 * seconds.p95, 1e3 * seconds.p99); }

void print_for_people(const LoadReport& report) {
  print_line(report.endpoint.empty() ? fmt::format("{} ({}), {} compute, suite serve", report.model, report.config, report.compute)
                                     : fmt::format("{} at {}, suite serve", report.model, report.endpoint));
  print_line("milliseconds as p50 / p95 / p99");
  std::vector<std::vector<std::string>> rows = {{"clients", "rate", "answered", "failed", "ttft", "itl", "tpot", "req/s", "tok/s", "accepted", "prefix hits", "memory", "per Mtok"}};
  const auto share = [](const std::optional<double>& value) { return value ? fmt::format("{:.1f} %", 100 * *value) : "-"; };
  for (const LoadRow& row : report.rows) {
    const LoadResult& r = row.result;
    const std::optional<double> cost = cost_per_million_tokens(report.price_per_hour, r.tokens_per_second);
    rows.push_back({std::to_string(row.clients), rate_text(row.rate), std::to_string(r.requests - r.failed), std::to_string(r.failed), triple(r.ttft), triple(r.itl), triple(r.tpot),
                    fmt::format("{:.2f}", r.requests_per_second), fmt::format("{:.1f}", r.tokens_per_second), share(row.acceptance()), share(row.prefix_hit_share()),
                    row.peak_memory_bytes ? bytes_text(*row.peak_memory_bytes) : "-", cost ? fmt::format("{:.4g}", *cost) : "-"});
  }
  print_table(rows);
}

// What the figures do not show. True when every request was answered.
bool warn_of_failures(const LoadReport& report) {
  bool all = true;
  for (const LoadRow& row : report.rows) {
    all = all && row.result.failed == 0;
    const std::string load = fmt::format("{} clients, {} requests/s", row.clients, rate_text(row.rate));
    for (const auto& error : row.result.errors) Log::get().warn(fmt::format("{}: {} requests failed: {}", load, error.second, error.first));
    if (row.result.short_answers > 0) Log::get().warn(fmt::format("{}: {} answers are shorter than was asked for", load, row.result.short_answers));
  }
  if (report.machine && report.machine->unsteady()) Log::get().warn("the read bandwidth changed by more than a tenth meanwhile: something else was running");
  return all;
}

}  // namespace

std::vector<const CLI::Option*> add_load_flags(CLI::App& command, ServeBench& o) {
  const std::size_t before = command.get_options().size();
  command.add_option("--clients", o.clients, "Requests under way at a time")->delimiter(',')->type_name("N,...")->allow_extra_args(false)->capture_default_str();
  command.add_option("--rate", o.rates, "Requests that arrive per second, at random; inf: as fast as the clients take them")->delimiter(',')->type_name("R,...")->allow_extra_args(false)->capture_default_str();
  command.add_option("--requests", o.requests, "Requests of each row; eight for each client when left out")->type_name("N");
  command.add_option("--shared-prefix", o.shared_prefix, "Share of requests that begin with the same words")->type_name("X")->capture_default_str();
  command.add_option("--seed", o.seed, "Another load; a server that was driven before has its prompts cached")->type_name("N")->capture_default_str();
  command.add_option("--api-key-file", o.api_key_file, "With --endpoint: the first key of this file is sent")->type_name("FILE");
  command.add_flag("--allow-eos", o.may_end, "Answers may end early; ignore_eos, which not every server knows, is not sent");
  add_engine_flags(command, o.engine);
  std::vector<const CLI::Option*> added;
  const std::vector<CLI::Option*> all = command.get_options();
  for (std::size_t i = before; i < all.size(); ++i) {
    all[i]->group("Suite serve");
    added.push_back(all[i]);
  }
  return added;
}

int bench_serve(const ServeBench& options, const GlobalOptions& globals) {
  check(options);
  LoadReport report;
  report.mix = mix_of(options);
  report.price_per_hour = options.price_per_hour;
  if (options.endpoint.empty()) {
    if (!options.api_key_file.empty()) fail(ErrorKind::kUsage, {"this program's own server needs no key", {}, "--api-key-file", "give it with --endpoint"});
    const Compute compute = chosen_compute(globals, Compute::kBFloat16);
    check_engine_flags(options.engine, compute);
    PreparedServer prepared(options.engine, globals, compute);
    report.config = inspect(system_io(), options.engine.model, false).scheme;
    report.compute = compute_name(compute);
    fit(options, prepared.room().context, report.mix);
    report.machine = measure_figures(prepared.backend(), compute);
    {
      const OwnServer server(prepared, *std::max_element(options.clients.begin(), options.clients.end()));
      measure(options, server.target, {prepared.served().name, {}, !options.may_end}, report);
    }
    report.model = options.engine.model;
    measure_bandwidth_again(*report.machine);
  } else {
    report.config = report.endpoint = options.endpoint;
    measure(options, parse_http_url(options.endpoint, "--endpoint"), {options.engine.model, authorization_of(options), !options.may_end}, report);
  }
  if (!options.csv.empty()) write_text_atomically(system_io(), options.csv, report.to_csv());
  if (!options.html.empty()) write_text_atomically(system_io(), options.html, report.to_html());
  if (globals.json) print_json(report.to_json());
  else print_for_people(report);
  return warn_of_failures(report) ? 0 : 3;
}

}  // namespace llmq::tools
