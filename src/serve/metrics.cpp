#include "serve/metrics.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/prometheus_text.h"

namespace llmq {
namespace {

// vLLM's, and finer ones below for models that are faster than its fastest.
const std::vector<double> kFirstToken = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                         0.1,   0.25,   0.5,   0.75, 1,    2.5,  5,    7.5,
                                         10,    20,     40,    80,   160,  640,  2560};
const std::vector<double> kInterToken = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                         0.1,    0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,
                                         2.5,    5,     7.5,    10,    20,   40,    80};
const std::vector<double> kRequest = {0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,  15,
                                      20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                                     500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

// Text in Prometheus' exposition format; each family under its names.
class Exposition {
 public:
  Exposition(const std::string& model, bool vllm)
      : labels_(prometheus_label("model_name", model)), vllm_(vllm) {}

  // `name` has no prefix. Families that vLLM has too get both names.
  void family(const std::string& name, const char* type, const char* help, bool in_vllm,
              const std::vector<std::pair<std::string, double>>& samples) {
    write("llmq_" + name, type, help, labels_, samples);
    if (in_vllm && vllm_) write("vllm:" + name, type, help, labels_ + ",engine=\"0\"", samples);
  }
  void gauge(const std::string& name, const char* help, double value, bool in_vllm = true) {
    family(name, "gauge", help, in_vllm, {{"", value}});
  }
  void counter(const std::string& name, const char* help, std::int64_t value, bool in_vllm = true) {
    family(name, "counter", help, in_vllm, {{"", static_cast<double>(value)}});
  }
  void histogram(const std::string& name, const char* help, const Histogram& h) {
    write_histogram("llmq_" + name, help, labels_, h);
    if (vllm_) write_histogram("vllm:" + name, help, labels_ + ",engine=\"0\"", h);
  }
  // A family of one sample.
  void single(const char* name, const char* type, const char* help, const std::string& labels, double value) {
    text_ += prometheus_head(name, type, help) + prometheus_sample(name, labels, fmt::format("{}", value));
  }
  std::string vllm_labels() const { return labels_ + ",engine=\"0\""; }
  void plain(const char* name, const char* type, const char* help, double value) {
    single(name, type, help, {}, value);
  }
  std::string take() { return std::move(text_); }

 private:
  void write(const std::string& name, const char* type, const char* help, const std::string& labels,
             const std::vector<std::pair<std::string, double>>& samples) {
    text_ += prometheus_head(name, type, help);
    for (const auto& [label, value] : samples)
      text_ += prometheus_sample(name, label.empty() ? labels : fmt::format("{},{}", labels, label),
                                 fmt::format("{}", value));
  }
  void write_histogram(const std::string& name, const char* help, const std::string& labels,
                       const Histogram& h) {
    text_ += prometheus_head(name, "histogram", help);
    std::int64_t below = 0;
    for (std::size_t i = 0; i < h.bounds().size(); ++i) {
      below += h.counts()[i];
      text_ += prometheus_sample(name + "_bucket", fmt::format("{},le=\"{}\"", labels, h.bounds()[i]),
                                 fmt::format("{}", below));
    }
    const std::string count = fmt::format("{}", h.count());
    text_ += prometheus_sample(name + "_bucket", labels + ",le=\"+Inf\"", count) +
             prometheus_sample(name + "_sum", labels, fmt::format("{}", h.sum())) +
             prometheus_sample(name + "_count", labels, count);
  }

  std::string labels_, text_;
  bool vllm_;
};

double resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  long long size = 0, pages = 0;
  if (!file) return 0;
  const int found = std::fscanf(file, "%lld %lld", &size, &pages);
  std::fclose(file);
  return found == 2 ? static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE)) : 0;
}

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

