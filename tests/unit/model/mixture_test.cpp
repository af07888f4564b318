// A mixture of experts on every kind of backend: its own formula within rounding, and the same bits row by
// row as all at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "base/half.h"
#include "base/io.h"
#include "device/cuda/cuda_backend.h"
#include "model/mixers/mixer.h"
#include "model/open_checkpoint.h"
#include "scratch_mixture.h"
#include "tests/support/temporary_directory.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

double dot_of_row(const std::vector<float>& weight, std::size_t row, const std::vector<double>& x) {
  double sum = 0;
  for (std::size_t k = 0; k < x.size(); ++k) sum += static_cast<double>(weight[row * x.size() + k]) * x[k];
  return sum;
}

// What one row gets, by the definition.
std::vector<double> by_definition(const ScratchMixture& model, const std::vector<double>& x) {
  const std::string at = "model.layers.0.mlp.";
  const auto weight = [&](const std::string& name) {
    return floats_of(model.tensors.at(at + name + ".weight"));
  };
  std::vector<double> y(x.size());
  const auto pass = [&](const std::string& expert, double share) {
    const std::vector<float> gate = weight(expert + ".gate_proj"), up = weight(expert + ".up_proj"),
                             down = weight(expert + ".down_proj");
    std::vector<double> inner(gate.size() / x.size());
    for (std::size_t i = 0; i < inner.size(); ++i) {
      const double g = dot_of_row(gate, i, x);
      inner[i] = g / (1 + std::exp(-g)) * dot_of_row(up, i, x);
    }
    for (std::size_t h = 0; h < y.size(); ++h) y[h] += share * dot_of_row(down, h, inner);
  };
  std::vector<double> powers;
  double sum = 0;
  for (std::size_t e = 0; e < ScratchMixture::kExperts; ++e) {
    powers.push_back(std::exp(dot_of_row(weight("gate"), e, x)));
    sum += powers.back();
  }
  std::vector<double> sorted = powers;
  std::sort(sorted.rbegin(), sorted.rend());
  for (std::size_t e = 0; e < powers.size(); ++e)
    if (powers[e] >= sorted[1]) pass(fmt::format("experts.{}", e), powers[e] / sum);
  pass("shared_expert", 1 / (1 + std::exp(-dot_of_row(weight("shared_expert_gate"), 0, x))));
  return y;
}

std::vector<float> mixed_rows(Backend& backend, Compute compute, const ScratchMixture& model,
                              std::span<const float> rows, const RowChunks& chunks) {
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const BlockSpec& block = spec.blocks[0];
  const BlockWeights weights = load_block(backend, compute, LinearSource::open(checkpoint), block);
  ForwardContext context = make_forward_context(spec, backend, compute, 32);
  context.chunks = chunks;
  const auto count = static_cast<std::int64_t>(rows.size()) / spec.hidden_size;
  const Buffer given = backend.allocate(rows.size_bytes()), read = backend.allocate(rows.size_bytes()),
               out = backend.allocate(rows.size_bytes());
  const TensorView f32 = given.view(DType::kF32, {count, spec.hidden_size}),
                   x = read.view(activation_dtype(compute), {count, spec.hidden_size}),
                   y = out.view(DType::kF32, {count, spec.hidden_size});
  backend.upload(f32, rows.data());
  backend.convert(x, f32);
  const BatchRows batch;
  const KvPages pages;
  run_mixer({context, weights, batch, pages}, *block.mixture(), x, y);
  std::vector<float> values(rows.size());
  backend.download(values.data(), y);
  return values;
}

class Mixture : public ::testing::TestWithParam<Compute> {};

