// The load that a bench sends, the figures made of what came back, and both against servers that the tests
// play.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "evaluate/load_drive.h"
#include "evaluate/vllm_result.h"
#include "http/server.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

constexpr double kAtOnce = std::numeric_limits<double>::infinity();

TEST(LoadPlan, IsTheSameAgainAndKeepsItsBounds) {
  LoadMix mix;
  mix.requests = 2000;
  mix.prompt_words = 20;
  mix.new_tokens = 10;
  const std::vector<PlannedRequest> plan = plan_load(mix, kAtOnce), again = plan_load(mix, kAtOnce);
  std::set<std::int64_t> words, tokens;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].prompt, again[i].prompt);
    EXPECT_EQ(plan[i].arrival, 0);
    words.insert(std::count(plan[i].prompt.begin(), plan[i].prompt.end(), ' ') + 1);
    tokens.insert(plan[i].new_tokens);
  }
  EXPECT_EQ(*words.begin(), 11);
  EXPECT_EQ(*words.rbegin(), 29);
  EXPECT_EQ(words.size(), 19u);
  EXPECT_EQ(*tokens.begin(), 5);
  EXPECT_EQ(*tokens.rbegin(), 15);
}

TEST(LoadPlan, OtherWordsHaveTheSameLengths) {
  LoadMix mix, other;
  other.words_seed = 2;
  const std::vector<PlannedRequest> a = plan_load(mix, 3), b = plan_load(other, 3);
  std::set<std::string> prompts;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::count(a[i].prompt.begin(), a[i].prompt.end(), ' '),
              std::count(b[i].prompt.begin(), b[i].prompt.end(), ' '));
    EXPECT_EQ(a[i].new_tokens, b[i].new_tokens);
    EXPECT_EQ(a[i].arrival, b[i].arrival);
    prompts.insert(a[i].prompt.substr(0, 60));
    EXPECT_EQ(prompts.count(b[i].prompt.substr(0, 60)), 0u) << "found in a cache";
  }
}

// Exponential lengths about a mean that are cut on both sides: their own mean by the integral, within four
// standard errors.
TEST(LoadPlan, LongTailsAreExponentialAndCut) {
  LoadMix mix;
  mix.requests = 20000;
  mix.prompt_words = 4;
  mix.new_tokens = 50;
  mix.long_tail = true;
  double sum = 0, beyond = 0;
  std::int64_t least = 1000, most = 0;
  for (const PlannedRequest& request : plan_load(mix, kAtOnce)) {
    sum += static_cast<double>(request.new_tokens);
    beyond += request.new_tokens > 150;
    least = std::min(least, request.new_tokens);
    most = std::max(most, request.new_tokens);
  }
  EXPECT_EQ(least, 2);
  EXPECT_EQ(most, 8 * 50);
  const double n = 20000, tail = std::exp(-3.01);  // 150.5 and more are rounded up
  EXPECT_NEAR(sum / n, 50 * (1 - std::exp(-8.)), 4 * 50 / std::sqrt(n));
  EXPECT_NEAR(beyond, n * tail, 4 * std::sqrt(n * tail * (1 - tail)));
}

// The share that begins alike, and arrivals of a Poisson process: within four standard deviations.
TEST(LoadPlan, SharesAndRatesAreThoseAskedFor) {
  LoadMix mix;
  mix.requests = 4000;
  const double rate = 8;
  const std::vector<PlannedRequest> plan = plan_load(mix, rate);
  std::map<std::string, int> beginnings;
  double last = 0, long_gaps = 0;
  for (const PlannedRequest& request : plan) {
    ++beginnings[request.prompt.substr(0, 100)];
    EXPECT_GE(request.arrival, last);
    long_gaps += request.arrival - last > 1 / rate;
    last = request.arrival;
  }
  int alike = 0;
  for (const auto& beginning : beginnings) alike = std::max(alike, beginning.second);
  EXPECT_NEAR(alike, 1000, 4 * std::sqrt(4000 * 0.25 * 0.75));
  EXPECT_NEAR(last, 4000 / rate, 4 * std::sqrt(4000.) / rate);
  const double share = std::exp(-1.);
  EXPECT_NEAR(long_gaps, 4000 * share, 4 * std::sqrt(4000 * share * (1 - share)));
}

