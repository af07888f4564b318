// From what the engine says of a request to what its client reads: a whole body, or a stream of chunks.
#pragma once
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/disk/trace_file.h"
#include "http/exchange.h"
#include "serve/api_error.h"
#include "serve/completion_response.h"
#include "serve/engine_thread.h"
#include "serve/requests/completion_request.h"
#include "serve/served_model.h"
#include "serve/tool_calls.h"

namespace llmq {

class CompletionSink : public GenerationSink {
 public:
  struct Asked {
    bool chat = false;
    AnswerOptions options;
    std::vector<std::int64_t> prompt_tokens;  // of each prompt
    std::vector<std::string> echoes;          // texts that answers begin with, one for each prompt, or none
    std::vector<std::int32_t> first_tokens;   // of the prompts, where their log probabilities are told, too
    std::vector<std::string> tools;
    Time received;
    bool one_call = false;
    std::string adapter = {};   // that answers; empty: the model alone
    std::string id = {};        // of the request
    Json log_fields = {};       // what each line of the log says of it
    TraceContext trace = {};    // that it belongs to
    bool prompt_alone = false;  // nothing is told of what follows it
  };
  // `model` and `metrics` live longer.
  CompletionSink(Asked asked, const ServedModel& model, Metrics& metrics,
                 std::shared_ptr<HttpResponder> answer);

  void accepted(std::uint64_t first) override;
  void refused(const GenerationRefusal& refusal) override;
  void started(std::uint64_t id, Time now) override;
  void event(const GenerationEvent& event, Time now) override;
  void failed(const std::string& message) override;

 private:
  struct Choice {
    Choice(const std::vector<std::string>& tools, bool one_call) : calls(tools, one_call) {}
    CompletionPart whole;  // where nothing is streamed
    ToolCallReader calls;
    std::int64_t characters = 0;
    Usage usage;  // so far
    bool begun = false, finished = false, prompt_told = false;
    Time last;
  };
  void tell(const GenerationEvent& event, Time now);
  CompletionPart part_of(Choice& choice, const GenerationEvent& event);
  std::vector<ScoredToken> scored(const std::vector<TokenLogprobs>& logprobs) const;
  void tell_prompt(Choice& choice, const GenerationEvent& event, CompletionPart& part) const;
  void measure(Choice& choice, const GenerationEvent& event, Time now);
  void send(const Choice& choice, const CompletionPart& part);
  void write_chunk(const Choice& choice, Json chunk);
  void finish(Time now);
  void log_end(double seconds) const;
  void trace_end(double seconds, const std::string& failure) const;
  void end_with(const ApiError& error);

  Asked asked_;
  const ServedModel& model_;
  Metrics& metrics_;
  std::shared_ptr<HttpResponder> answer_;
  CompletionHead head_;
  Usage usage_;
  std::vector<Choice> choices_;
  std::uint64_t first_ = 0;
  std::size_t unfinished_ = 0;
  double first_token_seconds_ = 0, queue_seconds_ = 0;
  bool cancelled_ = false;
  std::set<std::string> reasons_;  // for which answers ended
  std::string failure_;            // of one of the answers: then all of them are an error
};

}  // namespace llmq