TEST_P(Mixture, IsItsDefinitionAndRowsDoNotSeeOneAnother) {
  const Compute compute = GetParam();
  const ScratchMixture model;
  constexpr std::size_t kMixedRows = 37, kHidden = ScratchMixture::kHidden;
  std::vector<float> rows = floats_of(noise_tensor({kMixedRows, kHidden}, 99));
  for (float& value : rows) value = to_float(to_bfloat16(4 * value));
  for (const auto& backend :
       {make_reference_backend(), make_fake_backend(), make_cpu_backend(2), make_emulated_cuda_backend(1)}) {
    const std::vector<float> all = mixed_rows(*backend, compute, model, rows, {});
    double worst = 0, greatest = 0;
    for (std::size_t row = 0; row < kMixedRows; ++row) {
      const std::vector<double> want =
          by_definition(model, {rows.begin() + static_cast<std::ptrdiff_t>(row * kHidden),
                                rows.begin() + static_cast<std::ptrdiff_t>((row + 1) * kHidden)});
      for (std::size_t h = 0; h < kHidden; ++h) {
        worst = std::max(worst, std::abs(static_cast<double>(all[row * kHidden + h]) - want[h]));
        greatest = std::max(greatest, std::abs(want[h]));
      }
    }
    // BF16 weights of router and experts, and BF16 inner values: some roundings of 2^-9 each; an expert left
    // out or weighed otherwise is off by a tenth of the greatest.
    EXPECT_LE(worst, greatest * (compute == Compute::kFloat32 ? 2e-6 : 2e-2)) << backend->name();
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{5}}) {
      std::vector<float> parts;
      for (std::size_t first = 0; first < kMixedRows; first += chunk) {
        const std::vector<float> part = mixed_rows(
            *backend, compute, model,
            std::span(rows).subspan(first * kHidden, std::min(chunk, kMixedRows - first) * kHidden), {});
        parts.insert(parts.end(), part.begin(), part.end());
      }
      EXPECT_EQ(parts, all) << backend->name() << ", " << chunk << " rows at a time";
    }
    EXPECT_EQ(mixed_rows(*backend, compute, model, rows, {1, 3}), all) << backend->name() << ", chunks of 3";
  }
}

INSTANTIATE_TEST_SUITE_P(Computes, Mixture, ::testing::Values(Compute::kFloat32, Compute::kBFloat16),
                         [](const auto& test) { return compute_name(test.param); });

TEST(MixtureSpecs, SitesReadersAndWhatStaysDense) {
  const ScratchMixture model;
  const ModelSpec spec = ModelSpec::read(model.open());
  const BlockSpec& block = spec.blocks[0];
  const SublayerSpec& part = block.sublayers[1];
  EXPECT_TRUE(part.outputs().empty());
  ASSERT_EQ(part.sites.size(), 7u);  // x_mlp, and one behind each expert
  const SiteSpec& input = block.at(part.sites.front());
  EXPECT_EQ(input.readers.size(), 2u + 2 * 6);  // router and shared gate, too: a fold has to scale them
  EXPECT_TRUE(std::holds_alternative<NormGain>(input.producer));
  EXPECT_THAT(spec.never_quantized(),
              ::testing::IsSupersetOf(
                  {"model.layers.0.mlp.gate.weight", "model.layers.1.mlp.shared_expert_gate.weight"}));
  EXPECT_EQ(spec.widest_inner(), 24);
  EXPECT_EQ(block.share_read(block.mixture()->router, 1), 1);
  EXPECT_EQ(block.share_read(block.mixture()->experts[3].up.linear, 1), 2.0 / 5);
  EXPECT_EQ(block.share_read(block.mixture()->experts[3].output, 3), 1);
  EXPECT_EQ(block.share_read(block.mixture()->shared->output, 1), 1);
  EXPECT_EQ(block.share_read(block.attention()->output, 1), 1);
}

