#include "evaluate/load_drive.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "base/json.h"
#include "base/seconds_since.h"
#include "evaluate/completion_stream.h"
#include "http/durations.h"
#include "http/event_stream.h"

namespace llmq {
namespace {

using Time = HttpReader::Time;
constexpr std::size_t kErrorBytes = 4096;

// One answer: fills in its trace, and tells when it is over.
class AnswerReader : public HttpReader {
 public:
  AnswerReader(RequestTrace& trace, Time start, std::function<void()> over)
      : trace_(trace), start_(start), over_(std::move(over)) {}

  void head(int status, const std::string& content_type) override {
    status_ = status;
    stream_ = content_type.starts_with("text/event-stream");
  }

  bool body(std::string_view piece, Time read) override {
    if (status_ != 200 || !stream_) {
      words_ += piece.substr(0, kErrorBytes - words_.size());
      return true;
    }
    bool delivers = false;
    try {
      events_.feed(piece, [&](const std::string& data) { delivers = take(data) || delivers; });
    } catch (const Error& error) {
      finish(read, error.detail().message);
      return false;
    }
    if (delivers) trace_.pieces.push_back(since_start(read));
    return true;
  }

  void done(Time read) override {
    if (status_ != 200) return finish(read, fmt::format("status {}: {}", status_, error_words(words_)));
    if (!stream_) return finish(read, "no stream came back: " + error_words(words_));
    if (!ended_) return finish(read, "the stream ended before the answer did");
    if (trace_.pieces.empty()) return finish(read, "the answer has no token");
    finish(read, {});
  }

  void failed(const std::string& why) override { finish(std::chrono::steady_clock::now(), why); }

 private:
  bool take(const std::string& data) {
    const StreamPart part = read_stream_event(data);
    ended_ = ended_ || part.ends;
    delivered_ += part.delivers;
    if (part.usage) usage_ = part.usage;
    // The end alone is a piece of an answer that had none: its one token gave no text.
    return part.delivers || (part.ends && data != "[DONE]" && trace_.pieces.empty());
  }

  void finish(Time now, std::string error) {
    trace_.end = since_start(now);
    trace_.error = std::move(error);
    trace_.prompt_tokens = usage_ ? usage_->prompt_tokens : 0;
    trace_.new_tokens = std::min(usage_ ? usage_->completion_tokens : delivered_, trace_.asked_tokens);
    over_();
  }

  double since_start(Time time) const { return seconds_between(start_, time); }

  RequestTrace& trace_;
  Time start_;
  std::function<void()> over_;
  EventStream events_;
  int status_ = 0;
  bool stream_ = false, ended_ = false;
  std::int64_t delivered_ = 0;
  std::string words_;
  std::optional<StreamUsage> usage_;
};

class Drive {
 public:
  Drive(HttpClient& client, const LoadTarget& target, std::span<const PlannedRequest> plan,
        const LoadPace& pace)
      : client_(client),
        target_(target),
        plan_(plan),
        pace_(pace),
        traces_(plan.size()),
        start_(std::chrono::steady_clock::now()) {}

  std::vector<RequestTrace> run(const std::function<void()>& check) {
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      if (pace_.at_once) {
        arrived_.push_back(i);
        continue;
      }
      client_.at(start_ + as_duration(plan_[i].arrival), [this, i] {
        arrived_.push_back(i);
        send_more();
      });
    }
    send_more();
    client_.run(check);
    return std::move(traces_);
  }

