// What a fold promises, linear by linear: the written weight is the original one times the scales of its
// inputs, over the scales of its outputs, up to the rounding of its own codes.
//
// Only what was written is read. A norm's scales are old gain / new gain. Those of v (of up) are stored
// nowhere, so they are estimated from v's rows and then demanded of o's columns. Every bound is the
// rounding's own:
//
//   |value(r, k) - W'(r, k)| <= 1.5 step(r, k)
//
// A code inside the range errs by half a step. At the ends 255 stored steps may fall short of the range by
// 255 * 2^-8 < 1 step (BF16 has 8 significant bits: relative error 2^-8), and the rounded zero moves the code
// by 1/2 more.
#include <gtest/gtest.h>

#include <cmath>

#include "captured_output.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "support/named_parts.h"

namespace llmq {
namespace {

// FP32 arithmetic of the fold itself (two products, a division, a rounded gain): 8 roundings of 2^-24.
constexpr double kArithmetic = 8 * 0x1p-24;

struct Folded {
  Checkpoint checkpoint;
  ModelSpec spec = ModelSpec::read(checkpoint);
  LinearSource source = LinearSource::open(checkpoint);
  CapturedOutput output;

  explicit Folded(const std::string& recipe, Checkpoint model = stories()) : checkpoint(std::move(model)) {
    const auto backend = make_cpu_backend(2);
    const Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0);
    CalibrationSet samples = some_samples(2, 24);
    for (std::vector<std::int32_t>& ids : samples.samples)
      for (std::int32_t& id : ids) id %= static_cast<std::int32_t>(spec.vocab_size);
    run_pipeline(plan, checkpoint, spec, samples, *backend, output, {});
  }

  std::vector<float> written(const std::string& name) const {
    const CapturedOutput::Dense& dense = output.dense.at(name);
    std::vector<float> values(static_cast<std::size_t>(dense.shape.elements()));
    to_float32(TensorView(dense.bytes.data(), dense.dtype, dense.shape), values);
    return values;
  }

  // Old gain over new gain, per channel.
  std::vector<double> norm_scales(const std::string& name) const {
    const std::vector<float> fresh = written(name), old = source.tensor(name);
    std::vector<double> scales;
    for (std::size_t c = 0; c < old.size(); ++c)
      scales.push_back(old[c] == fresh[c] ? 1.0 : static_cast<double>(old[c]) / fresh[c]);
    return scales;
  }
};

// An estimate and how far the truth may be from it.
struct Estimate {
  double value = 1, error = 0;
};

// A linear as written and as it was.
struct Pair {
  const LinearSpec& linear;
  const QuantizedMatrix& matrix;
  std::vector<float> value;
  ZeroedNumbers<float> original;

