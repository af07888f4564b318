// Requests together and alone: whatever else runs, whatever memory is short and whoever guesses, an answer is
// the one a request gets alone. The other engine of this file is the same model with much memory, no shared
// prefix and one request at a time.
#include "runtime/serving_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "base/error.h"
#include "runtime/generate.h"
#include "small_engine.h"
#include "support/temporary_directory.h"
#include "support/tiny_adapter.h"
#include "tiny_model.h"

namespace llmq::testing {
namespace {

// What a request gets alone. `index`: which of its answers.
std::vector<std::int32_t> alone(Engine& engine, const GenerationRequest& request, int index) {
  GenerateOptions options;
  options.max_tokens = request.max_tokens;
  options.sampling = request.sampling;
  options.sampling.seed = answer_seed(request.sampling.seed, index);
  options.ignore_eos = request.ignore_eos;
  return generate_tokens(engine, request.prompt, options, [](std::int32_t) { return true; }).tokens;
}

// Two adapters of the small model, and the engine that answers alone for each of them and for none ("").
struct Adapted {
  TemporaryDirectory disk;
  std::map<std::string, LoraAdapter> adapters;
  std::map<std::string, Engine> lonely;

  explicit Adapted(const std::optional<KvFormats>& format = {}) {
    lonely.emplace("", open("tinystories-656k", 256, false, 1, format));
    const ModelSpec& spec = lonely.at("").spec();
    std::uint64_t seed = 0;
    for (const char* name : {"a", "b"}) {
      const LoraAdapter& adapter =
          adapters
              .emplace(name, LoraAdapter::open(system_io(),
                                               write_tiny_adapter(spec, disk / name, ++seed, 0.15f), spec))
              .first->second;
      lonely.emplace(name, open("tinystories-656k", 256, false, 1, format)).first->second.adapt(adapter);
    }
  }
};

// Of all kinds: one of two long beginnings or none, short and long, greedy and not, urgent and not, of two
// tenants and two adapters or none, several answers.
GenerationRequest mixed_request(std::mt19937& random, std::uint64_t id) {
  const auto pick = [&](unsigned below) { return random() % below; };
  GenerationRequest request;
  request.id = id;
  const unsigned beginning = pick(3);
  for (unsigned i = 0; beginning > 0 && i < 40; ++i)
    request.prompt.push_back(static_cast<std::int32_t>((beginning * 131 + i * 17) % 2048));
  for (unsigned i = 1 + pick(30); i > 0; --i)
    request.prompt.push_back(static_cast<std::int32_t>(3 + pick(2000)));
  request.max_tokens = 1 + pick(pick(2) == 0 ? 6 : 60);
  request.ignore_eos = pick(3) != 0;
  request.priority = static_cast<int>(pick(5)) - 2;
  request.tenant = pick(4) == 0 ? "other" : "";
  const char* const adapters[] = {"", "a", "b"};
  request.adapter = adapters[pick(3)];
  if (pick(3) == 0) {
    request.sampling = {.temperature = 0.9, .top_k = 40, .seed = id};
    request.n = 1 + static_cast<int>(pick(3));
    if (pick(2) == 0) request.sampling.repetition_penalty = 1.3;
  }
  return request;
}

// 64 requests that come while others run; some are called off. Returns the statistics.
ServingStatistics serve_mixed(Engine& engine, Adapted& adapted, Drafter* drafter, std::int64_t guesses,
                              unsigned seed, std::int32_t swap_pages = 0) {
  std::mt19937 random(seed);
  engine.cache().give_swap_space(swap_pages);
  ServingEngine serving(engine, nullptr, {{12, 48, 256, 64, swap_pages}, guesses}, drafter);
  for (const auto& entry : adapted.adapters) serving.load_adapter(entry.first, entry.second);
  std::map<std::uint64_t, GenerationRequest> requests;
  Answers answers;
  Ends ends;
  std::uint64_t id = 0;
  while (id < 64 || !serving.idle()) {
    if (id < 64 && random() % 2 == 0) {
      ++id;
      requests[id] = mixed_request(random, id);
      EXPECT_FALSE(serving.submit(requests[id]).has_value());
      if (id % 9 == 0) serving.cancel(id - random() % 5);
    }
    collect(serving.step(), answers, ends);
    if (::testing::Test::HasFailure()) break;
  }
  std::int64_t cancelled = 0;
  for (const auto& entry : requests)
    for (int index = 0; index < entry.second.n; ++index) {
      const auto end = ends.find({entry.first, index});
      if (end == ends.end()) {
        ADD_FAILURE() << "request " << entry.first << " has no end";
        continue;
      }
      std::vector<std::int32_t> expected =
          alone(adapted.lonely.at(entry.second.adapter), entry.second, index);
      const std::vector<std::int32_t>& got = answers[{entry.first, index}];
      if (end->second == FinishReason::kCancelled) {
        ++cancelled;
        EXPECT_LE(got.size(), expected.size());
        expected.resize(got.size());
      }
      EXPECT_EQ(got, expected) << "request " << entry.first << ", answer " << index;
    }
  const ServingStatistics statistics = serving.statistics();
  EXPECT_EQ(cancelled, statistics.cancelled);
  EXPECT_EQ(engine.cache().blocks().free(), engine.cache().blocks().total()) << "pages are left";
  return statistics;
}

TEST(ServingEngine, EveryAnswerIsTheOneARequestGetsAlone) {
  // 12 sequences of up to 130 positions want 108 blocks of 16: there are 20.
  Engine engine = open("tinystories-656k", 320, true);
  Adapted adapted;
  const ServingStatistics plain = serve_mixed(engine, adapted, nullptr, 0, 1);
  for (const std::int64_t count : {plain.preemptions, plain.recomputed_tokens, plain.prefix_hits,
                                   plain.cancelled, plain.finished_stop, plain.finished_length})
    EXPECT_GT(count, 0);
  EXPECT_EQ(
      plain.running + plain.waiting + plain.kv_blocks_used + plain.kv_positions_used + plain.restored_tokens,
      0);

  // With room on the host for some of what is pushed out.
  const ServingStatistics swapped = serve_mixed(engine, adapted, nullptr, 0, 1, 30);
  EXPECT_GT(swapped.restored_tokens, 0);
  EXPECT_LT(swapped.recomputed_tokens, plain.recomputed_tokens);
  EXPECT_EQ(swapped.swap_pages_used, 0);

  const std::unique_ptr<Drafter> ngram = make_ngram_drafter();
  const ServingStatistics copied = serve_mixed(engine, adapted, ngram.get(), 3, 2);
  EXPECT_GT(copied.accepted, 0);

  Engine weak = open("tinystories-draft", 256, true);  // its cache is too small for all of them
  const std::unique_ptr<Drafter> model = make_model_drafter(weak, 2048, 64);
  for (const std::int64_t guesses : {4, 0}) {
    const ServingStatistics drafted = serve_mixed(engine, adapted, model.get(), guesses, 3);
    EXPECT_GT(drafted.accepted, 0);
    EXPECT_GT(drafted.drafted, drafted.accepted);
    EXPECT_GT(drafted.preemptions, 0);
  }
  EXPECT_EQ(weak.cache().blocks().free(), weak.cache().blocks().total()) << "the draft's pages are left";
}

// With plain pages and with codes, whose coordinates are found by the members together; adapters divided,
// too, and pages on the host.
TEST(ServingEngine, ADividedModelGivesTheSameAnswers) {
  const std::optional<KvFormats> formats[] = {{}, kKvInt4};
  for (const auto& format : formats)
    for (const int members : {2, 4}) {
      if (format && members == 4) continue;
      Engine engine = open("tinystories-656k", 320, true, 1, format, members);
      Adapted adapted(format);
      const std::unique_ptr<Drafter> ngram = make_ngram_drafter();
      const ServingStatistics statistics =
          serve_mixed(engine, adapted, ngram.get(), 3, 2, members == 2 ? 30 : 0);
      for (const std::int64_t count :
           {statistics.preemptions, statistics.prefix_hits, statistics.cancelled, statistics.accepted})
        EXPECT_GT(count, 0);
      EXPECT_EQ(statistics.restored_tokens > 0, members == 2);
    }
}

// The tokens that the model says behind each beginning of `tokens`, from one pass over all of them with every
// page kept.
std::vector<std::int32_t> said_with_every_page(Engine& engine, std::span<const std::int32_t> tokens) {
  KvSequence sequence(engine.cache());
  sequence.extend(static_cast<std::int64_t>(tokens.size()));
  const Engine::Step step{tokens, 0, sequence.tables()};
  const Buffer normed = engine.forward({&step, 1});
  std::vector<std::int32_t> rows(tokens.size()), said;
  std::iota(rows.begin(), rows.end(), 0);
  const std::span<float> logits = engine.host_logits(normed, static_cast<std::int64_t>(tokens.size()), rows);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto values = logits.subspan(row * 61, 61);
    said.push_back(
        static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin()));
  }
  return said;
}

