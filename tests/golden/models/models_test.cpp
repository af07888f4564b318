// Logits of small random-weight models of every family against Transformers' float32 ones (written by
// tests/interop/make_random_models.py).
//
// The bar: errors within 1e-5 of the range of a model's logits, and the same next token wherever the two best
// logits differ by more than twice that. It is what float32 leaves: both sides sum a few dozen products per
// output in different orders through a few layers, which is some ten units of 2^-24 of the largest term; a
// wrong rope, mask, bias or norm is off by 1e-2 and more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/io.h"
#include "golden_models.h"
#include "io/safetensors.h"
#include "model/families/wrapper.h"
#include "model/open_checkpoint.h"
#include "runtime/engine.h"

namespace llmq {
namespace {

using testing::as_test_name;
using testing::golden_folder;
using testing::golden_names;

struct Golden {
  std::vector<std::int32_t> ids;
  std::vector<float> logits;  // [ids, vocab]
};

Golden read_golden(const Path& path) {
  const auto file = system_io().open(path);
  const auto mapping = file->map();
  Golden golden;
  for (const SafetensorsEntry& entry : parse_safetensors(mapping->bytes(), path.string()).entries) {
    const auto bytes = mapping->bytes().subspan(entry.offset, entry.bytes);
    const auto copy = [&](auto& into) {
      into.resize(bytes.size() / sizeof into[0]);
      std::memcpy(into.data(), bytes.data(), bytes.size());
    };
    if (entry.name == "ids") copy(golden.ids);
    if (entry.name == "logits") copy(golden.logits);
  }
  return golden;
}

// Logits of all ids, fed in chunks of `chunk` rows: row invariance makes the chunking invisible.
std::vector<float> run(const Path& model, const std::vector<std::int32_t>& ids, std::size_t chunk,
                       bool divided = false) {
  Engine::Options options;
  options.compute = Compute::kFloat32;
  options.max_context = static_cast<std::int64_t>(ids.size());
  options.kv_tokens = 64;
  if (divided) options.further_members = {make_reference_backend()};
  Engine engine =
      Engine::load(open_checkpoint(system_io(), model.string()), make_reference_backend(), options);
  KvSequence sequence(engine.cache());
  std::vector<float> all;
  for (std::size_t first = 0; first < ids.size(); first += chunk) {
    const auto part = std::span(ids).subspan(first, std::min(chunk, ids.size() - first));
    const Buffer hidden = engine.forward(sequence, part);
    const auto rows = static_cast<std::int64_t>(part.size());
    const TensorView logits = engine.logits(hidden.view(DType::kF32, {rows, engine.spec().hidden_size}));
    std::vector<float> values(static_cast<std::size_t>(logits.shape.elements()));
    engine.backend().download(values.data(), logits);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class GoldenModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, LogitsEqualTransformers) {
  const Path folder = golden_folder() / GetParam();
  const Golden golden = read_golden(folder / "logits.safetensors");
  ASSERT_FALSE(golden.ids.empty());
  const std::vector<float> logits = run(folder / "model", golden.ids, golden.ids.size());
  ASSERT_EQ(logits.size(), golden.logits.size());
  const auto [least, most] = std::minmax_element(golden.logits.begin(), golden.logits.end());
  const double bar = 1e-5 * (static_cast<double>(*most) - *least);
  double worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - golden.logits[i]));
  EXPECT_LE(worst, bar) << "range " << *most - *least;
  RecordProperty("worst_over_range", fmt::format("{:.3g}", worst / (static_cast<double>(*most) - *least)));

  const std::size_t vocabulary = logits.size() / golden.ids.size();
  for (std::size_t row = 0; row < golden.ids.size(); ++row) {
    std::vector<float> expected(golden.logits.begin() + static_cast<std::ptrdiff_t>(row * vocabulary),
                                golden.logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * vocabulary));
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    const float top = expected[static_cast<std::size_t>(best)];
    expected[static_cast<std::size_t>(best)] = -std::numeric_limits<float>::infinity();
    if (static_cast<double>(top) - *std::max_element(expected.begin(), expected.end()) <= 2 * bar) continue;
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * vocabulary);
    EXPECT_EQ(std::max_element(first, first + static_cast<std::ptrdiff_t>(vocabulary)) - first, best)
        << "row " << row;
  }
}

TEST_P(GoldenModel, ChunksOfAnySizeGiveTheSameBits) {
  const Path folder = golden_folder() / GetParam();
  const Golden golden = read_golden(folder / "logits.safetensors");
  const std::vector<float> whole = run(folder / "model", golden.ids, golden.ids.size());
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, std::size_t{32}})
    EXPECT_EQ(run(folder / "model", golden.ids, chunk), whole) << "chunks of " << chunk;
}

// What one device has to have whole, by its name; empty: nothing.
std::string undivided(const Path& model) {
  const ModelSpec spec = ModelSpec::read(open_checkpoint(system_io(), model.string()));
  const BlockSpec& block = spec.blocks.at(0);
  if (block.delta() != nullptr) return "gated delta net";
  if (block.latent_attention() != nullptr) return "attention over latents";
  const AttentionSpec& attention = *block.attention();
  if (attention.query_norm && block.at(*attention.query_norm).width != attention.head_dim)
    return "norm of q and k over all heads";
  if (std::any_of(spec.blocks.begin(), spec.blocks.end(),
                  [](const BlockSpec& own) { return own.mixture() != nullptr; }))
    return "mixture of experts";
  if (block.embedded() != nullptr) return "embedding of each block";
  if (block.sublayers.back().joined) return "sum of two mixers";
  return std::any_of(spec.blocks.begin(), spec.blocks.end(),
                     [](const BlockSpec& own) { return own.attention()->kv_heads == 1; })
             ? "KV heads"
             : "";
}

// Heads, rows and biases of every family fall to the member they belong to.
TEST_P(GoldenModel, DividedOverTwoDevicesItHasTheSameBits) {
  const Path folder = golden_folder() / GetParam();
  const Golden golden = read_golden(folder / "logits.safetensors");
  const std::string whole = undivided(folder / "model");
  try {
    EXPECT_EQ(run(folder / "model", golden.ids, 7, true),
              run(folder / "model", golden.ids, golden.ids.size()));
    EXPECT_EQ(whole, "") << "this one is to be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.detail().message,
              fmt::format("the model's 1 {} cannot be divided over 2 devices", whole));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel, ::testing::ValuesIn(golden_names()),
                         [](const auto& test) { return as_test_name(test.param); });

TEST(GoldenModels, EveryFamilyIsThere) {
  const std::vector<std::string> names = golden_names();
  const auto expect_model_of = [&](const std::string& type) {
    EXPECT_TRUE(
        std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return name == type || name.starts_with(type + "-"); }))
        << type << ": no model of it lies in tests/golden/models";
  };
  for (const Family* family : families()) expect_model_of(family->model_type);
  for (const Wrapper* wrapper : wrappers()) expect_model_of(wrapper->model_type);
}

}  // namespace
}  // namespace llmq