  Pair(const Folded& folded, const LinearSpec& spec)
      : linear(spec), matrix(folded.output.quantized.at(spec.module)) {
    ThreadPool here(1);
    original = folded.source.weight(spec, here);
    value.resize(original.size());
    dequantize(matrix, value);
  }
  std::size_t rows() const { return static_cast<std::size_t>(linear.out_features); }
  std::size_t columns() const { return static_cast<std::size_t>(linear.in_features); }
  double reach(std::size_t row, std::size_t k) const {
    const auto group = static_cast<std::size_t>(matrix.scheme.group_of(linear.in_features));
    return 1.5 * static_cast<double>(matrix.scales[row * (columns() / group) + k / group]);
  }
};

void expect_near(const Pair& p, std::size_t row, std::size_t k, double expected, double slack) {
  const double bound = p.reach(row, k) + std::fabs(expected) * kArithmetic + slack;
  ASSERT_LE(std::fabs(p.value[row * p.columns() + k] - expected), bound)
      << p.linear.module << " row " << row << " column " << k << " of " << p.original[row * p.columns() + k];
}

// A reader whose rows nothing divides.
void expect_scaled_columns(const Pair& p, const std::vector<Estimate>& s) {
  for (std::size_t row = 0; row < p.rows(); ++row)
    for (std::size_t k = 0; k < p.columns(); ++k) {
      const double w = p.original[row * p.columns() + k];
      ASSERT_NO_FATAL_FAILURE(expect_near(p, row, k, w * s[k].value, std::fabs(w) * s[k].error));
    }
}

// The divisor t of each row, from value = a / t + e with a = W s: least squares of u = 1/t errs by at most
// sum |a| reach / sum a^2 =: h, and then |1/u' - 1/u| <= h / (u' (u' - h)). Each element must agree with it.
std::vector<Estimate> expect_divided_rows(const Pair& p, const std::vector<Estimate>& s) {
  std::vector<Estimate> divisors;
  for (std::size_t row = 0; row < p.rows(); ++row) {
    double product = 0, square = 0, slack = 0;
    for (std::size_t k = 0; k < p.columns(); ++k) {
      const double a = p.original[row * p.columns() + k] * s[k].value;
      product += a * p.value[row * p.columns() + k];
      square += a * a;
      slack += std::fabs(a) * p.reach(row, k);
    }
    const double u = product / square, h = slack / square + std::fabs(u) * kArithmetic;
    EXPECT_GT(u, h) << p.linear.module << " row " << row << " is not a multiple of what it was";
    for (std::size_t k = 0; k < p.columns() && !::testing::Test::HasFatalFailure(); ++k) {
      const double a = p.original[row * p.columns() + k] * s[k].value;
      expect_near(p, row, k, a * u, std::fabs(a) * h);
    }
    divisors.push_back({1 / u, h / (u * (u - h))});
  }
  return divisors;
}

std::vector<Estimate> exact(const std::vector<double>& values) {
  std::vector<Estimate> estimates;
  for (const double v : values) estimates.push_back({v, 0});
  return estimates;
}

double largest_move(const std::vector<Estimate>& s) {
  double most = 0;
  for (const Estimate& e : s) most = std::max(most, std::fabs(std::log(e.value)));
  return most;
}

struct Moves {
  double attention = 0, output = 0, mlp = 0, down = 0;
};

void expect_block_folds(const Folded& folded, const BlockSpec& block, Moves& moves) {
  const auto pair = [&](const char* name) { return Pair(folded, linear_named(block, name)); };
  const std::vector<Estimate> attention = exact(folded.norm_scales(
                                  block.at(norm_named(block, "input_layernorm")).gain.tensor)),
                              mlp = exact(folded.norm_scales(
                                  block.at(norm_named(block, "post_attention_layernorm")).gain.tensor));
  ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair("q_proj"), attention));
  ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair("k_proj"), attention));
  const std::vector<Estimate> value_rows = expect_divided_rows(pair("v_proj"), attention);
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  const auto head_dim = static_cast<std::size_t>(block.attention()->head_dim),
             repeat = static_cast<std::size_t>(block.attention()->heads / block.attention()->kv_heads);
  std::vector<Estimate>
      output;  // channel c is of query head c / head_dim, which reads value head c / head_dim / repeat
  for (std::size_t c = 0; c < head_dim * static_cast<std::size_t>(block.attention()->heads); ++c)
    output.push_back(value_rows[c / head_dim / repeat * head_dim + c % head_dim]);
  ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair("o_proj"), output));
  ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair("gate_proj"), mlp));
  const std::vector<Estimate> up_rows = expect_divided_rows(pair("up_proj"), mlp);
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair("down_proj"), up_rows));
  moves.attention = std::max(moves.attention, largest_move(attention));
  moves.output = std::max(moves.output, largest_move(value_rows));
  moves.mlp = std::max(moves.mlp, largest_move(mlp));
  moves.down = std::max(moves.down, largest_move(up_rows));
}

TEST(Fold, EveryReaderGetsTheScaleAndEveryProducerLosesIt) {
  const Folded folded("method: awq\nscheme: w8a16_g32_asym\nawq: {grid: 5, clip: false}\n");
  const AttentionSpec& attention = *folded.spec.blocks[0].attention();
  ASSERT_GT(attention.heads, attention.kv_heads) << "value rows must be shared for this to say anything";
  Moves moves;
  for (const BlockSpec& block : folded.spec.blocks)
    ASSERT_NO_FATAL_FAILURE(expect_block_folds(folded, block, moves));
  // Scales that hardly differ from 1 would hide a reader that was left out. Which of two near-equal
  // candidates wins differs between CPU levels; a factor of 1.1 moves a weight at the end of its group's
  // range, about 127 steps from the middle, by 12 steps: eight times the bound.
  for (const double move : {moves.attention, moves.output, moves.mlp, moves.down})
    EXPECT_GT(move, std::log(1.1));
}