TEST(LoadResult, IsThatOfAHandMadeClock) {
  std::vector<RequestTrace> traces(5);
  traces[0] = {4, 0, 5, {1, 2, 4, 4.5}, 10, 4, ""};
  traces[1] = {4, 1, 10, {1.5, 3.5}, 20, 4, ""};  // two pieces, four tokens
  traces[2] = {4, 2, 8, {6}, 30, 1, ""};          // a short answer
  traces[3] = {4, 0, 99, {1}, 40, 1, "status 500: no"};
  traces[4] = {4, 0, 98, {}, 0, 0, "status 500: no"};
  const LoadResult result = summarize_load(traces);
  EXPECT_EQ(result.requests, 5);
  EXPECT_EQ(result.failed, 2);
  EXPECT_EQ(result.errors.at("status 500: no"), 2);
  EXPECT_EQ(result.short_answers, 1);
  EXPECT_EQ(result.prompt_tokens, 60);
  EXPECT_EQ(result.new_tokens, 9);
  EXPECT_DOUBLE_EQ(result.seconds, 10);
  EXPECT_DOUBLE_EQ(result.requests_per_second, 0.3);
  EXPECT_DOUBLE_EQ(result.tokens_per_second, 0.9);
  EXPECT_DOUBLE_EQ(result.ttft.p50, 1);  // of 0.5, 1, 4
  EXPECT_DOUBLE_EQ(result.ttft.p95, 4);
  EXPECT_DOUBLE_EQ(result.itl.p50, 1);  // of 0.5, 1, 2, 2
  EXPECT_DOUBLE_EQ(result.itl.p99, 2);
  EXPECT_DOUBLE_EQ(result.tpot.p50, 2. / 3);  // of 2/3 and 3.5/3
  EXPECT_DOUBLE_EQ(result.tpot.p95, 3.5 / 3);
}

TEST(LoadResult, OfManyIsTheNearestRank) {
  std::vector<RequestTrace> traces;
  for (int i = 200; i >= 1; --i) traces.push_back({1, 0, 1000, {static_cast<double>(i)}, 1, 1, ""});
  const LoadResult result = summarize_load(traces);
  EXPECT_EQ(result.ttft.p50, 100);
  EXPECT_EQ(result.ttft.p95, 190);
  EXPECT_EQ(result.ttft.p99, 198);
  EXPECT_EQ(summarize_load({}).ttft.p99, 0);
}

// Figures of numpy 2.4: mean, median, std and percentile 99 of [0.5, 1, 4].
TEST(LoadResult, SpreadsAreThoseOfNumpy) {
  const Spread spread = spread_of({4, 0.5, 1});
  EXPECT_NEAR(spread.mean, 1.8333333333333333, 1e-12);
  EXPECT_NEAR(spread.median, 1, 1e-12);
  EXPECT_NEAR(spread.deviation, 1.5456030825826175, 1e-12);
  EXPECT_NEAR(spread.p99, 3.94, 1e-12);
  EXPECT_NEAR(spread_of({1, 2}).median, 1.5, 1e-12) << "between two ranks";
  EXPECT_EQ(spread_of({}).p99, 0);
}