// Answers in `kv_tokens` positions of pages, whose owners have to wait for one another, are those of an
// engine that keeps every page.
void expect_every_pages_answers(const TinyModel& model, std::int64_t kv_tokens, Compute compute,
                                Drafter* drafter) {
  Engine::Options options;
  options.compute = compute;
  options.max_context = 512;
  options.kv_tokens = kv_tokens;
  Engine engine = model.load(make_cpu_backend(2), options);
  options.kv_tokens = 512;
  options.prefix_caching = false;
  Engine every_page = model.load(make_cpu_backend(2), options);
  ServingEngine serving(engine, nullptr, {{8, 48, 512, 64}, drafter != nullptr ? 3 : 0}, drafter);
  std::map<std::uint64_t, GenerationRequest> requests;
  Answers answers;
  Ends ends;
  for (std::uint64_t id = 0; id < 24; ++id) {
    GenerationRequest& request = requests[id];
    request.id = id;
    request.n = id % 5 == 1 ? 2 : 1;
    request.max_tokens = id % 4 == 0 ? 250 : 30;
    request.ignore_eos = true;
    const std::int32_t length = id % 3 == 0 ? 20 : 160;  // long ones begin alike
    for (std::int32_t i = 0; i < length; ++i)
      request.prompt.push_back(3 + (i < 150 ? i * i : i * 5 + static_cast<std::int32_t>(id)) % 58);
    EXPECT_FALSE(serving.submit(request));
  }
  while (!serving.idle()) collect(serving.step(), answers, ends);
  for (const auto& [who, answer] : answers) {
    const GenerationRequest& request = requests.at(who.first);
    EXPECT_EQ(static_cast<std::int64_t>(answer.size()), request.max_tokens) << who.first;
    if (::testing::Test::HasFailure()) break;
    std::vector<std::int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
    const std::vector<std::int32_t> said = said_with_every_page(every_page, tokens);
    EXPECT_EQ(answer, std::vector<std::int32_t>(
                          said.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()) - 1, said.end()))
        << who.first;
  }
  const ServingStatistics statistics = serving.statistics();
  EXPECT_EQ(answers.size(), 29u);
  EXPECT_GT(statistics.prefix_hits, 0);
  EXPECT_GT(statistics.preemptions, 0);
  EXPECT_EQ(statistics.accepted > 0, drafter != nullptr);
  EXPECT_EQ(statistics.kv_blocks_used, 0);
}

