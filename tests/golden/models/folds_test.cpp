// A fold moves a channel scale s from its readers into their producer: producer / s, readers' columns * s.
// With powers of two nothing rounds, so the logits of a folded model equal the original's to the bit, and a
// reader left out shows at once. Where a mixer reads the residual stream as it is, there is nothing to fold
// into.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden_logits.h"
#include "golden_models.h"
#include "model/open_checkpoint.h"

namespace llmq {
namespace {

using testing::logits_of;
using testing::model_folder;
using testing::read_tensors;
using testing::Tensors;

// 1/4 .. 4, from a fixed sequence.
float power_of_two(std::size_t i) {
  static constexpr float kPowers[] = {1.0f, 2.0f, 0.25f, 4.0f, 0.5f};
  return kPowers[(i * 7 + i / 5) % 5];
}

// The scale of each input column of the site's readers.
std::vector<float> column_scales(const SiteSpec& site) {
  std::vector<float> scales;
  for (std::int64_t c = 0; c < site.channels; ++c) {
    std::int64_t row = c;  // of the producer
    if (const auto* made = std::get_if<LinearRows>(&site.producer); made != nullptr && made->head_dim > 1)
      row = c / made->head_dim / made->repeat * made->head_dim + c % made->head_dim;
    scales.push_back(power_of_two(static_cast<std::size_t>(row)));
  }
  return scales;
}

// Divides rows [first, first + rows) of a matrix, or elements of a vector.
void divide_rows(const std::string& tensor, std::int64_t first, std::int64_t rows, Tensors& tensors) {
  auto& [shape, values] = tensors.at(tensor);
  const auto columns = static_cast<std::size_t>(shape.rank() == 1 ? 1 : shape.back());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::size_t c = 0; c < columns; ++c)
      values[static_cast<std::size_t>(first + row) * columns + c] /=
          power_of_two(static_cast<std::size_t>(row));
}

// Elements of the gain, which is stored less an offset.
void divide_gain(const NormSpec& norm, Tensors& tensors) {
  std::vector<float>& stored = tensors.at(norm.gain.tensor).second;
  for (std::size_t c = 0; c < stored.size(); ++c)
    stored[c] = norm.stored(norm.multiplier(stored[c]) / power_of_two(c));
}

// Rows of values, which have rows of keys before them in each head, and no bias.
void divide_values_of_heads(const LinearRows& made, const LinearSpec& linear, Tensors& tensors) {
  const std::int64_t each = made.skipped + made.head_dim;
  const auto divide = [&](const std::string& name, std::int64_t columns) {
    std::vector<float>& values = tensors.at(name).second;
    for (std::int64_t row = 0; row < linear.out_features; ++row)
      for (std::int64_t c = 0; c < columns && row % each >= made.skipped; ++c)
        values[static_cast<std::size_t>(row * columns + c)] /=
            power_of_two(static_cast<std::size_t>(row / each * made.head_dim + row % each - made.skipped));
  };
  divide(linear.weight.tensor, linear.in_features);
  if (linear.has_bias()) divide(linear.bias.tensor, 1);
}

void divide_producer(const SiteSpec& site, const BlockSpec& block, Tensors& tensors) {
  if (const auto* made = std::get_if<NormGain>(&site.producer)) {
    const NormSpec& norm = block.at(made->norm);
    divide_gain(norm, tensors);
    if (norm.bias.exists()) divide_rows(norm.bias.tensor, 0, norm.width, tensors);
  }
  if (const auto* made = std::get_if<LinearRows>(&site.producer)) {
    const LinearSpec& linear = block.at(made->rows.linear);
    if (made->skipped > 0) return divide_values_of_heads(*made, linear, tensors);
    std::int64_t first = 0;
    for (std::size_t part = 0; part < made->rows.part; ++part) first += linear.parts[part];
    divide_rows(linear.weight.tensor, first, linear.parts[made->rows.part], tensors);
    if (linear.has_bias()) divide_rows(linear.bias.tensor, first, linear.parts[made->rows.part], tensors);
  }
}

void apply(const SiteSpec& site, const BlockSpec& block, Tensors& tensors) {
  divide_producer(site, block, tensors);
  const std::vector<float> scales = column_scales(site);
  for (const LinearId reader : site.readers) {
    auto& values = tensors.at(block.at(reader).weight.tensor).second;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= scales[i % scales.size()];
  }
}

class FoldedModel : public ::testing::TestWithParam<std::string> {};

TEST_P(FoldedModel, ComputesTheSameBits) {
  const Path model = model_folder(GetParam());
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  Tensors tensors = read_tensors(checkpoint);
  // The same tensors as FP32, for a family may compute by the type of its table.
  const std::vector<float> before = logits_of(tensors, model);
  for (const BlockSpec& block : spec.blocks)
    for (const SiteSpec& site : block.sites)
      if (!std::holds_alternative<std::monostate>(site.producer)) apply(site, block, tensors);
  EXPECT_EQ(logits_of(tensors, model), before);
}

// Without a gate, act(s up) is s act(up) for a ReLU alone; nor does s pass a clamp and a sum.
bool is_behind_a_curve(const SiteSpec& site, const BlockSpec& block) {
  if (const MixtureSpec* const mixture = block.mixture();
      mixture != nullptr && mixture->activation == Activation::kClampedSwiglu)
    return std::any_of(mixture->experts.begin(), mixture->experts.end(),
                       [&](const ExpertSpec& expert) { return &site == &block.at(expert.inner); });
  const MlpSpec* mlp = block.mlp();
  return mlp != nullptr && !mlp->gate && mlp->activation != Activation::kRelu &&
         &site == &block.at(mlp->inner);
}

// The gain of the norm before it is one for all heads.
bool is_behind_heads(const SiteSpec& site, const BlockSpec& block) {
  const DeltaSpec* const delta = block.delta();
  return delta != nullptr && &site == &block.at(delta->inner);
}

// A norm over each value takes a scale away again; what a router makes of the residual stream is its own.
bool is_behind_values_norm(const SiteSpec& site, const BlockSpec& block) {
  const AttentionSpec* const attention = block.attention();
  return attention != nullptr && (attention->value_norm || attention->shared_pages) &&
         &site == &block.at(attention->inner);
}
bool is_of_router_alone(const SiteSpec& site, const BlockSpec& block) {
  const MixtureSpec* const mixture = block.mixture();
  return mixture != nullptr && mixture->router_norm && &site == &block.at(block.at(mixture->router).site);
}

// What a gate gives passes a curve, and what it multiplies is looked up.
bool is_of_embedding(const SiteSpec& site, const BlockSpec& block) {
  return block.embedded() != nullptr && &site == &block.at(block.embedded()->inner);
}

void expect_every_reader_to_matter(const BlockSpec& block, const Checkpoint& checkpoint, const Path& model,
                                   const std::vector<float>& original) {
  for (const SiteSpec& site : block.sites) {
    const SublayerSpec& part = block.sublayer_of(block.at(site.readers.front()).site);
    const bool reads_the_stream = !part.before && &site == &block.at(part.sites.front());
    const bool nothing_folds = reads_the_stream || is_behind_a_curve(site, block) ||
                               is_behind_heads(site, block) || is_behind_values_norm(site, block) ||
                               is_of_router_alone(site, block) || is_of_embedding(site, block);
    ASSERT_EQ(std::holds_alternative<std::monostate>(site.producer), nothing_folds) << site.name;
    if (nothing_folds) continue;
    for (std::size_t dropped = 0; dropped < site.readers.size(); ++dropped) {
      SiteSpec faulty = site;
      faulty.readers.erase(faulty.readers.begin() + static_cast<std::ptrdiff_t>(dropped));
      Tensors tensors = read_tensors(checkpoint);
      apply(faulty, block, tensors);
      EXPECT_NE(logits_of(tensors, model), original) << site.name << ", reader " << dropped;
    }
  }
}

TEST_P(FoldedModel, EveryReaderMatters) {
  const Path model = model_folder(GetParam());
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::vector<float> original = logits_of(read_tensors(checkpoint), model);
  expect_every_reader_to_matter(spec.blocks[0], checkpoint, model, original);
  const AttentionSpec* const second = spec.blocks[1].attention();
  if (spec.blocks[0].delta() != nullptr || (second != nullptr && second->value_is_key()))  // the other kind
    expect_every_reader_to_matter(spec.blocks[1], checkpoint, model, original);
}

TEST(FoldedModels, NothingFoldsThroughAGelu) {
  const Path model = model_folder("starcoder2");
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  const BlockSpec block = ModelSpec::read(checkpoint).blocks[0];
  SiteSpec faulty = block.at(block.mlp()->inner);
  faulty.producer = LinearRows{block.mlp()->up};
  Tensors tensors = read_tensors(checkpoint);
  apply(faulty, block, tensors);
  EXPECT_NE(logits_of(tensors, model), logits_of(checkpoint));
}

// The fold that others take for granted: v divided, o multiplied.
TEST(FoldedModels, NothingFoldsThroughANormOfValues) {
  const Path model = model_folder("gemma4_text");
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  for (const BlockSpec& block : spec.blocks) {
    const AttentionSpec& attention = *block.attention();
    SiteSpec faulty = block.at(attention.inner);
    faulty.producer = LinearRows{attention.value, attention.heads / attention.kv_heads, attention.head_dim};
    Tensors tensors = read_tensors(checkpoint);
    apply(faulty, block, tensors);
    EXPECT_NE(logits_of(tensors, model), logits_of(checkpoint)) << block.prefix;
  }
}

// Of the norm before the experts the router is no reader, though it reads the same rows; nor is the MLP.
TEST(FoldedModels, NothingFoldsIntoTheRouterOfGemma4) {
  const Path model = model_folder("gemma4_text-moe");
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  const BlockSpec block = ModelSpec::read(checkpoint).blocks[0];
  const MixtureSpec& mixture = *block.mixture();
  for (const LinearId wrong : {mixture.router, block.mlp()->up.linear}) {
    SiteSpec faulty = block.at(mixture.input);
    ASSERT_EQ(std::count(faulty.readers.begin(), faulty.readers.end(), wrong), 0);
    faulty.readers.push_back(wrong);
    Tensors tensors = read_tensors(checkpoint);
    apply(faulty, block, tensors);
    EXPECT_NE(logits_of(tensors, model), logits_of(checkpoint)) << block.at(wrong).module;
  }
}

// A norm behind a mixer multiplies what is added to the residual stream, which more than one mixer reads.
TEST(FoldedModels, NothingFoldsIntoANormBehind) {
  const Path model = model_folder("olmo2");
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  const BlockSpec block = ModelSpec::read(checkpoint).blocks[0];
  const std::vector<float> original = logits_of(checkpoint);
  for (const SublayerSpec& behind : block.sublayers)
    for (const SublayerSpec& reading : block.sublayers) {
      SiteSpec faulty = block.at(reading.sites.front());
      faulty.producer = NormGain{behind.after.value()};
      Tensors tensors = read_tensors(checkpoint);
      apply(faulty, block, tensors);
      EXPECT_NE(logits_of(tensors, model), original) << faulty.name;
    }
}

INSTANTIATE_TEST_SUITE_P(Families, FoldedModel, ::testing::ValuesIn(testing::dense_golden_names()),
                         [](const auto& test) { return testing::as_test_name(test.param); });

}  // namespace
}  // namespace llmq