 private:
  void send_more() {
    if (pace_.static_batches && under_way_ > 0) return;
    std::int64_t longest = 0;  // of a static batch
    for (std::size_t i = 0;
         pace_.static_batches && i < std::min(arrived_.size(), static_cast<std::size_t>(pace_.clients)); ++i)
      longest = std::max(longest, plan_[arrived_[i]].new_tokens);
    while (under_way_ < pace_.clients && !arrived_.empty()) {
      const std::size_t i = arrived_.front();
      arrived_.pop_front();
      ++under_way_;
      RequestTrace& trace = traces_[i];
      trace.asked_tokens = plan_[i].new_tokens;
      trace.from = pace_.at_once ? seconds_since(start_) : plan_[i].arrival;
      client_.call({"POST", "/v1/completions", body_of(plan_[i], std::max(plan_[i].new_tokens, longest)),
                    target_.authorization},
                   std::make_shared<AnswerReader>(trace, start_, [this] {
                     --under_way_;
                     send_more();
                   }));
    }
  }

  std::string body_of(const PlannedRequest& request, std::int64_t tokens) const {
    Json body = Json::object({{"model", target_.model},
                              {"prompt", request.prompt},
                              {"max_tokens", tokens},
                              {"temperature", 0},
                              {"stream", true}});
    body["stream_options"] = Json::object({{"include_usage", true}});
    if (target_.ignore_eos) body["ignore_eos"] = true;
    return body.dump();
  }

  HttpClient& client_;
  const LoadTarget& target_;
  std::span<const PlannedRequest> plan_;
  LoadPace pace_;
  std::vector<RequestTrace> traces_;
  Time start_;
  std::deque<std::size_t> arrived_;
  std::int64_t under_way_ = 0;
};

// "name{labels} 12" or "name 12": the sum over labels.
std::optional<double> sample_of(const std::string& metrics, const std::string& name) {
  std::optional<double> sum;
  for (std::size_t at = 0; at < metrics.size();) {
    const std::size_t end = std::min(metrics.find('\n', at), metrics.size());
    const std::string_view line = std::string_view(metrics).substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name) || line.size() == name.size() ||
        (line[name.size()] != '{' && line[name.size()] != ' '))
      continue;
    const std::size_t blank = line.rfind(' ');
    double value = 0;
    const auto read = std::from_chars(line.data() + blank + 1, line.data() + line.size(), value);
    if (read.ec == std::errc() && std::isfinite(value)) sum = sum.value_or(0) + value;
  }
  return sum;
}

}  // namespace

std::vector<RequestTrace> drive_load(HttpClient& client, const LoadTarget& target,
                                     std::span<const PlannedRequest> plan, const LoadPace& pace,
                                     const std::function<void()>& check) {
  return Drive(client, target, plan, pace).run(check);
}

std::string first_model(HttpClient& client, const std::string& authorization) {
  const HttpText answer = ask(client, {"GET", "/v1/models", {}, authorization});
  if (answer.status != 200)
    fail(ErrorKind::kBadInput, "/v1/models answers with status {}: {}", answer.status,
         error_words(answer.body));
  try {
    return Json::parse(answer.body, "/v1/models", {1u << 20, 32})
        .at("data")
        .items()
        .at(0)
        .at("id")
        .as_string();
  } catch (const std::exception&) {  // not JSON, another kind, or an empty list
    fail(ErrorKind::kBadInput, "/v1/models names no model: {}", error_words(answer.body));
  }
}

ServerCounters read_counters(const std::string& metrics) {
  ServerCounters counters;
  const auto read = [&](const char* name, double& value) {
    for (const char* prefix : {"llmq_", "vllm:"})
      if (const std::optional<double> found = sample_of(metrics, std::string(prefix) + name)) {
        counters.found = true;
        value = *found;
        return;
      }
  };
  read("spec_decode_num_draft_tokens_total", counters.drafted);
  read("spec_decode_num_accepted_tokens_total", counters.accepted);
  read("prefix_cache_queries_total", counters.prefix_queries);
  read("prefix_cache_hits_total", counters.prefix_hits);
  return counters;
}

ServerCounters server_counters(HttpClient& client, const std::string& authorization) {
  const HttpText answer = ask(client, {"GET", "/metrics", {}, authorization});
  return answer.status == 200 ? read_counters(answer.body) : ServerCounters{};
}

}  // namespace llmq
