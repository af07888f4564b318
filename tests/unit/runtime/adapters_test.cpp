// Adapters at run time: what they compute, and that nobody gets another's, whoever shares the batch, the
// cache or the name.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <utility>

#include "base/error.h"
#include "runtime/generate.h"
#include "runtime/serving_engine.h"
#include "support/named_parts.h"
#include "support/tiny_adapter.h"
#include "tiny_model.h"

namespace llmq::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

Engine::Options small_options(Compute compute = Compute::kFloat32) {
  Engine::Options options;
  options.compute = compute;
  options.max_context = 127;
  options.kv_tokens = 2048;
  return options;
}

Tokens prompt_of(std::int32_t first, int length) {
  Tokens prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(3 + (first + i * 7) % 58);
  return prompt;
}

class AdaptersTest : public ::testing::Test {
 protected:
  AdaptersTest() {
    const Engine engine = model_.load(make_reference_backend(), small_options());
    for (const auto& [name, seed] : {std::pair("a", std::uint64_t{1}), std::pair("b", std::uint64_t{2})})
      adapters_.emplace(name,
                        LoraAdapter::open(system_io(), write_tiny_adapter(engine.spec(), disk_ / name, seed),
                                          engine.spec()));
  }

  GenerationRequest request(std::uint64_t id, const std::string& adapter, Tokens prompt,
                            std::int64_t most = 20) const {
    GenerationRequest made;
    made.id = id;
    made.adapter = adapter;
    made.prompt = std::move(prompt);
    made.max_tokens = most;
    made.ignore_eos = true;
    return made;
  }

  // What a request gets from an engine that nobody else uses.
  Tokens alone(const GenerationRequest& asked, Compute compute, const std::shared_ptr<Backend>& backend) {
    Engine engine = model_.load(backend, small_options(compute));
    if (!asked.adapter.empty()) engine.adapt(adapters_.at(asked.adapter));
    GenerateOptions options;
    options.max_tokens = asked.max_tokens;
    options.ignore_eos = true;
    return generate_tokens(engine, asked.prompt, options, [](std::int32_t) { return true; }).tokens;
  }

  TinyModel model_;
  TemporaryDirectory disk_;
  std::map<std::string, LoraAdapter> adapters_;
};

struct Told {
  Tokens tokens;
  std::int64_t cached = 0;
  bool ended = false;
};

void run(ServingEngine& serving, std::map<std::uint64_t, Told>& told, int steps = 1 << 20) {
  for (; steps > 0 && !serving.idle(); --steps)
    for (const GenerationEvent& event : serving.step()) {
      Told& one = told[event.id];
      one.tokens.insert(one.tokens.end(), event.tokens.begin(), event.tokens.end());
      one.cached = event.cached_tokens;
      one.ended = event.finish.has_value();
    }
}

TEST_F(AdaptersTest, AnswersAreThoseOfTheFoldedModel) {
  TinyModel folded;
  const ModelSpec spec = model_.load(make_reference_backend(), small_options()).spec();
  const LoraAdapter& adapter = adapters_.at("a");
  ThreadPool pool(1);
  folded.change([&](const std::string& name, std::vector<float>& values) {
    for (std::size_t block = 0; block < spec.blocks.size(); ++block)
      for (const LinearSpec& linear : spec.blocks[block].linears)
        if (linear.module + ".weight" == name) add_lora_rows(adapter.pair(block, linear.id), 0, values, pool);
  });
  int unlike_the_model = 0;
  for (const std::shared_ptr<Backend>& backend :
       {make_reference_backend(), make_cpu_backend(2), make_fake_backend()})
    for (int i = 0; i < 4; ++i) {
      const GenerationRequest asked = request(0, "a", prompt_of(i, 9 + 3 * i));
      Engine engine = folded.load(backend, small_options());
      GenerateOptions options;
      options.max_tokens = asked.max_tokens;
      options.ignore_eos = true;
      const Tokens wanted =
          generate_tokens(engine, asked.prompt, options, [](std::int32_t) { return true; }).tokens;
      EXPECT_EQ(alone(asked, Compute::kFloat32, backend), wanted) << backend->name() << " " << i;
      unlike_the_model += wanted != alone(request(0, "", asked.prompt), Compute::kFloat32, backend);
    }
  EXPECT_GT(unlike_the_model, 9) << "an adapter that changes nothing would show nothing";
}

// Requests with either adapter and with none, in chunks, with little memory and with guesses.
TEST_F(AdaptersTest, EveryAnswerIsTheOneARequestGetsAlone) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    const auto backend = make_cpu_backend(2);
    Engine::Options options = small_options(compute);
    options.kv_tokens = 320;
    for (const bool guessing : {false, true}) {
      Engine engine = model_.load(backend, options);
      const auto drafter = make_ngram_drafter();
      ServingEngine serving(engine, nullptr, {{12, 24, 128, 64}, guessing ? 3 : 0},
                            guessing ? drafter.get() : nullptr);
      for (const auto& entry : adapters_) serving.load_adapter(entry.first, entry.second);
      std::map<std::uint64_t, Told> told;
      std::vector<GenerationRequest> requests;
      for (std::uint64_t id = 0; id < 24; ++id) {
        const char* names[] = {"", "a", "b"};
        requests.push_back(request(id, names[id * 5 % 3],
                                   prompt_of(static_cast<std::int32_t>(id % 4), id % 2 == 0 ? 40 : 7), 25));
        ASSERT_FALSE(serving.submit(requests.back()));
        run(serving, told, 1);
      }
      run(serving, told);
      for (const GenerationRequest& one : requests)
        EXPECT_EQ(told[one.id].tokens, alone(one, compute, backend))
            << one.id << " by '" << one.adapter << "'";
      EXPECT_GT(serving.statistics().preemptions, 0);
      EXPECT_GT(serving.statistics().prefix_hits, 0);
      EXPECT_EQ(serving.statistics().accepted > 0, guessing);
    }
  }
}