TEST(Fold, SmoothQuantMovesAtEverySiteToo) {
  const Folded folded("method: smoothquant\nscheme: w8a8_channel_sym\nsmoothquant: {alpha: 0.5}\n");
  Moves moves;
  for (const BlockSpec& block : folded.spec.blocks)
    ASSERT_NO_FATAL_FAILURE(expect_block_folds(folded, block, moves));
  for (const double move : {moves.attention, moves.output, moves.mlp, moves.down})
    EXPECT_GT(move, std::log(1.1));
}

// The scale of the norm goes into gate and up of every expert and, stored as they are, into the router and
// the shared gate; one of each expert goes from up into its output. What corrects scores stays.
void expect_mixture_folds(const Folded& folded, const BlockSpec& block, Moves& moves) {
  const MixtureSpec& mixture = *block.mixture();
  const auto& made = std::get<NormGain>(block.at(mixture.input).producer);
  const std::vector<Estimate> s = exact(folded.norm_scales(block.at(made.norm).gain.tensor));
  const auto expect_expert = [&](const ExpertSpec& expert) {
    const auto pair = [&](LinearId id) { return Pair(folded, block.at(id)); };
    ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair(expert.gate.linear), s));
    const std::vector<Estimate> rows = expect_divided_rows(pair(expert.up.linear), s);
    ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair(expert.output), rows));
    moves.down = std::max(moves.down, largest_move(rows));
  };
  for (const ExpertSpec& expert : mixture.experts) ASSERT_NO_FATAL_FAILURE(expect_expert(expert));
  if (mixture.shared) expect_expert(*mixture.shared);
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  std::vector<LinearId> dense = {mixture.router};
  if (mixture.shared_gate) dense.push_back(*mixture.shared_gate);
  for (const LinearId id : dense) {
    const std::string& name = block.at(id).weight.tensor;
    const std::vector<float> old = folded.source.tensor(name), fresh = folded.written(name);
    for (std::size_t i = 0; i < old.size(); ++i)
      ASSERT_NEAR(fresh[i], old[i] * s[i % s.size()].value, std::fabs(fresh[i]) * kArithmetic) << name;
  }
  if (mixture.correction) {  // of scores, which the scale leaves as they are
    const std::string& name = block.at(*mixture.correction).place.tensor;
    EXPECT_EQ(folded.written(name), folded.source.tensor(name));
  }
  moves.mlp = std::max(moves.mlp, largest_move(s));
}

// The block's norm goes into what reads x, each latent's norm into what reads that latent, and the rows that
// make values, behind those of keys in each head, into the output.
void expect_latent_folds(const Folded& folded, const BlockSpec& block, Moves& moves) {
  const LatentAttentionSpec& latent = *block.latent_attention();
  const auto pair = [&](LinearId id) { return Pair(folded, block.at(id)); };
  const auto scales = [&](SiteId site) {
    return exact(folded.norm_scales(block.at(std::get<NormGain>(block.at(site).producer).norm).gain.tensor));
  };
  for (const LinearId reader : block.at(latent.input).readers)
    ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair(reader), scales(latent.input)));
  if (latent.queries) {
    ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair(latent.query), scales(*latent.queries)));
  }
  const std::vector<Estimate> rows = expect_divided_rows(pair(latent.expand), scales(latent.latent));
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  std::vector<Estimate> values;
  const std::int64_t each = latent.plain + latent.value_dim;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (static_cast<std::int64_t>(row) % each >= latent.plain)
      values.push_back(rows[row]);
    else
      EXPECT_LE(std::fabs(rows[row].value - 1), rows[row].error) << "row " << row << " makes keys";
  }
  ASSERT_NO_FATAL_FAILURE(expect_scaled_columns(pair(latent.output), values));
  moves.attention = std::max(moves.attention, largest_move(scales(latent.latent)));
  moves.output = std::max(moves.output, largest_move(values));
}

TEST(Fold, ScalesOfLatentsGoToWhatReadsThem) {
  Moves moves;
  for (const char* name : {"deepseek_v3", "deepseek_v2-lite"}) {
    const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/" + name + "/model";
    const Folded folded(
        "method: awq\nscheme: w8a16_g8_asym\nawq: {grid: 5, clip: false}\n"
        "calibration: {sequence_length: 64}\n",
        open_checkpoint(system_io(), model));
    for (const BlockSpec& block : folded.spec.blocks)
      ASSERT_NO_FATAL_FAILURE(expect_latent_folds(folded, block, moves)) << name;
  }
  for (const double move : {moves.attention, moves.output}) EXPECT_GT(move, std::log(1.1));
}

class MixtureFold : public ::testing::TestWithParam<const char*> {};