TEST(VllmResult, HasItsNamesAndItsUnits) {
  LoadReport report;
  report.model = "m";
  LoadRow& row = report.rows.emplace_back();
  row.clients = 4;
  row.rate = std::numeric_limits<double>::infinity();
  const std::vector<RequestTrace> traces = {{3, 1, 4, {2, 3, 4}, 20, 3, ""}, {3, 0, 9, {}, 0, 0, "no"}};
  row.result = summarize_load(traces);
  row.counters.drafted = 8;
  row.counters.accepted = 2;
  report.rows.push_back(row);
  report.rows.back().rate = 2.5;
  report.rows.back().counters = {};
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 10, now.tm_mday = 26, now.tm_hour = 3, now.tm_min = 4, now.tm_sec = 5;
  const std::string lines = vllm_result_lines(report, now);
  ASSERT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  const std::size_t end = lines.find('\n');
  EXPECT_EQ(
      lines.substr(0, end),
      R"({"date":"20261126-030405","endpoint_type":"openai","backend":"openai","label":null,)"
      R"("model_id":"m","tokenizer_id":"m","num_prompts":2,"request_rate":"inf","burstiness":1.0,)"
      R"("max_concurrency":4,"batching":"continuous","duration":4.0,"completed":1,"failed":1,)"
      R"("total_input_tokens":20,"total_output_tokens":3,"request_throughput":0.25,)"
      R"("request_goodput":null,"output_throughput":0.75,"total_token_throughput":5.75,)"
      R"("spec_decode_acceptance_rate":25.0,"spec_decode_draft_tokens":8,"spec_decode_accepted_tokens":2,)"
      R"("mean_ttft_ms":1000.0,"median_ttft_ms":1000.0,"std_ttft_ms":0.0,"p99_ttft_ms":1000.0,)"
      R"("mean_tpot_ms":1000.0,"median_tpot_ms":1000.0,"std_tpot_ms":0.0,"p99_tpot_ms":1000.0,)"
      R"("mean_itl_ms":1000.0,"median_itl_ms":1000.0,"std_itl_ms":0.0,"p99_itl_ms":1000.0,)"
      R"("mean_e2el_ms":3000.0,"median_e2el_ms":3000.0,"std_e2el_ms":0.0,"p99_e2el_ms":3000.0})");
  const Json second = Json::parse(lines.substr(end + 1), "second row");
  EXPECT_EQ(second.at("request_rate").as_double(), 2.5);
  EXPECT_EQ(second.find("spec_decode_acceptance_rate"), nullptr) << "nothing was proposed";
}

TEST(ServerCounters, AreReadByEitherName) {
  const ServerCounters ours = read_counters(
      "# HELP llmq_x y\nllmq_spec_decode_num_draft_tokens_total{model_name=\"a b\"} "
      "40\nllmq_spec_decode_num_accepted_tokens_total{m=\"a\"} 30\n");
  EXPECT_TRUE(ours.found);
  EXPECT_EQ(ours.drafted, 40);
  EXPECT_EQ(ours.accepted, 30);
  const ServerCounters theirs = read_counters(
      "vllm:prefix_cache_hits_total{engine=\"0\"} 1.5e1\nvllm:prefix_cache_hits_total{engine=\"1\"} "
      "2\nvllm:prefix_cache_hits_total_more 7\n");
  EXPECT_EQ(theirs.prefix_hits, 17);
  EXPECT_FALSE(
      read_counters("llmq_spec_decode_num_draft_tokens_total nan\nllmq_prefix_cache_hits_total x\n\n").found);
}

// A server that answers each completion by what a test says, and notes how many it had at once.
class Played {
 public:
  using Play = std::function<void(const Json& request, const std::shared_ptr<HttpResponder>& answer)>;
  explicit Played(Play play)
      : play_(std::move(play)), server_("127.0.0.1", 0, {}), thread_([this] {
          server_.run(
              [this](HttpRequest request, std::shared_ptr<HttpResponder> answer) { handle(request, answer); },
              5, [] {});
        }) {}
  ~Played() {
    server_.stop_soon();
    thread_.join();
  }
  HttpTarget target() const { return {"127.0.0.1", server_.port(), ""}; }
  std::vector<Json> bodies;  // looked at when the load is over

 private:
  void handle(const HttpRequest& request, const std::shared_ptr<HttpResponder>& answer) {
    const Json body = request.body.empty() ? Json(request.path) : Json::parse(request.body, "request");
    bodies.push_back(body);
    play_(body, answer);
  }
  Play play_;
  HttpServer server_;
  std::thread thread_;
};