// A model that looks back 40 positions answers for 400 in pages that nobody else needs any more: the window,
// what the kernels round it to, a chunk of a prompt, and block ends, 40 - 1 + 63 + 15 + 48 positions at most,
// so 11 blocks of 16 for each sequence where 26 would stand.
TEST(ServingEngine, PagesThatAWindowHasPassedServeOthers) {
  const TinyModel model(40);
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const bool guessing : {false, true}) {
      const std::unique_ptr<Drafter> ngram = make_ngram_drafter();
      expect_every_pages_answers(model, 11 * 16 * 3, compute, guessing ? ngram.get() : nullptr);
    }
}

// The same where the other block looks at everything: it keeps 26 blocks of 400 positions, so that one
// sequence takes 26 + 11 pages of a block each, as many as 19 blocks of both would be. The draft has pages of
// both kinds, too.
TEST(ServingEngine, PagesThatTheWindowOfOneBlockHasPassedServeOthers) {
  const TinyModel model(40, TinyModel::Windows::kInTheSecondBlock);
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    expect_every_pages_answers(model, 19 * 16 * 2, compute, nullptr);
    const std::unique_ptr<Drafter> ngram = make_ngram_drafter();
    expect_every_pages_answers(model, 19 * 16 * 2, compute, ngram.get());
    Engine::Options options;
    options.compute = compute;
    options.max_context = 512;
    options.kv_tokens = 19 * 16 * 2;
    Engine draft = model.load(make_cpu_backend(2), options);
    {
      const std::unique_ptr<Drafter> same = make_model_drafter(draft, 61, 64);
      expect_every_pages_answers(model, 19 * 16 * 2, compute, same.get());
    }
    EXPECT_EQ(draft.cache().blocks().free(), draft.cache().blocks().total()) << "the draft's pages are left";
  }
}

