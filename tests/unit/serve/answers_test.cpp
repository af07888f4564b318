// From events of an engine to what a client reads, and the thread between: with an engine and a client that
// the tests play.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <utility>

#include "base/json.h"
#include "serve/completion_sink.h"
#include "tests/unit/serve/small_served_model.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::small_served_model;

class Client : public HttpResponder {
 public:
  void reply(HttpReply reply) override {
    status = reply.status;
    body = reply.body;
  }
  void open_stream(const std::string& content_type) override { type = content_type; }
  void write(std::string text) override { body += text; }
  void end() override { ended = true; }
  bool gone() const override { return false; }
  void when_gone(std::function<void()>) override {}
  int status = 0;
  std::string type, body;
  bool ended = false;
};

struct Answering {
  explicit Answering(CompletionSink::Asked asked)
      : sink(std::move(asked), small_served_model(), metrics, client) {
    sink.accepted(7);
  }
  void event(std::uint64_t id, int index, std::vector<std::int32_t> tokens, const std::string& text,
             std::optional<FinishReason> finish = {}, std::int64_t cached_tokens = 0) {
    GenerationEvent event;
    event.cached_tokens = cached_tokens;
    event.id = id;
    event.index = index;
    event.tokens = std::move(tokens);
    event.text = text;
    event.finish = finish;
    sink.event(event, std::chrono::steady_clock::now());
  }
  std::shared_ptr<Client> client = std::make_shared<Client>();
  Metrics metrics{{"m", false}};
  CompletionSink sink;
};

CompletionSink::Asked asked(bool chat, bool stream, std::vector<std::int64_t> prompts = {3}) {
  CompletionSink::Asked a;
  a.chat = chat;
  a.options.stream = stream;
  a.prompt_tokens = std::move(prompts);
  return a;
}

TEST(CompletionSink, SeveralPromptsAndAnswersKeepTheirPlaces) {
  CompletionSink::Asked a = asked(false, false, {3, 4});
  a.options.n = 2;
  Answering answering(a);
  answering.event(8, 1, {5}, "d", FinishReason::kStop);
  answering.event(7, 0, {5}, "a");
  answering.event(7, 1, {5}, "b", FinishReason::kStop);
  answering.event(8, 0, {5}, "c", FinishReason::kLength);
  EXPECT_EQ(answering.client->status, 0) << "one is not finished";
  answering.event(7, 0, {6, 7}, "A", FinishReason::kStop);
  const Json body = Json::parse(answering.client->body, "body");
  std::string texts;
  for (const Json& choice : body.at("choices").items())
    texts += choice.at("text").as_string() + " " + choice.at("finish_reason").as_string() + ",";
  EXPECT_EQ(texts, "aA stop,b stop,c length,d stop,");
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), Json(7));
  EXPECT_EQ(body.at("usage").at("completion_tokens"), Json(6));
}

// As prompt_tokens are: of each prompt once, however many answers it has and however often an answer is told.
TEST(CompletionSink, CachedTokensAreTheSumOverPrompts) {
  CompletionSink::Asked a = asked(false, false, {30, 40});
  a.options.n = 2;
  Answering answering(a);
  answering.event(7, 0, {5}, "a", {}, 16);
  answering.event(7, 0, {5}, "A", FinishReason::kStop, 16);
  answering.event(7, 1, {5}, "b", FinishReason::kStop, 16);
  answering.event(8, 1, {5}, "d", FinishReason::kStop, 32);
  answering.event(8, 0, {5}, "c", FinishReason::kStop, 32);
  EXPECT_EQ(
      Json::parse(answering.client->body, "body").at("usage").at("prompt_tokens_details").at("cached_tokens"),
      Json(48));
}

TEST(CompletionSink, StreamsCallsAsTheLastChunk) {
  CompletionSink::Asked a = asked(true, true);
  a.tools = {"f"};
  a.options.include_usage = true;
  Answering answering(a);
  EXPECT_EQ(answering.client->type, "text/event-stream");
  answering.event(7, 0, {1}, "Wait.");
  answering.event(7, 0, {1}, " <tool_call>{\"name\": \"f\", \"argu");
  answering.event(7, 0, {1}, "ments\": {\"x\": 1}}</tool_call>", FinishReason::kStop);
  const std::string& body = answering.client->body;
  EXPECT_THAT(body, HasSubstr(R"("delta":{"content":"Wait."})"));
  EXPECT_THAT(
      body,
      HasSubstr(
          R"("function":{"name":"f","arguments":"{\"x\":1}"}}]},"logprobs":null,"finish_reason":"tool_calls")"));
  EXPECT_THAT(body, Not(HasSubstr("<tool_call>")));
  EXPECT_THAT(body, HasSubstr(R"("choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3)"));
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(answering.client->ended);
}

