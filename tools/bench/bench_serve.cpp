#include "tools/bench/bench_serve.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "evaluate/vllm_result.h"
#include "export/inspect.h"
#include "job/kv_cache_choice.h"
#include "tokenizer/chat_template.h"
#include "tools/bench/bench_output.h"
#include "tools/bench/served_load.h"
#include "tools/machine_figures.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

constexpr double kUsualSharedPrefix = 0.25;

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

void measure(const ServeBench& options, const HttpTarget& at, LoadTarget target, LoadReport& report) {
  HttpClient client(at, patient());
  if (target.model.empty()) target.model = first_model(client, target.authorization);
  report.model = target.model;
  Progress progress(
      "bench", static_cast<double>(options.clients.size() * options.rates.size() * options.batching.size()));
  LoadMix mix = report.mix;
  for (const std::int64_t clients : options.clients)
    for (const std::string& rate : options.rates)
      for (const std::string& batching : options.batching) {
        mix.words_seed = 1000 * options.seed + 2 * report.rows.size();
        const double per_second = parse_rate(rate);
        const LoadPace pace{clients, std::isinf(per_second), batching == "static"};
        const LoadRow& row = report.rows.emplace_back(
            measure_load(client, target, mix, pace, per_second, options.endpoint.empty()));
        progress.advance(1, fmt::format("{} clients · {} requests/s", clients, rate),
                         fmt::format("{:.1f} tokens/s", row.result.tokens_per_second), true);
      }
}

void print_load(const LoadReport& report) {
  print_line(report.endpoint.empty() ? fmt::format("{} ({}), {} compute, suite serve", report.model,
                                                   report.config, report.compute)
                                     : fmt::format("{} at {}, suite serve", report.model, report.endpoint));
  print_line("milliseconds as p50 / p95 / p99");
  std::vector<std::vector<std::string>> rows = {{"clients", "batching", "rate", "answered", "failed", "ttft",
                                                 "itl", "tpot", "req/s", "tok/s", "accepted", "prefix hits",
                                                 "memory", "per Mtok"}};
  for (const LoadRow& row : report.rows) rows.push_back(load_cells(row, report.price_per_hour, bytes_text));
  print_table(rows);
}

bool warn_of_failures(const LoadReport& report) {
  bool all = true;
  for (const LoadRow& row : report.rows)
    all = warn_of_failed_requests(
              row, fmt::format("{} clients, {} requests/s", row.clients, rate_text(row.rate))) &&
          all;
  if (report.machine) warn_if_unsteady(*report.machine);
  return all;
}

}  // namespace

int bench_serve(const ServeBench& options, const GlobalOptions& globals) {
  check_load(options);
  LoadReport report;
  report.mix = mix_of(options);
  report.mix.requests = options.requests.value_or(
      std::min(kMostRequests, 8 * *std::max_element(options.clients.begin(), options.clients.end())));
  report.mix.shared_share = options.shared_prefix.value_or(kUsualSharedPrefix);
  report.price_per_hour = options.price_per_hour;
  if (options.endpoint.empty()) {
    if (!options.api_key_file.empty())
      fail(ErrorKind::kUsage,
           {"this program's own server needs no key", {}, "--api-key-file", "give it with --endpoint"});
    const Compute compute = chosen_compute(globals, Compute::kBFloat16);
    check_engine_flags(options.engine, compute);
    PreparedServer prepared(options.engine, globals, compute);
    report.config = named_with_kv_cache(inspect(system_io(), options.engine.model, false).scheme,
                                        options.engine.kv_cache_dtype);
    report.compute = compute_name(compute);
    fit_load(options.prompt_tokens.has_value(), options.new_tokens.has_value(), prepared.room().context,
             report.mix);
    report.machine = measure_figures(prepared.backend(), compute);
    {
      const OwnServer server(prepared, *std::max_element(options.clients.begin(), options.clients.end()));
      measure(options, server.target, {prepared.served().name, {}, !options.may_end}, report);
    }
    report.model = options.engine.model;
    measure_bandwidth_again(*report.machine, prepared.backend());
  } else {
    report.config = report.endpoint = options.endpoint;
    measure(options, parse_http_url(options.endpoint, "--endpoint"),
            {options.engine.model, authorization_of(options), !options.may_end}, report);
  }
  if (!options.save_result.empty())
    write_text_atomically(system_io(), options.save_result, vllm_result_lines(report, local_time()));
  put_out(report, options, globals, print_load);
  return warn_of_failures(report) ? 0 : 3;
}

}  // namespace llmq::tools
