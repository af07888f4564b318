// Serving of models with recurrent states: an answer is the one a request gets alone, whatever runs beside
// it, whatever is pushed out, cut or forked, found by a snapshot, guessed wrongly or kept on the host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "golden_serving.h"

namespace llmq::testing {
namespace {

Checkpoint hybrid(const std::string& name) {
  return open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/golden/models/" + name + "/model");
}

constexpr std::uint64_t kManySnapshots = 64 << 20;

Engine open_hybrid(const std::string& name, std::int64_t kv_tokens, bool prefix_caching = true,
                   std::uint64_t snapshot_bytes = kManySnapshots) {
  Engine::Options options;
  options.max_context = 64;
  options.kv_tokens = kv_tokens;
  options.block_size = 4;
  options.prefix_caching = prefix_caching;
  options.snapshot_bytes = snapshot_bytes;
  options.snapshots_apart = 4;
  return Engine::load(hybrid(name), make_cpu_backend(2), options);
}

SchedulerLimits limits_of(std::int64_t tokens, std::int64_t sequences = 4) {
  SchedulerLimits limits;
  limits.max_num_seqs = sequences;
  limits.max_num_batched_tokens = tokens;
  return limits;
}

// Guesses that are right up to a place that wanders: what a request says alone, and something else there.
class WanderingDrafter : public Drafter {
 public:
  explicit WanderingDrafter(Answers said, std::map<std::uint64_t, std::size_t> prompts)
      : said_(std::move(said)), prompts_(std::move(prompts)) {}
  std::string name() const override { return "wandering"; }
  double bytes_per_guess() const override { return 0; }
  void forget(std::uint64_t) override {}
  void propose(std::span<DraftJob> jobs) override {
    for (DraftJob& job : jobs) {
      job.guesses.clear();
      const auto& all = said_.at({job.sequence, 0});
      const std::size_t at = job.tokens.size() - prompts_.at(job.sequence);
      for (std::size_t i = at; i < all.size() && static_cast<std::int64_t>(job.guesses.size()) < job.most;
           ++i)
        job.guesses.push_back(all[i]);
      if (const std::size_t wrong = ++round_ % 4; wrong < job.guesses.size())
        job.guesses[wrong] = (job.guesses[wrong] + 1) % 90;
    }
  }