TEST_P(MixtureFold, EveryReaderGetsTheScaleAndEveryProducerLosesIt) {
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/" + GetParam() + "/model";
  const Folded folded(
      "method: awq\nscheme: w8a16_g8_asym\nawq: {grid: 5, clip: false}\n"
      "calibration: {sequence_length: 64}\n",
      open_checkpoint(system_io(), model));
  Moves moves;
  for (const BlockSpec& block : folded.spec.blocks)
    if (block.mixture() != nullptr) expect_mixture_folds(folded, block, moves);
  for (const double move : {moves.mlp, moves.down})
    EXPECT_GT(move, std::log(1.1)) << "scales of 1 would hide a reader that was left out";
}

INSTANTIATE_TEST_SUITE_P(Families, MixtureFold,
                         ::testing::Values("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe",
                                           "glm4_moe", "minimax_m2", "deepseek_v2", "deepseek_v3",
                                           "glm4_moe_lite"));

// A producer's bias is divided like its row: new d = old up to the rounding to BF16, d known as far as the
// row's weights tell it. A bias that was left alone is off by its row's scale.
void expect_divided_bias(const Folded& folded, const Pair& p, const std::vector<Estimate>& divisors,
                         double& largest) {
  const std::string name = p.linear.module + ".bias";
  const std::vector<float> old = folded.source.tensor(name), fresh = folded.written(name);
  ASSERT_EQ(old.size(), divisors.size());
  for (std::size_t row = 0; row < old.size(); ++row) {
    const double bound = std::fabs(fresh[row]) * divisors[row].error + std::fabs(old[row]) * 0x1p-8;
    EXPECT_LE(std::fabs(fresh[row] * divisors[row].value - old[row]), bound) << name << " row " << row;
    const double left_alone = std::fabs(old[row] * (divisors[row].value - 1));
    if (left_alone > bound) largest = std::max(largest, left_alone / std::fabs(old[row]));
  }
}

TEST(Fold, BiasesOfProducersAreDividedToo) {
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/llama-linear-biases/model";
  const Folded folded(
      "method: smoothquant\nscheme: w8a8_channel_sym\nsmoothquant: {alpha: 0.5}\n"
      "calibration: {sequence_length: 64}\n",
      open_checkpoint(system_io(), model));
  double value = 0, up = 0;
  for (const BlockSpec& block : folded.spec.blocks) {
    const Pair v(folded, linear_named(block, "v_proj")), u(folded, linear_named(block, "up_proj"));
    const std::vector<Estimate> attention = exact(folded.norm_scales(
                                    block.at(norm_named(block, "input_layernorm")).gain.tensor)),
                                mlp = exact(folded.norm_scales(
                                    block.at(norm_named(block, "post_attention_layernorm")).gain.tensor));
    ASSERT_NO_FATAL_FAILURE(expect_divided_bias(folded, v, expect_divided_rows(v, attention), value));
    ASSERT_NO_FATAL_FAILURE(expect_divided_bias(folded, u, expect_divided_rows(u, mlp), up));
  }
  for (const double move : {value, up})
    EXPECT_GT(move, 0.1) << "scales of 1 would hide a bias that was left alone";
}

// A layer norm's bias passes the same scale as its gain: new b = old b * new g / old g, up to a rounding of
// FP32 for the scale and one for the division.
TEST(Fold, BiasesOfNormsAreDividedToo) {
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/opt/model";
  const Folded folded(
      "method: smoothquant\nscheme: w8a8_channel_sym\nsmoothquant: {alpha: 0.5}\n"
      "calibration: {sequence_length: 64}\n",
      open_checkpoint(system_io(), model));
  double most = 0;
  for (const BlockSpec& block : folded.spec.blocks)
    for (const NormSpec& norm : block.norms) {
      const std::vector<double> scales = folded.norm_scales(norm.gain.tensor);
      const std::vector<float> old = folded.source.tensor(norm.bias.tensor),
                               fresh = folded.written(norm.bias.tensor);
      for (std::size_t c = 0; c < old.size(); ++c) {
        EXPECT_NEAR(fresh[c] * scales[c], old[c], std::fabs(old[c]) * 0x1p-21)
            << norm.bias.tensor << " " << c;
        most = std::max(most, std::fabs(std::log(scales[c])));
      }
    }
  EXPECT_GT(most, std::log(1.1)) << "scales of 1 would hide a bias that was left alone";
}

}  // namespace
}  // namespace llmq