void stream(const Json& request, HttpResponder& answer) {
  answer.open_stream("text/event-stream");
  const std::int64_t tokens = request.at("max_tokens").as_integer();
  for (std::int64_t i = 0; i < tokens; ++i)
    answer.write(std::string("data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":") +
                 (i + 1 == tokens ? "\"length\"" : "null") + "}]}\n\n");
  answer.write("data: " +
               Json::object({{"choices", Json::array()},
                             {"usage", Json::object({{"prompt_tokens", 7}, {"completion_tokens", tokens}})}})
                   .dump() +
               "\n\ndata: [DONE]\n\n");
  answer.end();
}

LoadMix few(std::int64_t requests) {
  LoadMix mix;
  mix.requests = requests;
  mix.prompt_words = 8;
  mix.new_tokens = 4;
  return mix;
}

TEST(DriveLoad, EveryRequestIsAnsweredAndCounted) {
  for (const double rate : {kAtOnce, 200.}) {
    Played server(
        [](const Json& request, const std::shared_ptr<HttpResponder>& answer) { stream(request, *answer); });
    HttpClient client(server.target(), {});
    const std::vector<PlannedRequest> plan = plan_load(few(30), rate);
    const std::vector<RequestTrace> traces =
        drive_load(client, {"m", "", true}, plan, {4, std::isinf(rate), false}, {});
    const LoadResult result = summarize_load(traces);
    EXPECT_EQ(result.failed, 0) << (result.errors.empty() ? "" : result.errors.begin()->first);
    EXPECT_EQ(result.short_answers, 0);
    EXPECT_EQ(result.prompt_tokens, 30 * 7);
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      tokens += plan[i].new_tokens;
      if (!std::isinf(rate)) {
        EXPECT_EQ(traces[i].from, plan[i].arrival);
      }
      EXPECT_GE(traces[i].pieces.front(), plan[i].arrival);
    }
    EXPECT_EQ(result.new_tokens, tokens);
    ASSERT_EQ(server.bodies.size(), 30u);
    EXPECT_TRUE(server.bodies[0].at("ignore_eos").as_bool());
    EXPECT_TRUE(server.bodies[0].at("stream_options").at("include_usage").as_bool());
  }
}

// Nobody is answered until four have asked and a moment has passed in which a fifth would be counted; with
// fewer clients that never comes.
TEST(DriveLoad, AsManyRequestsAtATimeAsClients) {
  std::mutex mutex;
  std::vector<std::pair<Json, std::shared_ptr<HttpResponder>>> waiting;
  std::size_t most = 0;
  bool open = false;
  std::thread opens;
  Played server([&](const Json& request, const std::shared_ptr<HttpResponder>& answer) {
    const std::lock_guard lock(mutex);
    if (open) return stream(request, *answer);
    waiting.emplace_back(request, answer);
    most = std::max(most, waiting.size());
    if (waiting.size() != 4) return;
    opens = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const std::lock_guard answering(mutex);
      open = true;
      for (const auto& one : waiting) stream(one.first, *one.second);
      waiting.clear();
    });
  });
  HttpClient client(server.target(), {});
  EXPECT_EQ(
      summarize_load(drive_load(client, {"m", "", true}, plan_load(few(24), kAtOnce), {4, true, false}, {}))
          .failed,
      0);
  EXPECT_EQ(most, 4u);
  opens.join();
}

