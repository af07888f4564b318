#include "serve/quality_probe.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/parent_path.h"
#include "base/seconds_since.h"
#include "base/sha256.h"

namespace llmq {
namespace {

constexpr char kSchema[] = "llmq.probe/1";

// Prose, an explanation, code and figures, talk: written for this, and never to be changed, because baselines
// are of them.
constexpr std::array<const char*, 4> kTexts = {
    "The old ferry left the harbour a little after six. Nobody on deck spoke much; the sea was grey and "
    "quite still, and the only sound was the slow beat of the "
    "engine. By the time the sun came up, the town behind them had become a thin white line, and then "
    "nothing at all.",
    "Water boils when the pressure of its vapour equals the pressure of the air around it. High in the "
    "mountains the air is thinner, so water boils at a lower "
    "temperature, and it takes longer to cook rice or potatoes there than it does at the coast.",
    "def mean(values):\n    if not values:\n        raise ValueError(\"no values\")\n    total = 0.0\n    "
    "for value in values:\n        total += value\n    return total / len(values)\n\n"
    "# mean([1, 2, 3, 4]) == 2.5\n{\"name\": \"sensor-7\", \"unit\": \"celsius\", \"readings\": [18.2, 18.4, "
    "18.9]}\n",
    "User: My train was cancelled and I have to be in Berlin before noon. What can I do?\nAssistant: I am "
    "sorry to hear that. First, ask at the counter whether your "
    "ticket is valid on the next fast train. If it is not, you can ask for your money back and take the bus, "
    "which leaves every hour."};

class ProbeSink : public GenerationSink {
 public:
  enum class End { kScored, kBusy, kFailed };
  struct Outcome {
    End end = End::kFailed;
    double sum = 0;  // of log probabilities
    std::string failure;
  };
  void accepted(std::uint64_t) override {}
  void refused(const GenerationRefusal& refusal) override {
    finish(refusal.kind == GenerationRefusal::Kind::kBusy ? End::kBusy : End::kFailed, refusal.message);
  }
  void started(std::uint64_t, Time) override {}
  void event(const GenerationEvent& event, Time) override {
    for (const TokenLogprobs& token : event.prompt_logprobs) sum_ += token.chosen.logprob;
    if (event.finish)
      finish(std::isfinite(sum_) ? End::kScored : End::kFailed, "the model's logits are no numbers");
  }
  void failed(const std::string& message) override { finish(End::kFailed, message); }

  // Nothing where it was stopped before there is an outcome.
  std::optional<Outcome> wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, stop, [this] { return outcome_.has_value(); });
    return outcome_;
  }

 private:
  void finish(End end, const std::string& failure) {
    {
      const std::lock_guard lock(mutex_);
      outcome_ = Outcome{end, sum_, failure};
    }
    wake_.notify_all();
  }
  double sum_ = 0;  // the engine's thread alone
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::optional<Outcome> outcome_;
};

}  // namespace

std::optional<ProbeBaseline> read_probe_baseline(Io& io, const Path& path) {
  if (!io.exists(path)) {
    const Path folder = parent_of(path);
    if (!io.is_directory(folder))
      fail(ErrorKind::kUsage, {"there is no directory for the baseline", path.string(), "--probe-baseline",
                               "create it, or name another file"});
    return std::nullopt;
  }
  const Json json = Json::parse(read_text(io, path, 1u << 20), path.string());
  const Json* schema = json.find("schema");
  if (!schema || *schema != Json(kSchema))
    fail(ErrorKind::kBadInput,
         {fmt::format("this is no baseline of a probe: its schema is not '{}'", kSchema), path.string(),
          "--probe-baseline", "name a file that does not exist, and the first probe is recorded there"});
  ProbeBaseline baseline{json.at("model").as_string(), json.at("tokens_sha256").as_string(),
                         json.at("tokens").as_integer(), json.at("mean_log_prob").as_double()};
  if (!(baseline.mean_log_prob <= 0) || baseline.tokens < 1)
    fail(ErrorKind::kBadInput, {fmt::format("{} nats over {} tokens are no mean log probability",
                                            baseline.mean_log_prob, baseline.tokens),
                                path.string(), "mean_log_prob", "record it anew"});
  return baseline;
}