void write_engine(Exposition& out, const ServingStatistics& s) {
  out.gauge("num_requests_running", "Answers that run in the present step.", static_cast<double>(s.running));
  out.gauge("num_requests_waiting", "Answers that wait for pages or for a place.",
            static_cast<double>(s.waiting));
  out.gauge("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 1 is full.",
            share(s.kv_blocks_used, s.kv_blocks_total));
  out.gauge("kv_blocks_used", "Blocks of the KV cache in use.", static_cast<double>(s.kv_blocks_used), false);
  out.gauge("kv_blocks", "Blocks of the KV cache.", static_cast<double>(s.kv_blocks_total), false);
  out.gauge("kv_cache_bytes", "Bytes of the KV cache, used or not.", static_cast<double>(s.kv_bytes), false);
  out.gauge("kv_positions_used", "Positions filled in the blocks in use.",
            static_cast<double>(s.kv_positions_used), false);
  out.counter("kv_places_total", "Places of the blocks in use, summed over forward passes.", s.kv_places,
              false);
  out.counter("kv_places_unused_total", "Of these, places that held nothing: their share is the waste.",
              s.kv_places_unused, false);
  out.counter("prompt_tokens_total", "Tokens of prompts taken.", s.prompt_tokens);
  out.counter("generation_tokens_total", "Tokens written.", s.generated_tokens);
  out.counter("prompt_tokens_recomputed_total", "Tokens computed again after a preemption.",
              s.recomputed_tokens);
  out.counter("tokens_restored_total", "Tokens whose pages came back from the host after a preemption.",
              s.restored_tokens, false);
  out.gauge("swap_blocks_used", "Blocks of host memory that hold pages of waiting answers.",
            static_cast<double>(s.swap_pages_used), false);
  out.gauge("swap_blocks", "Blocks of host memory for them (--swap-space).",
            static_cast<double>(s.swap_pages_total), false);
  if (s.state_bytes > 0) {
    out.gauge("state_snapshots", "Copies of recurrent states by which prefixes are found.",
              static_cast<double>(s.snapshots), false);
    out.gauge("state_snapshots_room", "Of these, as many as there is room for (--state-memory).",
              static_cast<double>(s.snapshots_total), false);
    out.gauge("state_snapshot_bytes", "Bytes of these copies, used or not any more.",
              static_cast<double>(s.snapshots_made * s.state_bytes), false);
  }
  out.counter("prefix_cache_queries_total", "Tokens looked for in the prefix cache.", s.prefix_queries);
  out.counter("prefix_cache_hits_total", "Tokens found there.", s.prefix_hits);
  out.counter("num_preemptions_total", "Times that an answer gave its pages back and waited.", s.preemptions);
  out.counter("engine_steps_total", "Forward passes.", s.steps, false);
  out.family("request_success_total", "counter", "Answers that ended, by why.", true,
             {{"finished_reason=\"stop\"", static_cast<double>(s.finished_stop)},
              {"finished_reason=\"length\"", static_cast<double>(s.finished_length)},
              {"finished_reason=\"abort\"", static_cast<double>(s.cancelled + s.failed)}});
  out.counter("spec_decode_num_drafts_total", "Rounds of speculation.", s.draft_rounds);
  out.counter("spec_decode_num_draft_tokens_total", "Tokens proposed.", s.drafted);
  out.counter("spec_decode_num_accepted_tokens_total", "Proposed tokens that were right.", s.accepted);
  const auto of_adapters = [&](const char* name, const char* kind, const char* help,
                               std::int64_t ServingStatistics::Adapter::*figure) {
    std::vector<std::pair<std::string, double>> values;
    for (const ServingStatistics::Adapter& adapter : s.adapters)
      values.emplace_back(prometheus_label("lora_name", adapter.name), static_cast<double>(adapter.*figure));
    out.family(name, kind, help, false, values);
  };
  of_adapters("lora_requests_unfinished", "gauge", "Answers that an adapter is writing, or will.",
              &ServingStatistics::Adapter::unfinished);
  of_adapters("lora_requests_total", "counter", "Requests that an adapter has taken since it was loaded.",
              &ServingStatistics::Adapter::requests);
  of_adapters("lora_bytes", "gauge", "Memory of an adapter's matrices.", &ServingStatistics::Adapter::bytes);
  std::vector<std::pair<std::string, double>> places;
  for (std::size_t i = 0; i < s.accepted_at.size(); ++i)
    places.emplace_back(fmt::format("position=\"{}\"", i), static_cast<double>(s.accepted_at[i]));
  out.family("spec_decode_num_accepted_tokens_per_pos_total", "counter",
             "Accepted tokens by their place in a round.", true, places);
  out.gauge("spec_decode_draft_tokens",
            "Tokens proposed per round at present; 0 when speculation is off or has turned itself off.",
            static_cast<double>(s.draft_tokens_now), false);
}

double seconds_of_now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// Adapters of which some answers, or none, are in the state that `counts` says: "one,two".
template <class Counts>
std::string adapter_names(const ServingStatistics& s, const Counts& counts) {
  std::string names;
  for (const ServingStatistics::Adapter& adapter : s.adapters)
    if (counts(adapter) > 0) names += (names.empty() ? "" : ",") + adapter.name;
  return names;
}

// What routers read that dashboards do not: the model server protocol of the Gateway API Inference Extension,
// and the names that production-stack's router still asks for.
void write_for_routers(Exposition& out, const ServingStatistics& s, std::size_t max_loras) {
  using Adapter = ServingStatistics::Adapter;
  if (max_loras > 0)
    out.single("vllm:lora_requests_info", "gauge", "Adapters with answers, by name; the value is the time.",
               prometheus_label("max_lora", std::to_string(max_loras)) + "," +
                   prometheus_label("running_lora_adapters",
                                    adapter_names(s, [](const Adapter& one) { return one.running; })) +
                   "," +
                   prometheus_label(
                       "waiting_lora_adapters",
                       adapter_names(s, [](const Adapter& one) { return one.unfinished - one.running; })),
               seconds_of_now());
  out.single("vllm:cache_config_info", "gauge", "The KV cache: tokens of a block, and blocks.",
             prometheus_label("block_size", std::to_string(s.kv_block_size)) + "," +
                 prometheus_label("num_gpu_blocks", std::to_string(s.kv_blocks_total)) + ",engine=\"0\"",
             1);
  out.single("vllm:gpu_cache_usage_perc", "gauge", "vllm:kv_cache_usage_perc by its retired name.",
             out.vllm_labels(), share(s.kv_blocks_used, s.kv_blocks_total));
  out.single("vllm:gpu_prefix_cache_queries_total", "counter",
             "vllm:prefix_cache_queries_total by its retired name.", out.vllm_labels(),
             static_cast<double>(s.prefix_queries));
  out.single("vllm:gpu_prefix_cache_hits_total", "counter",
             "vllm:prefix_cache_hits_total by its retired name.", out.vllm_labels(),
             static_cast<double>(s.prefix_hits));
}