// The most pages of one sequence of 200 tokens and an answer of 200.
std::int64_t most_pages(const TinyModel& model, std::int64_t kv_tokens) {
  Engine::Options options;
  options.max_context = 512;
  options.kv_tokens = kv_tokens;
  Engine engine = model.load(make_cpu_backend(1), options);
  ServingEngine serving(engine, nullptr, {{4, 48, 512, 64}, 0});
  GenerationRequest request;
  request.prompt.assign(200, 7);
  request.max_tokens = 200;
  request.ignore_eos = true;
  if (serving.submit(request)) return 0;
  std::int64_t most = 0, taken = 0;
  for (; !serving.idle(); most = std::max(most, serving.statistics().kv_blocks_used))
    taken += static_cast<std::int64_t>(serving.step().size());
  EXPECT_GT(taken, 0);
  EXPECT_EQ(serving.statistics().preemptions, 0);
  return most;
}

// Alone, a sequence of 400 positions never has more than 11 blocks, and is taken though the cache has no room
// for 400.
TEST(ServingEngine, AWindowBoundsThePagesOfASequence) {
  const std::int64_t most = most_pages(TinyModel(40), 11 * 16);
  EXPECT_GT(most, 0);
  EXPECT_LE(most, 11);
}

// 25 blocks of 399 positions for the layer that looks at everything, 11 at most for the other one; 18 blocks
// of both are as many pages, and 17 are refused.
TEST(ServingEngine, AWindowBoundsThePagesOfItsLayers) {
  const TinyModel model(40, TinyModel::Windows::kInTheSecondBlock);
  const std::int64_t most = most_pages(model, 18 * 16);
  EXPECT_GT(most, 25);
  EXPECT_LE(most, 25 + 11);
  EXPECT_EQ(most_pages(model, 17 * 16), 0);
}

// 20 positions in two blocks of 16, then 21: once 12 places hold nothing, once 11.
TEST(ServingEngine, CountsPlacesThatHoldNothing) {
  Engine engine = open("tinystories-656k", 64, true);
  ServingEngine serving(engine, nullptr, {{4, 64, 64, 4}, 0});
  GenerationRequest request;
  request.id = 1;
  request.prompt.assign(20, 7);
  request.max_tokens = 2;
  request.ignore_eos = true;
  EXPECT_FALSE(serving.submit(request).has_value());
  while (!serving.idle()) serving.step();
  EXPECT_EQ(serving.statistics().kv_places, 32 + 32);
  EXPECT_EQ(serving.statistics().kv_places_unused, 12 + 11);
}

// Pages of codes are copied, shared, lost and written again as others are; and they change answers.
TEST(ServingEngine, PackedPagesChangeNoAnswerBetweenThem) {
  Engine plain = open("tinystories-656k", 256, false);
  GenerationRequest request;
  for (std::int32_t i = 0; i < 60; ++i) request.prompt.push_back(3 + i * 91 % 2000);
  request.max_tokens = 60;
  request.ignore_eos = true;
  for (const KvFormats& format : {kKvInt8, kKvInt4, kKvFloat8, kKvFloat8E5M2, kKvFloat16}) {
    Engine engine = open("tinystories-656k", 320, true, 2, format);
    Adapted lonely(format);
    const std::unique_ptr<Drafter> ngram = make_ngram_drafter();
    const ServingStatistics statistics = serve_mixed(engine, lonely, ngram.get(), 3, 2);
    for (const std::int64_t count :
         {statistics.preemptions, statistics.prefix_hits, statistics.cancelled, statistics.accepted})
      EXPECT_GT(count, 0);
    const double share = format == kKvFloat16 ? 1 : 0.63;  // of BF16 pages
    EXPECT_LE(static_cast<double>(engine.cache().bytes()),
              share * 1.25 * static_cast<double>(plain.cache().bytes()));
    if (format == kKvInt4) {
      EXPECT_NE(alone(lonely.lonely.at(""), request, 0), alone(plain, request, 0)) << "nothing was rounded";
    }
  }
}

