// Tokens drawn where the logits are: the host's, row by row and answer by answer.
#include "device/token_drawer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/open_checkpoint.h"
#include "runtime/sampler.h"
#include "runtime/serving_engine.h"
#include "support/recording_device.h"

namespace llmq::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::shared_ptr<Backend> drawing_backend(const std::string& name) {
  try {
    return make_backend({name, 1});
  } catch (const Error& error) {
    if (name != "cuda") throw;
    return nullptr;
  }
}

// Rows of one width: near to each other, far apart, with equals, holes and what no model should say.
std::vector<std::vector<float>> rows_of(std::size_t width) {
  std::vector<std::vector<float>> rows;
  std::uint64_t state = width;
  for (const float spread : {0.1f, 3.0f, 40.0f}) {
    std::vector<float>& row = rows.emplace_back();
    for (std::size_t i = 0; i < width; ++i)
      row.push_back(spread *
                    static_cast<float>(static_cast<double>((state = race_mix(state)) >> 40) * 0x1p-24));
  }
  rows.emplace_back(width, 2.5f);
  rows.push_back(rows[1]);
  for (std::size_t i = 0; i < width; i += 2) rows.back()[i] = -kInf;
  rows.push_back(rows[1]);
  for (std::size_t i = 0; i < width; i += 3) rows.back()[i] = kNan;
  rows.push_back(rows[1]);
  rows.back()[width / 2] = kInf;
  rows.emplace_back(width, kNan);
  rows.emplace_back(width, -kInf);
  return rows;
}

class TokenDrawerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenDrawerTest, DrawsAsTheHostDoes) {
  const auto backend = drawing_backend(GetParam());
  if (!backend) GTEST_SKIP() << "no CUDA device";
  TokenDrawer& drawer = *backend->extensions().token_drawer;
  const SamplingOptions ways[] = {
      {}, {.temperature = 0.3}, {.temperature = 1, .seed = 5}, {.temperature = 4, .min_p = 0.2, .seed = 6}};
  int others = 0;  // than the favourite
  for (const std::size_t width : {1, 2, 255, 256, 257, 2000}) {
    const std::vector<std::vector<float>> rows = rows_of(width);
    std::vector<float> values;
    for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
    const Buffer buffer = backend->allocate(values.size() * sizeof(float));
    const TensorView logits =
        buffer.view(DType::kF32, {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(width)});
    backend->upload(logits, values.data());
    for (std::uint64_t draw = 0; draw < 24; ++draw) {
      std::vector<TokenDraw> draws;
      std::vector<std::int32_t> want, got(rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const SamplingOptions& way = ways[(i + draw) % std::size(ways)];
        draws.push_back(whole_row_draw(way, draw).value());
        want.push_back(sample_token(rows[i], way, draw));
        others += want.back() != greedy_token(rows[i]);
      }
      drawer.draw_tokens(logits, draws, got);
      EXPECT_EQ(got, want) << width << " tokens, draw " << draw;
    }
  }
  EXPECT_GT(others, 100);
}

INSTANTIATE_TEST_SUITE_P(Devices, TokenDrawerTest, ::testing::Values("emulated", "cuda"));

TEST(TokenDrawer, WhatNeedsTheWholeRowSortedIsTheHosts) {
  EXPECT_TRUE(whole_row_draw({.temperature = 0, .top_k = 3, .top_p = 0.5}, 0));
  EXPECT_FALSE(whole_row_draw({.temperature = 1, .top_k = 3}, 0));
  EXPECT_FALSE(whole_row_draw({.temperature = 1, .top_p = 0.9}, 0));
}

std::vector<GenerationRequest> requests(bool with_logprobs) {
  const SamplingOptions ways[] = {
      {}, {.temperature = 0.9, .seed = 7}, {.temperature = 1.2, .min_p = 0.05, .seed = 8}};
  std::vector<GenerationRequest> all;
  for (std::size_t i = 0; i < std::size(ways); ++i) {
    GenerationRequest& request = all.emplace_back();
    request.id = i + 1;
    for (std::int32_t t = 0; t < 6; ++t)
      request.prompt.push_back(static_cast<std::int32_t>(3 + 211 * i) + 37 * t);
    request.max_tokens = 10;
    request.ignore_eos = true;
    request.sampling = ways[i];
    if (with_logprobs) request.logprobs = 0;
  }
  return all;
}

std::vector<std::vector<std::int32_t>> answers(Engine& engine, const std::vector<GenerationRequest>& asked,
                                               Drafter* drafter, std::int64_t guesses) {
  ServingEngine serving(engine, nullptr, {{4, 32, 64, 64, 0}, guesses}, drafter);
  for (const GenerationRequest& request : asked) EXPECT_FALSE(serving.submit(request));
  std::vector<std::vector<std::int32_t>> tokens(asked.size());
  while (!serving.idle())
    for (const GenerationEvent& event : serving.step())
      tokens[event.id - 1].insert(tokens[event.id - 1].end(), event.tokens.begin(), event.tokens.end());
  return tokens;
}

Engine load(const std::string& model, const std::shared_ptr<Backend>& backend) {
  Engine::Options options;
  options.max_context = 64;
  options.kv_tokens = 256;
  return Engine::load(open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/models/" + model), backend,
                      options);
}

// An answer whose log probabilities are asked for is drawn by the host.
TEST(TokenDrawer, AnswersAreTheHosts) {
  DeviceNotes notes;
  Engine engine = load("tinystories-656k", recording_backend(notes));
  const auto want = answers(engine, requests(true), nullptr, 0);
  const std::size_t rows_down = std::exchange(notes.down, 0);
  EXPECT_EQ(answers(engine, requests(false), nullptr, 0), want);
  EXPECT_EQ(notes.down * static_cast<std::size_t>(engine.spec().vocab_size), rows_down)
      << "four bytes a token, instead of a row of logits";

  // One is looked at by the host in the same steps.
  std::vector<GenerationRequest> mixed = requests(false);
  mixed[1].logprobs = 2;
  EXPECT_EQ(answers(engine, mixed, nullptr, 0), want);

  DeviceNotes drafts;  // of the same model, whose guesses are right
  const std::unique_ptr<Drafter> drafter =
      make_model_drafter(load("tinystories-656k", recording_backend(drafts)), 2048, 64);
  EXPECT_EQ(answers(engine, requests(false), drafter.get(), 3), want);
  EXPECT_GT(drafts.down, 0u);
  EXPECT_LT(drafts.down, 2048u * sizeof(float)) << "a row of logits went to the host";
}

}  // namespace
}  // namespace llmq::testing