// The chunks of a stream but for [DONE]: index of the answer (-1: none) and usage.
std::vector<std::pair<std::int64_t, std::string>> usages(const std::string& stream) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (std::size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; ++at) {
    const Json chunk = Json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6), "chunk");
    const Json::Array& choices = chunk.at("choices").items();
    const Json* usage = chunk.find("usage");
    std::string words = usage ? "null" : "none";
    if (usage && !usage->is_null())
      words =
          fmt::format("{}+{}={}", usage->at("prompt_tokens").as_integer(),
                      usage->at("completion_tokens").as_integer(), usage->at("total_tokens").as_integer());
    found.emplace_back(choices.empty() ? -1 : choices[0].at("index").as_integer(), words);
  }
  return found;
}

TEST(CompletionSink, UsageIsToldInEveryChunkWhereItIsAsked) {
  const auto told = [](bool chat, bool at_the_end, bool always) {
    CompletionSink::Asked a =
        asked(chat, true, chat ? std::vector<std::int64_t>{3} : std::vector<std::int64_t>{3, 5});
    a.options.include_usage = at_the_end;
    a.options.continuous_usage = always;
    Answering answering(a);
    answering.event(7, 0, {1}, "a");
    answering.event(7, 0, {1}, "");  // a part of a character
    answering.event(7, 0, {1, 2}, "b", FinishReason::kStop);
    if (!chat) answering.event(8, 0, {1}, "c", FinishReason::kLength);
    return usages(answering.client->body);
  };
  using Told = std::pair<std::int64_t, std::string>;
  EXPECT_THAT(told(false, true, true), ElementsAre(Told{0, "3+1=4"}, Told{0, "3+2=5"}, Told{0, "3+4=7"},
                                                   Told{1, "5+1=6"}, Told{-1, "8+5=13"}));
  EXPECT_THAT(told(true, true, true), ElementsAre(Told{0, "3+0=3"}, Told{0, "3+1=4"}, Told{0, "3+2=5"},
                                                  Told{0, "3+4=7"}, Told{-1, "3+4=7"}));
  EXPECT_THAT(told(true, false, true),
              ElementsAre(Told{0, "3+0=3"}, Told{0, "3+1=4"}, Told{0, "3+2=5"}, Told{0, "3+4=7"}));
  EXPECT_THAT(told(true, true, false),
              ElementsAre(Told{0, "null"}, Told{0, "null"}, Told{0, "null"}, Told{-1, "3+4=7"}));
  EXPECT_THAT(told(true, false, false), ElementsAre(Told{0, "none"}, Told{0, "none"}, Told{0, "none"}));
}

TEST(CompletionSink, AFailedModelIsSaidInTheStream) {
  Answering answering(asked(false, true));
  answering.event(7, 0, {1}, "a");
  answering.sink.failed("the device is gone");
  EXPECT_THAT(answering.client->body, HasSubstr(R"(data: {"error":{"message":)"));
  EXPECT_THAT(answering.client->body, Not(HasSubstr("device"))) << "the reason is for the log";
  EXPECT_TRUE(answering.client->ended);
}

TEST(CompletionSink, RefusalsHaveTheirStatus) {
  const auto status = [](GenerationRefusal::Kind kind) {
    Metrics metrics({"m", false});
    const auto client = std::make_shared<Client>();
    CompletionSink(asked(false, true), small_served_model(), metrics, client).refused({kind, "top_p", "no"});
    return client->status;
  };
  EXPECT_EQ(status(GenerationRefusal::Kind::kBusy), 429);
  EXPECT_EQ(status(GenerationRefusal::Kind::kTooLong), 400);
  EXPECT_EQ(status(GenerationRefusal::Kind::kInvalid), 400);
  EXPECT_EQ(status(GenerationRefusal::Kind::kUnknownModel), 404);
}

// What happened, in order: submissions, cancellations and steps.
class PlayedEngine : public RequestEngine {
 public:
  std::optional<GenerationRefusal> submit(GenerationRequest request) override {
    if (request.prompt.empty())
      return GenerationRefusal{GenerationRefusal::Kind::kInvalid, "prompt", "is empty"};
    log.push_back(fmt::format("submit {}", request.id));
    fresh.push_back(request.id);
    live.push_back(request.id);
    return std::nullopt;
  }
  void cancel(std::uint64_t id) override {
    log.push_back(fmt::format("cancel {}", id));
    if (std::erase(live, id) != 0) gone.push_back(id);
  }
  const std::vector<GenerationEvent>& step() override {
    {
      std::unique_lock lock(mutex);
      wake.wait_for(lock, std::chrono::seconds(20), [this] { return steps_allowed > 0; });
      --steps_allowed;
    }
    log.push_back("step");
    if (fails) throw std::runtime_error("the device is gone");
    events.clear();
    begun = std::exchange(fresh, {});
    for (const std::uint64_t id : gone) add(id, FinishReason::kCancelled);
    gone.clear();
    for (const std::uint64_t id : live) add(id, {});
    return events;
  }
  const std::vector<std::uint64_t>& started() const override { return begun; }
  bool idle() const override { return live.empty() && gone.empty(); }
  const ServingStatistics& statistics() override { return none; }
  void load_adapter(const std::string& name, const LoraAdapter&) override { log.push_back("load " + name); }
  void unload_adapter(const std::string& name) override { log.push_back("unload " + name); }