TEST(ServingEngine, RefusesInWords) {
  const TinyModel model;
  Engine::Options options;
  options.max_context = options.kv_tokens = 64;
  Engine engine = model.load(make_reference_backend(), options);
  ServingEngine serving(engine, nullptr, {{2, 64, 64, 1}, 0});
  const auto refused = [&](auto change) {
    GenerationRequest request;
    request.prompt = {1, 2, 3};
    change(request);
    const std::optional<GenerationRefusal> refusal = serving.submit(request);
    return refusal ? refusal->field + ": " + refusal->message : "taken";
  };
  EXPECT_EQ(refused([](auto& r) { r.prompt.clear(); }), "prompt: the prompt has no tokens");
  EXPECT_EQ(refused([](auto& r) { r.prompt = {61}; }), "prompt: token 61 is outside the vocabulary of 61");
  EXPECT_EQ(refused([](auto& r) { r.prompt.resize(64, 1); }),
            "prompt: the prompt has 64 tokens, and prompt and answer together may have 64");
  EXPECT_EQ(refused([](auto& r) { r.max_tokens = 0; }),
            "max_tokens: max_tokens is 0, and at least 1 is needed");
  EXPECT_EQ(refused([](auto& r) { r.n = 3; }), "n: n is 3, which is not between 1 and 2");
  EXPECT_EQ(refused([](auto& r) { r.stop = {"x"}; }), "stop: stop strings need a tokenizer");
  EXPECT_EQ(refused([](auto& r) { r.sampling.top_p = 0; }), "top_p: top_p: 0 is not above 0 and at most 1");
  EXPECT_EQ(refused([](auto& r) {
              r.sampling.logit_bias = {{-1, 1.0f}};
            }),
            "logit_bias: token -1 is outside the vocabulary of 61");
  EXPECT_EQ(refused([](auto& r) { r.priority = 101; }),
            "priority: priority is 101, which is not between -100 and 100");
  EXPECT_EQ(refused([](auto& r) { r.adapter = "a"; }), "model: the adapter 'a' is not loaded");
  EXPECT_EQ(refused([](auto&) {}), "taken");
  EXPECT_EQ(refused([](auto&) {}), "id: request 0 is running already");
  EXPECT_EQ(refused([](auto& r) { r.id = 1; }), ": 1 requests wait already; try again later");
  EXPECT_EQ(serving.statistics().refused, 12);
  EXPECT_THROW(ServingEngine(engine, nullptr, {{2, 64, 66, 1}, 0}), Error)
      << "a longer context than the model's";
}

TEST(ServingEngine, ACancelledRequestFreesItsPagesAtOnce) {
  Engine engine = open("tinystories-656k", 512, true, 1);
  ServingEngine serving(engine, nullptr, {{4, 64, 256, 4}, 0});
  GenerationRequest request;
  request.prompt.assign(40, 5);
  request.max_tokens = 100;
  request.n = 3;
  request.ignore_eos = true;
  request.sampling = {.temperature = 1};
  ASSERT_FALSE(serving.submit(request).has_value());
  EXPECT_EQ(serving.step().size(), 3u);
  EXPECT_EQ(serving.statistics().kv_blocks_used, 3) << "three answers have the pages of one prompt";
  serving.step();
  EXPECT_EQ(serving.statistics().kv_blocks_used, 5) << "two of them have copied the last one";
  serving.cancel(0);
  EXPECT_EQ(serving.statistics().kv_blocks_used, 0);
  EXPECT_FALSE(serving.idle());
  EXPECT_EQ(serving.step().size(), 3u);
  EXPECT_TRUE(serving.idle());
}

}  // namespace
}  // namespace llmq::testing