void write_probe_baseline(Io& io, const Path& path, const ProbeBaseline& baseline) {
  const Json json = Json::object({{"schema", kSchema},
                                  {"model", baseline.model},
                                  {"tokens", baseline.tokens},
                                  {"tokens_sha256", baseline.tokens_sha256},
                                  {"mean_log_prob", baseline.mean_log_prob},
                                  {"perplexity", std::exp(-baseline.mean_log_prob)}});
  write_text_atomically(io, path, json.dump(2) + "\n");
}

QualityProbe::QualityProbe(ProbeOptions options, const ServedModel& model, EngineThread& engine,
                           Metrics& metrics)
    : options_(std::move(options)), engine_(engine), metrics_(metrics) {
  Sha256 hash;
  for (const char* text : kTexts) {
    std::vector<std::int32_t> ids = model.tokenizer.encode(text, true);
    // a token is written behind them
    ids.resize(std::min<std::size_t>(ids.size(), static_cast<std::size_t>(model.max_model_len - 1)));
    if (ids.size() < 2) continue;
    found_.tokens += static_cast<std::int64_t>(ids.size()) - 1;
    hash.update(std::as_bytes(std::span(ids)));
    hash.update("|");
    texts_.push_back(std::move(ids));
  }
  if (texts_.empty())
    fail(ErrorKind::kUsage,
         {fmt::format("a context of {} tokens holds no text that could be scored", model.max_model_len),
          {},
          "--probe-interval",
          "leave it out"});
  found_.model = model.name;
  found_.tokens_sha256 = hash.hex();
  if (const auto& baseline = options_.baseline) {
    if (baseline->tokens_sha256 != found_.tokens_sha256)
      fail(ErrorKind::kBadInput, {fmt::format("the baseline of '{}' is of other tokens: of another "
                                              "tokenizer, a shorter context or another version of llmq",
                                              baseline->model),
                                  options_.baseline_file, "tokens_sha256",
                                  "name a file that does not exist, and the first probe is recorded there"});
    figures_.baseline = baseline->mean_log_prob;
  }
  metrics_.probe(figures_);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

QualityProbe::~QualityProbe() = default;  // the thread is the last member: it is stopped and waited for first

void QualityProbe::run(const std::stop_token& stop) {
  while (probe(stop)) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, std::chrono::duration<double>(options_.interval_seconds),
                   [] { return false; });
    if (stop.stop_requested()) return;
  }
}

bool QualityProbe::probe(const std::stop_token& stop) {
  const auto begun = std::chrono::steady_clock::now();
  double sum = 0;
  for (const std::vector<std::int32_t>& ids : texts_) {
    GenerationRequest request;
    request.prompt = ids;
    request.max_tokens = 1;
    request.prompt_logprobs = 0;
    request.priority = Scheduler::kPriorities;
    request.background = true;
    const auto sink = std::make_shared<ProbeSink>();
    std::vector<GenerationRequest> group;
    group.push_back(std::move(request));
    std::optional<ProbeSink::Outcome> outcome = ProbeSink::Outcome{ProbeSink::End::kBusy, 0, {}};
    if (engine_.submit(std::move(group), sink) != EngineThread::kRefused) outcome = sink->wait(stop);
    if (!outcome) return false;
    if (outcome->end != ProbeSink::End::kScored) {
      const bool busy = outcome->end == ProbeSink::End::kBusy;
      ++(busy ? figures_.skipped : figures_.failed);
      metrics_.probe(figures_);
      if (!busy) Log::get().warn("the probe of quality failed: " + outcome->failure);
      return !stop.stop_requested();
    }
    sum += outcome->sum;
  }
  scored(sum / static_cast<double>(found_.tokens), seconds_since(begun));
  return true;
}

void QualityProbe::scored(double mean_log_prob, double seconds) {
  ++figures_.scored;
  figures_.mean_log_prob = mean_log_prob;
  figures_.seconds = seconds;
  if (!figures_.baseline && !options_.baseline_file.empty()) {
    figures_.baseline = found_.mean_log_prob = mean_log_prob;
    try {
      write_probe_baseline(system_io(), options_.baseline_file, found_);
      Log::get().note(fmt::format(
          "the first probe ({:.6f} nats a token over {} tokens) is recorded as the baseline in {}",
          mean_log_prob, found_.tokens, options_.baseline_file));
    } catch (const Error& error) {
      Log::get().warn("the baseline of the probe is not recorded: " + error.detail().message);
    }
  }
  metrics_.probe(figures_);
}

}  // namespace llmq