std::string mixture_refusal(const std::function<void(ScratchMixture&)>& bend) {
  ScratchMixture model;
  bend(model);
  try {
    ModelSpec::read(model.open());
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(MixtureSpecs, OtherConfigsAreRefusedByName) {
  const auto with = [](const char* key, const Json& value) {
    return mixture_refusal([&](ScratchMixture& model) { model.config[key] = value; });
  };
  EXPECT_EQ(with("norm_topk_prob", true), "");
  EXPECT_THAT(with("num_experts_per_tok", 6),
              HasSubstr("num_experts_per_tok: is 6, and there are 5 experts"));
  EXPECT_THAT(with("num_experts_per_tok", 0), HasSubstr("num_experts_per_tok: is 0, which is not between"));
  EXPECT_THAT(with("num_experts", nullptr),
              HasSubstr("num_experts: is missing, which stands for 60 in 2 blocks"));
  EXPECT_THAT(with("num_experts", 0), HasSubstr("num_experts: is 0, which is not between 1 and"));
  EXPECT_THAT(with("num_experts", 4000), HasSubstr("is 4000 in 2 blocks, but the checkpoint has"));
  EXPECT_THAT(with("num_experts", 6), HasSubstr("mlp.gate.weight"));
  EXPECT_THAT(with("num_local_experts", 4), HasSubstr("num_experts: differs from num_local_experts 4"));
  EXPECT_THAT(with("use_sliding_window", true), HasSubstr("use_sliding_window"));
  EXPECT_THAT(with("mlp_only_layers", Json::array({2})), HasSubstr("mlp_only_layers: names block 2"));
  EXPECT_THAT(with("mlp_only_layers", Json::array({0})), HasSubstr("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(with("decoder_sparse_step", 0), HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(mixture_refusal([](ScratchMixture& model) {
                model.tensors.erase("model.layers.1.mlp.experts.3.up_proj.weight");
              }),
              HasSubstr("model.layers.1.mlp.experts.3.up_proj.weight"));
  EXPECT_THAT(mixture_refusal([](ScratchMixture& model) {
                model.tensors["model.layers.0.mlp.experts.5.up_proj.weight"] = scratch_ramp({24, 16});
              }),
              HasSubstr("nothing in this family reads this tensor"));
}

// A golden model whose config has another member; what is read of it.
ModelSpec spec_with(const char* name, const char* key, const Json& value) {
  const Path from = Path(LLMQ_SOURCE_DIR) / "tests/golden/models" / name / "model";
  const testing::TemporaryDirectory directory;
  std::filesystem::copy_file(from / "model.safetensors", directory / "model.safetensors");
  Json config = Json::parse(read_text(system_io(), from / "config.json"), "config.json");
  config[key] = value;
  write_text_atomically(system_io(), directory / "config.json", config.dump());
  return ModelSpec::read(open_checkpoint(system_io(), directory.path().string()));
}

std::string refusal_with(const char* name, const char* key, const Json& value) {
  try {
    spec_with(name, key, value);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// The class's own number is not taken for one that the config says.
TEST(MixtureSpecs, AMissingNumberIsSaidToBeMissing) {
  EXPECT_THAT(refusal_with("qwen3_moe", "num_experts_per_tok", nullptr),
              HasSubstr("num_experts_per_tok: is missing, which stands for 8, and there are 6 experts"));
}

TEST(MixtureSpecs, AnExpertIsChosenWithACorrectionAmongGroups) {
  const ModelSpec spec = spec_with("glm4_moe", "use_cache", true);
  EXPECT_EQ(spec.blocks[0].mixture(), nullptr);
  const MixtureSpec& mixture = *spec.blocks[1].mixture();
  EXPECT_EQ(mixture.score, RouterScore::kSigmoid);
  EXPECT_EQ(spec.blocks[1].at(mixture.correction.value()).place.tensor,
            "model.layers.1.mlp.gate.e_score_correction_bias");
  EXPECT_FALSE(mixture.shared_gate.has_value());
  EXPECT_EQ(mixture.shared_width, 48);
  const auto with = [](const char* key, const Json& value) { return refusal_with("glm4_moe", key, value); };
  EXPECT_THAT(with("n_group", 4), HasSubstr("n_group: is 4, and groups of 6 experts"));
  EXPECT_THAT(with("n_group", 6), HasSubstr("two at least"));
  EXPECT_THAT(with("topk_group", 3), HasSubstr("topk_group: is 3, and there are 2 groups"));
  EXPECT_THAT(with("num_experts_per_tok", 4), HasSubstr("leaves 3 experts, and a row has 4"));
  EXPECT_THAT(with("first_k_dense_replace", 2), HasSubstr("model.layers.1.mlp"));
  EXPECT_THAT(refusal_with("minimax_m2", "scoring_func", "softmax"), HasSubstr("scoring_func"));
  EXPECT_THAT(refusal_with("minimax_m2", "attn_type_list", Json::array({1, 0})), HasSubstr("attn_type_list"));
  EXPECT_THAT(refusal_with("minimax_m2", "rotary_dim", 14), HasSubstr("rotary_dim"));
}

// It is stored, and no part of what is computed: each of its tensors is carried, or, unannounced, refused.
TEST(MixtureSpecs, ABlockBehindTheLastIsCarried) {
  const ModelSpec spec = spec_with("glm4_moe", "num_nextn_predict_layers", 1);
  EXPECT_THAT(spec.carried.parts, ::testing::ElementsAre("model.layers.2"));
  EXPECT_EQ(spec.carried.tensors, 38);
  EXPECT_TRUE(spec.carried.carries("model.layers.2.eh_proj.weight"));
  EXPECT_FALSE(spec.carried.carries("model.layers.20.eh_proj.weight"));
  EXPECT_TRUE(spec_with("glm4_moe-plain", "num_nextn_predict_layers", 1).carried.parts.empty());
  EXPECT_THAT(refusal_with("glm4_moe", "num_nextn_predict_layers", 0),
              HasSubstr("nothing in this family reads this tensor"));
}

// [experts, gate and up, hidden] and [experts, hidden, width] of the same numbers.
TEST(MixtureSpecs, StackedExpertsAreTheSameTensors) {
  ScratchMixture one, stacked;
  for (const std::string block : {"model.layers.0.", "model.layers.1."}) {
    ScratchTensor both{
        "F32", {ScratchMixture::kExperts, 2 * ScratchMixture::kWidth, ScratchMixture::kHidden}, {}},
        down{"F32", {ScratchMixture::kExperts, ScratchMixture::kHidden, ScratchMixture::kWidth}, {}};
    for (std::int64_t e = 0; e < ScratchMixture::kExperts; ++e)
      for (const auto& [linear, into] :
           {std::pair{"gate", &both}, std::pair{"up", &both}, std::pair{"down", &down}}) {
        const std::string name = fmt::format("{}mlp.experts.{}.{}_proj.weight", block, e, linear);
        into->bytes += stacked.tensors.at(name).bytes;
        stacked.tensors.erase(name);
      }
    stacked.tensors[block + "mlp.experts.gate_up_proj"] = both;
    stacked.tensors[block + "mlp.experts.down_proj"] = down;
  }
  const Checkpoint want = one.open(), got = stacked.open();
  ASSERT_EQ(got.tensors().size(), want.tensors().size());
  for (const StoredTensor& tensor : want.tensors())
    EXPECT_EQ(got.read_float32(got.at(tensor.name)), want.read_float32(tensor)) << tensor.name;
  EXPECT_EQ(ModelSpec::read(got).parameters(), ModelSpec::read(want).parameters());
  stacked.tensors["model.layers.0.mlp.experts.gate_up_proj"].shape = {ScratchMixture::kExperts, 1, 768};
  EXPECT_THAT([&] { stacked.open(); }, ::testing::ThrowsMessage<Error>(HasSubstr("has 1 rows a matrix")));
}

// A slab may be a byte, and what is known of its matrix is half a kilobyte.
TEST(MixtureSpecs, StacksHoldNoMoreMatricesThanModelsHave) {
  ScratchMixture model;
  for (int i = 0; i < 33; ++i)
    model.tensors[fmt::format("x{}.mlp.experts.gate_up_proj", i)] = {
        "U8", {4096, 2, 1}, std::string(8192, 'x')};
  EXPECT_THAT([&] { model.open(); },
              ::testing::ThrowsMessage<Error>(
                  HasSubstr("gate_up_proj: holds 8192 matrices, and with those before it more than 262144")));
}

// An expert has one place: alone, or in one stack.
TEST(MixtureSpecs, ACheckpointThatMixesLayoutsIsRefused) {
  const std::string at = "model.layers.0.mlp.experts.";
  ScratchMixture model;
  model.tensors[at + "gate_up_proj"] =
      noise_tensor({ScratchMixture::kExperts, 2 * ScratchMixture::kWidth, ScratchMixture::kHidden}, 3);
  const auto opened = [&] { model.open(); };
  EXPECT_THAT(
      opened,
      ::testing::ThrowsMessage<Error>(::testing::AllOf(
          HasSubstr(at + "0.gate_proj.weight: is stored by itself and as a part of " + at + "gate_up_proj"),
          HasSubstr("keep one of the two layouts"))));
  // Where nothing is stored twice, each kind may lie as it does.
  for (std::int64_t e = 0; e < ScratchMixture::kExperts; ++e)
    for (const char* linear : {"gate", "up"})
      model.tensors.erase(fmt::format("{}{}.{}_proj.weight", at, e, linear));
  EXPECT_NO_THROW(ModelSpec::read(model.open()));
  // Other depths of a stack, and another number of experts.
  model.tensors[at + "gate_up_proj"] =
      noise_tensor({ScratchMixture::kExperts - 1, 2 * ScratchMixture::kWidth, ScratchMixture::kHidden}, 3);
  EXPECT_THAT([&] { ModelSpec::read(model.open()); },
              ::testing::ThrowsMessage<Error>(HasSubstr(at + "4.gate_proj.weight: is missing")));
  model.tensors[at + "gate_up_proj"] =
      noise_tensor({ScratchMixture::kExperts, 2 * ScratchMixture::kWidth, ScratchMixture::kHidden - 1}, 3);
  EXPECT_THAT([&] { ModelSpec::read(model.open()); },
              ::testing::ThrowsMessage<Error>(HasSubstr(at + "0.gate_proj.weight: has shape [24, 15]")));
}

TEST(MixtureSpecs, ARouterWithNanIsRefusedByName) {
  ScratchMixture model;
  std::vector<float> router = floats_of(model.tensors.at("model.layers.0.mlp.gate.weight"));
  router[3] = std::nanf("");
  model.tensors["model.layers.0.mlp.gate.weight"] =
      scratch_tensor("F32", {ScratchMixture::kExperts, ScratchMixture::kHidden}, router);
  const Checkpoint checkpoint = model.open();
  const auto backend = make_reference_backend();
  try {
    load_block(*backend, Compute::kFloat32, LinearSource::open(checkpoint),
               ModelSpec::read(checkpoint).blocks[0]);
    FAIL() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.layers.0.mlp.gate.weight"));
  }
}

}  // namespace
}  // namespace llmq