void write_probe(Exposition& out, const ProbeFigures& probe) {
  out.family("quality_probes_total", "counter", "Probes of quality, by how they ended.", false,
             {{"result=\"scored\"", static_cast<double>(probe.scored)},
              {"result=\"skipped\"", static_cast<double>(probe.skipped)},
              {"result=\"failed\"", static_cast<double>(probe.failed)}});
  if (probe.mean_log_prob) {
    out.gauge("quality_probe_mean_log_prob",
              "Mean log probability of a fixed text's tokens, in nats, by the last probe.",
              *probe.mean_log_prob, false);
    out.gauge("quality_probe_perplexity", "Perplexity of the same.", std::exp(-*probe.mean_log_prob), false);
    out.gauge("quality_probe_seconds", "From the start to the end of the last probe.", probe.seconds, false);
  }
  if (probe.baseline) {
    out.gauge("quality_probe_baseline_mean_log_prob", "What was recorded for it.", *probe.baseline, false);
    out.gauge("quality_probe_baseline_perplexity", "Perplexity of the same.", std::exp(-*probe.baseline),
              false);
  }
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value, std::int64_t times) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)] += times;
  sum_ += value * static_cast<double>(times);
}

std::int64_t Histogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

Metrics::Metrics(Options options)
    : options_(std::move(options)),
      ttft_(kFirstToken),
      inter_token_(kInterToken),
      queue_(kRequest),
      whole_(kRequest),
      prompt_(kTokens),
      generated_(kTokens) {}

void Metrics::engine(const ServingStatistics& now) {
  const std::lock_guard lock(mutex_);
  engine_ = now;
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  ttft_.observe(seconds);
}

void Metrics::more_tokens(double seconds, std::int64_t tokens) {
  if (tokens < 1) return;
  const std::lock_guard lock(mutex_);
  inter_token_.observe(seconds / static_cast<double>(tokens), tokens);
}

void Metrics::queued(double seconds) {
  const std::lock_guard lock(mutex_);
  queue_.observe(seconds);
}

void Metrics::finished(double seconds, std::int64_t prompt_tokens, std::int64_t generated_tokens) {
  const std::lock_guard lock(mutex_);
  whole_.observe(seconds);
  prompt_.observe(static_cast<double>(prompt_tokens));
  generated_.observe(static_cast<double>(generated_tokens));
}

void Metrics::http(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  ++http_[{path, status}];
}

void Metrics::probe(const ProbeFigures& now) {
  const std::lock_guard lock(mutex_);
  probe_ = now;
}

std::string Metrics::text(const HttpCounters& connections) const {
  const std::lock_guard lock(mutex_);
  Exposition out(options_.model, options_.vllm_names);
  write_engine(out, engine_);
  if (options_.vllm_names) write_for_routers(out, engine_, options_.max_loras);
  out.histogram("time_to_first_token_seconds", "From a request's arrival to its first token.", ttft_);
  out.histogram("inter_token_latency_seconds", "Between the tokens of an answer.", inter_token_);
  out.histogram("request_queue_time_seconds", "From a request's arrival to the first step that ran it.",
                queue_);
  out.histogram("e2e_request_latency_seconds", "From a request's arrival to the end of its answers.", whole_);
  out.histogram("request_prompt_tokens", "Tokens of a request's prompts.", prompt_);
  out.histogram("request_generation_tokens", "Tokens of a request's answers.", generated_);
  std::vector<std::pair<std::string, double>> answers;
  for (const auto& entry : http_)
    answers.emplace_back(fmt::format("path=\"{}\",status=\"{}\"", entry.first.first, entry.first.second),
                         static_cast<double>(entry.second));
  out.family("http_requests_total", "counter", "Answers of the HTTP server.", false, answers);
  out.gauge("http_connections", "Open connections.", static_cast<double>(connections.connections), false);
  out.counter("http_connections_evicted_total", "Quiet connections closed to make room.", connections.evicted,
              false);
  out.counter("http_connections_refused_total",
              "Connections refused because all others waited for an answer.", connections.refused, false);
  out.counter("http_timeouts_total", "Connections that a deadline ended.", connections.timed_out, false);
  if (probe_) write_probe(out, *probe_);
  out.plain("process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
  return out.take();
}

}  // namespace llmq