 private:
  Answers said_;
  std::map<std::uint64_t, std::size_t> prompts_;
  std::size_t round_ = 0;
};

class RecurrentServing : public ::testing::TestWithParam<const char*> {
 protected:
  void expect_as_alone(const Served& served, const std::vector<GenerationRequest>& requests,
                       const std::string& what) {
    for (const GenerationRequest& request : requests)
      for (int index = 0; index < request.n; ++index)
        EXPECT_EQ(served.answers.at({request.id, index}), alone_of(alone_, request, index))
            << what << ": request " << request.id << ", answer " << index;
  }
  Engine alone_ = open_hybrid(GetParam(), 64, false);
};

TEST_P(RecurrentServing, AnAnswerIsTheOneARequestGetsAlone) {
  const std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  std::int64_t preempted = 0;
  // Much memory and long steps; few tokens in a step, so that prompts are cut; few pages, so that sequences
  // are pushed out.
  for (const auto& [tokens, most] : {std::pair{400, 64}, std::pair{400, 5}, std::pair{64, 7}}) {
    Engine engine = open_hybrid(GetParam(), tokens, false);
    const Served served = serve(engine, requests, limits_of(most), nullptr);
    preempted += served.statistics.preemptions;
    EXPECT_EQ(served.statistics.prefix_hits, 0);
    expect_as_alone(served, requests, std::to_string(tokens));
  }
  EXPECT_GT(preempted, 0);
}

TEST_P(RecurrentServing, APrefixIsFoundWhereASnapshotIs) {
  const std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  const std::uint64_t state = alone_.spec().state_bytes();
  for (const auto& [tokens, most, room] : {std::tuple{400, 64, kManySnapshots}, std::tuple{400, 5, 2 * state},
                                           std::tuple{64, 7, 2 * state}, std::tuple{400, 16, state}}) {
    Engine engine = open_hybrid(GetParam(), tokens, true, room);
    for (int time = 0; time < 2; ++time) {
      const Served served = serve(engine, requests, limits_of(most), nullptr);
      const std::string what = fmt::format("{} positions, room of {}, time {}", tokens, room, time);
      expect_as_alone(served, requests, what);
      EXPECT_LE(served.statistics.snapshots_made * state, room) << what;
      EXPECT_GT(served.statistics.snapshots, 0) << what;
      if (room == kManySnapshots || time == 1) {
        EXPECT_GT(served.statistics.prefix_hits, 0) << what;
      }
    }
  }
}

// The third prompt goes on from where the first two were seen to part, the fourth from the end of the third.
TEST_P(RecurrentServing, SnapshotsAreWherePromptsPartAndEnd) {
  Engine engine = open_hybrid(GetParam(), 400);
  ServingOptions options;
  options.limits = limits_of(32);
  options.limits.max_model_len = 60;
  ServingEngine serving(engine, nullptr, options);
  std::vector<std::int64_t> found;
  const auto ask = [&](std::int32_t own, std::size_t length) {
    GenerationRequest request;
    request.id = found.size() + 1;
    for (std::int32_t i = 0; i < 10; ++i) request.prompt.push_back(3 + i);
    while (request.prompt.size() < length) request.prompt.push_back(own);
    request.max_tokens = 3;
    request.ignore_eos = true;
    Answers answers;
    Ends ends;
    const std::int64_t before = serving.statistics().prefix_hits;
    EXPECT_FALSE(serving.submit(request));
    while (!serving.idle()) collect(serving.step(), answers, ends);
    found.push_back(serving.statistics().prefix_hits - before);
    EXPECT_EQ(answers.at({request.id, 0}), alone_of(alone_, request, 0)) << request.id;
  };
  ask(40, 23);
  ask(50, 23);
  ask(60, 23);
  ask(60, 30);
  ask(60, 30);
  EXPECT_EQ(found, (std::vector<std::int64_t>{0, 0, 8, 20, 28}));
  // At 20 of the first three, at 8 of the second, at 28 of the fourth.
  EXPECT_EQ(serving.statistics().snapshots, 5);
}

// The next turn of a chat goes on from within the answer, also if that was guessed or pushed out.
TEST_P(RecurrentServing, AnAnswerLeavesASnapshotToTheNextTurn) {
  for (const bool guesses : {false, true}) {
    Engine engine = open_hybrid(GetParam(), 400);
    const auto drafter = make_ngram_drafter();
    GenerationRequest request;
    request.id = 1;
    request.prompt = {5, 6, 7, 8, 5, 6, 7, 8, 5, 6};
    request.max_tokens = 23;
    request.ignore_eos = true;
    const Served first = serve(engine, {request}, limits_of(64), guesses ? drafter.get() : nullptr);
    const std::vector<std::int32_t>& said = first.answers.at({1, 0});
    request.prompt.insert(request.prompt.end(), said.begin(), said.end());
    request.prompt.insert(request.prompt.end(), {40, 41, 42});
    request.max_tokens = 9;
    const Served next = serve(engine, {request}, limits_of(64), guesses ? drafter.get() : nullptr);
    // 32 of the first turn's tokens ran, and every fourth one was a border.
    EXPECT_GE(next.statistics.prefix_hits, guesses ? 20 : 32);
    expect_as_alone(next, {request}, guesses ? "guessed" : "not guessed");
  }
}

TEST_P(RecurrentServing, WrongGuessesAreTakenBack) {
  std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  for (GenerationRequest& request : requests) request.n = 1;
  Answers said;
  std::map<std::uint64_t, std::size_t> prompts;
  for (const GenerationRequest& request : requests) {
    said[{request.id, 0}] = alone_of(alone_, request, 0);  // ids of sequences are those of requests here
    prompts[request.id] = request.prompt.size();
  }
  for (const auto& [tokens, most] : {std::pair{400, 64}, std::pair{400, 9}, std::pair{80, 16}}) {
    Engine engine = open_hybrid(GetParam(), tokens);
    WanderingDrafter drafter(said, prompts);
    const Served served = serve(engine, requests, limits_of(most), &drafter);
    EXPECT_GT(served.statistics.accepted, 10);
    EXPECT_GT(served.statistics.drafted - served.statistics.accepted, 10);
    expect_as_alone(served, requests, fmt::format("{} positions, {} tokens", tokens, most));
  }
}

// A fork behind guesses for the first token; guesses of the text itself.
TEST_P(RecurrentServing, AnswersForkBehindGuesses) {
  std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  for (GenerationRequest& request : requests) {
    request.n = 2;
    request.prompt.insert(request.prompt.end(), {5, 6, 5, 6, 5, 6, 5});
  }
  Engine engine = open_hybrid(GetParam(), 400);
  const auto drafter = make_ngram_drafter();
  const Served served = serve(engine, requests, limits_of(64), drafter.get());
  EXPECT_GT(served.statistics.draft_rounds, 0);
  expect_as_alone(served, requests, "forked");
}

// The same model guesses always right, another one mostly wrong; either may be the one with states.
TEST_P(RecurrentServing, ItDraftsAndIsDraftedFor) {
  std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  for (const bool same : {true, false}) {
    Engine engine = open_hybrid(GetParam(), 400);
    const auto drafter = make_model_drafter(
        same ? open_hybrid(GetParam(), 400)
             : open_hybrid(std::string(GetParam()) == "qwen3_next" ? "qwen3_5_text" : "qwen3_next", 400),
        engine.spec().vocab_size, 16);
    const Served served = serve(engine, requests, limits_of(64), drafter.get());
    EXPECT_GT(served.statistics.draft_rounds, 0);
    EXPECT_EQ(served.statistics.accepted == served.statistics.drafted, same);
    expect_as_alone(served, requests, same ? "itself" : "another");
  }
}

TEST_P(RecurrentServing, WhatIsPushedOutComesBackFromTheHost) {
  const std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  std::int64_t restored = 0;
  for (const bool guesses : {false, true}) {
    Engine engine = open_hybrid(GetParam(), 64, guesses);
    KvCache& cache = engine.cache();
    SchedulerLimits limits = limits_of(16);
    limits.swap_pages_of_state = cache.pages_of(engine.spec().state_bytes());
    limits.swap_pages = 2 * limits.swap_pages_of_state + 16;
    cache.give_swap_space(limits.swap_pages);
    const auto drafter = make_ngram_drafter();
    const Served served = serve(engine, requests, limits, guesses ? drafter.get() : nullptr);
    EXPECT_GT(served.statistics.preemptions, 0);
    EXPECT_EQ(served.statistics.swap_pages_used, 0);
    restored += served.statistics.restored_tokens;
    expect_as_alone(served, requests, guesses ? "guesses" : "none");
  }
  EXPECT_GT(restored, 0);
}

// Of every token of an answer: the model's own log probabilities, of it and of the five likeliest.
std::map<std::uint64_t, std::vector<std::vector<double>>> scores_of(Engine& engine,
                                                                    std::vector<GenerationRequest> requests,
                                                                    const SchedulerLimits& limits,
                                                                    Drafter* drafter) {
  ServingOptions options;
  options.limits = limits;
  options.limits.max_model_len = 60;
  options.num_draft_tokens = drafter == nullptr ? 0 : 3;
  ServingEngine serving(engine, nullptr, options, drafter);
  for (GenerationRequest& request : requests) {
    request.logprobs = 5;
    EXPECT_FALSE(serving.submit(request));
  }
  std::map<std::uint64_t, std::vector<std::vector<double>>> scores;
  while (!serving.idle())
    for (const GenerationEvent& event : serving.step())
      for (const TokenLogprobs& token : event.logprobs) {
        std::vector<double>& all = scores[event.id].emplace_back(1, token.chosen.logprob);
        for (const TokenLogprob& one : token.likeliest) all.push_back(one.logprob);
      }
  return scores;
}

// Prefixes, wrong guesses and the host at once leave every logit as it is alone.
TEST_P(RecurrentServing, LogitsAreThoseOfAFreshRun) {
  std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  Answers said;
  std::map<std::uint64_t, std::size_t> prompts;
  std::map<std::uint64_t, std::vector<std::vector<double>>> wanted;
  for (GenerationRequest& request : requests) {
    request.n = 1;
    said[{request.id, 0}] = alone_of(alone_, request, 0);
    prompts[request.id] = request.prompt.size();
    wanted.merge(scores_of(alone_, {request}, limits_of(64), nullptr));
  }
  Engine engine = open_hybrid(GetParam(), 72);
  SchedulerLimits limits = limits_of(12);
  limits.swap_pages_of_state = engine.cache().pages_of(engine.spec().state_bytes());
  limits.swap_pages = 2 * limits.swap_pages_of_state + 16;
  engine.cache().give_swap_space(limits.swap_pages);
  for (int time = 0; time < 2; ++time) {
    WanderingDrafter drafter(said, prompts);
    EXPECT_EQ(scores_of(engine, requests, limits, &drafter), wanted) << time;
  }
}

// Where there is no room for one snapshot, nothing is looked for.
TEST_P(RecurrentServing, WithoutRoomNoPrefixIsFound) {
  Engine engine = open_hybrid(GetParam(), 400, true, alone_.spec().state_bytes() - 1);
  const std::vector<GenerationRequest> requests = mixed_requests(13, 12);
  for (int time = 0; time < 2; ++time) {
    const Served served = serve(engine, requests, limits_of(64), nullptr);
    EXPECT_EQ(served.statistics.prefix_hits, 0);
    EXPECT_EQ(served.statistics.snapshots_total, 0);
    expect_as_alone(served, requests, "no room");
  }
}

TEST_P(RecurrentServing, AStateIsGoodForItsNextPositionAlone) {
  Engine engine = open_golden(GetParam(), 64);
  KvSequence sequence(engine.cache());
  const std::vector<std::int32_t> prompt = {5, 6, 7, 8, 9}, more = {10, 11};
  engine.forward(sequence, prompt);
  sequence.truncate(3);
  EXPECT_THROW(engine.forward(sequence, more), Error);
  sequence.truncate(0);  // from there on it is a new one
  EXPECT_NO_THROW(engine.forward(sequence, more));
}

INSTANTIATE_TEST_SUITE_P(Families, RecurrentServing,
                         ::testing::Values("qwen3_5_text", "qwen3_next", "qwen3_5_moe"));

}  // namespace
}  // namespace llmq::testing