// Not to a rounding: the bits of a row, whoever stands beside it.
TEST_F(AdaptersTest, TheBitsOfARowAreItsOwn) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    Engine engine = model_.load(make_cpu_backend(2), small_options(compute));
    const auto a = engine.prepare(adapters_.at("a")), b = engine.prepare(adapters_.at("b"));
    const PreparedAdapter* const owners[] = {nullptr, a.get(), b.get(), a.get()};
    const Tokens prompt = prompt_of(5, 11);
    std::deque<KvSequence> sequences;
    std::vector<Engine::Step> steps;
    for (std::size_t i = 0; i < 4; ++i) {
      sequences.emplace_back(engine.cache());
      sequences.back().extend(11);
    }
    for (std::size_t i = 0; i < 4; ++i) steps.push_back({prompt, 0, sequences[i].tables(), owners[i]});
    const auto logits = [&](const Buffer& normed, std::int64_t total, std::int32_t row) {
      const std::span<float> values = engine.host_logits(normed, total, std::span(&row, 1));
      return std::vector<float>(values.begin(), values.end());
    };
    const Buffer together = engine.forward(steps);
    std::vector<std::vector<float>> beside;
    for (std::int32_t i = 0; i < 4; ++i) beside.push_back(logits(together, 44, 11 * i + 10));
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(logits(engine.forward({&steps[i], 1}), 11, 10), beside[i]) << i;
    EXPECT_EQ(beside[1], beside[3]);
    EXPECT_NE(beside[0], beside[1]);
    EXPECT_NE(beside[1], beside[2]);
  }
}

TEST_F(AdaptersTest, PrefixesAreSharedWithinAnAdapterOnly) {
  const auto backend = make_cpu_backend(1);
  Engine engine = model_.load(backend, small_options());
  ServingEngine serving(engine, nullptr, {{4, 64, 128, 64}, 0});
  serving.load_adapter("a", adapters_.at("a"));
  serving.load_adapter("b", adapters_.at("b"));
  std::map<std::uint64_t, Told> told;
  const Tokens prompt = prompt_of(1, 40);
  std::uint64_t id = 0;
  const auto cached = [&](const std::string& adapter, const std::string& same_as) {
    GenerationRequest asked = request(id, adapter, prompt);
    EXPECT_FALSE(serving.submit(asked));
    run(serving, told);
    asked.adapter = same_as;
    EXPECT_EQ(told[id].tokens, alone(asked, Compute::kFloat32, backend)) << adapter << " " << id;
    return told[id++].cached;
  };
  EXPECT_EQ(cached("", ""), 0);
  EXPECT_EQ(cached("a", "a"), 0) << "not the model's own pages";
  EXPECT_EQ(cached("b", "b"), 0) << "nor another adapter's";
  EXPECT_EQ(cached("", ""), 32);
  EXPECT_EQ(cached("a", "a"), 32);
  serving.load_adapter("a", adapters_.at("b"));
  EXPECT_EQ(cached("a", "b"), 0) << "nor those of an earlier one of that name";
}

TEST_F(AdaptersTest, AnAnswerKeepsTheAdapterThatItBeganWith) {
  const auto backend = make_cpu_backend(1);
  Engine engine = model_.load(backend, small_options());
  ServingEngine serving(engine, nullptr, {{4, 64, 128, 64}, 0});
  serving.load_adapter("a", adapters_.at("a"));
  std::map<std::uint64_t, Told> told;
  GenerationRequest asked = request(0, "a", prompt_of(2, 20));
  ASSERT_FALSE(serving.submit(asked));
  run(serving, told, 3);
  EXPECT_EQ(serving.statistics().adapters.at(0).name, "a");
  EXPECT_EQ(serving.statistics().adapters.at(0).unfinished, 1);
  EXPECT_EQ(serving.statistics().adapters.at(0).requests, 1);
  serving.unload_adapter("a");
  EXPECT_TRUE(serving.statistics().adapters.empty());
  const auto refusal = serving.submit(request(1, "a", prompt_of(2, 20)));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, GenerationRefusal::Kind::kUnknownModel);
  run(serving, told);
  EXPECT_TRUE(told[0].ended);
  EXPECT_EQ(told[0].tokens, alone(asked, Compute::kFloat32, backend));
}

// Several answers to one prompt begin with the row of the first.
TEST_F(AdaptersTest, EveryAnswerOfARequestHasItsAdapter) {
  const auto backend = make_cpu_backend(1);
  Engine engine = model_.load(backend, small_options());
  ServingEngine serving(engine, nullptr, {{4, 64, 128, 64}, 0});
  serving.load_adapter("a", adapters_.at("a"));
  GenerationRequest asked = request(0, "a", prompt_of(3, 20));
  asked.n = 2;
  ASSERT_FALSE(serving.submit(asked));
  std::map<int, Tokens> answers;
  while (!serving.idle())
    for (const GenerationEvent& event : serving.step())
      answers[event.index].insert(answers[event.index].end(), event.tokens.begin(), event.tokens.end());
  asked.n = 1;
  for (int index = 0; index < 2; ++index)
    EXPECT_EQ(answers[index], alone(asked, Compute::kFloat32, backend)) << index;
}

}  // namespace
}  // namespace llmq::testing