  void allow(int steps) {
    const std::lock_guard lock(mutex);
    steps_allowed += steps;
    wake.notify_all();
  }
  void add(std::uint64_t id, std::optional<FinishReason> finish) {
    GenerationEvent& event = events.emplace_back();
    event.id = id;
    event.finish = finish;
  }
  std::vector<std::string> log;
  std::vector<std::uint64_t> live, gone, fresh, begun;
  std::vector<GenerationEvent> events;
  ServingStatistics none;
  std::mutex mutex;
  std::condition_variable wake;
  int steps_allowed = 0;
  bool fails = false;
};

// Keeps what it was told, and lets a test wait for it.
class Told : public GenerationSink {
 public:
  void accepted(std::uint64_t first) override { say(fmt::format("accepted {}", first)); }
  void refused(const GenerationRefusal& refusal) override { say("refused " + refusal.field); }
  void started(std::uint64_t id, Time) override { say(fmt::format("started {}", id)); }
  void event(const GenerationEvent& event, Time) override {
    say(fmt::format("event {}{}", event.id, event.finish ? " end" : ""));
  }
  void failed(const std::string& message) override { say("failed " + message); }
  std::string next() {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_for(lock, std::chrono::seconds(20), [this] { return !said_.empty(); })) return "nothing";
    std::string first = said_.front();
    said_.pop_front();
    return first;
  }

 private:
  void say(const std::string& words) {
    const std::lock_guard lock(mutex_);
    said_.push_back(words);
    wake_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> said_;
};

GenerationRequest request(bool empty = false) {
  GenerationRequest r;
  if (!empty) r.prompt = {1};
  return r;
}

TEST(EngineThread, CancelsBeforeTheNextStep) {
  Metrics metrics({"m", false});
  PlayedEngine engine;
  const auto told = std::make_shared<Told>();
  std::vector<std::string> log;
  {
    EngineThread thread(engine, 10, metrics, [](const std::string&) {});
    const std::uint64_t first = thread.submit({request(), request()}, told);
    EXPECT_EQ(told->next(), "accepted 1");
    engine.allow(1);
    EXPECT_EQ(told->next(), "started 1");
    EXPECT_EQ(told->next(), "started 2");
    EXPECT_EQ(told->next(), "event 1");
    EXPECT_EQ(told->next(), "event 2");
    // The thread is in a step, or about to begin one: the cancellation comes before the one after it.
    thread.cancel(first, 1);
    engine.allow(2);
    int more = 0;
    for (std::string said; (said = told->next()) != "event 1 end";) {
      ASSERT_NE(said, "nothing");
      if (said == "event 1") ++more;
    }
    EXPECT_LE(more, 1);
    thread.cancel(first + 1, 1);
    engine.allow(10);
    for (std::string said; (said = told->next()) != "event 2 end";) ASSERT_NE(said, "nothing");
    log = engine.log;
  }
  EXPECT_EQ(std::count(log.begin(), log.end(), "cancel 1"), 1);
}

TEST(EngineThread, AGroupIsTakenOrRefusedWhole) {
  Metrics metrics({"m", false});
  PlayedEngine engine;
  engine.allow(1'000'000'000);  // it steps until the cancellation
  const auto told = std::make_shared<Told>();
  EngineThread thread(engine, 2, metrics, [](const std::string&) {});
  thread.submit({request(), request(true)}, told);
  EXPECT_EQ(told->next(), "refused prompt");
  EXPECT_EQ(thread.submit({request(), request(), request()}, told), EngineThread::kRefused)
      << "more than the queue holds";
  thread.submit({request()}, told);
  EXPECT_EQ(told->next(), "accepted 3") << "nothing was said of the request that was taken back";
  thread.cancel(3, 1);
}

TEST(EngineThread, AFailureIsToldToAllAndEndsIt) {
  Metrics metrics({"m", false});
  PlayedEngine engine;
  engine.fails = true;
  const auto told = std::make_shared<Told>();
  std::promise<std::string> failure;
  EngineThread thread(engine, 10, metrics, [&](const std::string& message) { failure.set_value(message); });
  thread.submit({request(), request()}, told);
  EXPECT_EQ(told->next(), "accepted 1");
  engine.allow(1);
  EXPECT_EQ(told->next(), "failed the device is gone");
  EXPECT_EQ(failure.get_future().get(), "the device is gone");
  EXPECT_EQ(thread.submit({request()}, told), EngineThread::kRefused);
}

}  // namespace
}  // namespace llmq