// Of ten requests four run together, each for as long as the longest of the four, and no other begins before
// all are answered.
TEST(DriveLoad, StaticBatchesWaitForTheirLongest) {
  std::mutex mutex;
  std::vector<std::pair<Json, std::shared_ptr<HttpResponder>>> waiting;
  std::vector<std::size_t> batches;
  Played server([&](const Json& request, const std::shared_ptr<HttpResponder>& answer) {
    const std::lock_guard lock(mutex);
    waiting.emplace_back(request, answer);
    const std::size_t wanted = batches.size() == 2 ? 2 : 4;
    if (waiting.size() < wanted) return;
    batches.push_back(waiting.size());
    for (const auto& one : waiting) stream(one.first, *one.second);
    waiting.clear();
  });
  HttpClient client(server.target(), {});
  const std::vector<PlannedRequest> plan = plan_load(few(10), kAtOnce);
  const LoadResult result = summarize_load(drive_load(client, {"m", "", true}, plan, {4, true, true}, {}));
  EXPECT_EQ(result.failed, 0);
  EXPECT_THAT(batches, ::testing::ElementsAre(4, 4, 2));
  std::int64_t own = 0, cut = 0;
  for (std::size_t first = 0; first < 10; first += 4) {
    std::int64_t longest = 0;
    for (std::size_t i = first; i < std::min<std::size_t>(first + 4, 10); ++i)
      longest = std::max(longest, plan[i].new_tokens);
    for (std::size_t i = first; i < std::min<std::size_t>(first + 4, 10); ++i) {
      EXPECT_EQ(server.bodies[i].at("max_tokens").as_integer(), longest);
      own += plan[i].new_tokens;
      cut += longest - plan[i].new_tokens;
    }
  }
  EXPECT_EQ(result.new_tokens, own) << "only what was asked for counts";
  EXPECT_GT(cut, 0) << "lengths differ, or this test sees nothing";
}

TEST(DriveLoad, WhatGoesWrongIsSaidOncePerSentence) {
  const auto sentence = [](const Played::Play& play) {
    Played server(play);
    HttpClient client(server.target(), {});
    const LoadResult result = summarize_load(
        drive_load(client, {"m", "", false}, plan_load(few(3), kAtOnce), {2, true, false}, {}));
    EXPECT_EQ(result.failed, 3);
    EXPECT_EQ(server.bodies.size(), 3u);
    EXPECT_EQ(server.bodies[0].find("ignore_eos"), nullptr);
    EXPECT_EQ(result.errors.size(), 1u);
    return result.errors.begin()->first;
  };
  const auto says = [](const char* text) {
    return [text](const Json&, const std::shared_ptr<HttpResponder>& answer) {
      answer->open_stream("text/event-stream");
      answer->write(text);
      answer->end();
    };
  };
  EXPECT_EQ(sentence([](const Json&, const std::shared_ptr<HttpResponder>& answer) {
              answer->reply({429, "application/json", R"({"error":{"message":"too much"}})", {}});
            }),
            "status 429: too much");
  EXPECT_THAT(sentence([](const Json&, const std::shared_ptr<HttpResponder>& answer) {
                answer->reply({200, "application/json", "{}", {}});
              }),
              HasSubstr("no stream came back"));
  EXPECT_THAT(sentence(says("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")),
              HasSubstr("the stream ended before the answer did"));
  EXPECT_THAT(sentence(says("data: [DONE]\n\n")), HasSubstr("no token"));
  EXPECT_THAT(sentence(says("data: {\"error\":{\"message\":\"the model failed\"}}\n\ndata: [DONE]\n\n")),
              HasSubstr("the server says: the model failed"));
  EXPECT_THAT(sentence(says("data: nonsense\n\n")), HasSubstr("no JSON"));
}

TEST(DriveLoad, AsksForTheModelAndTheCounters) {
  Played server([](const Json& path, const std::shared_ptr<HttpResponder>& answer) {
    if (path.as_string() == "/v1/models")
      return answer->reply({200, "application/json", R"({"data":[{"id":"tiny"}]})", {}});
    answer->reply({404, "text/plain", "no such page", {}});
  });
  HttpClient client(server.target(), {});
  EXPECT_EQ(first_model(client, ""), "tiny");
  EXPECT_FALSE(server_counters(client, "").found);
  Played other([](const Json&, const std::shared_ptr<HttpResponder>& answer) {
    answer->reply({200, "application/json", R"({"data":[]})", {}});
  });
  HttpClient second(other.target(), {});
  EXPECT_THROW(first_model(second, ""), Error);
}

}  // namespace
}  // namespace llmq
