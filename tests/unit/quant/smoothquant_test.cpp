// SmoothQuant's scales: the paper's formula where alpha is given, and a search that is judged by what it says
// it minimizes.
#include "quant/methods/smoothquant/smoothquant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "device/low_precision.h"

namespace llmq {
namespace {

QuantScheme w8a8() {
  QuantScheme scheme;
  scheme.bits = scheme.activation_bits = 8;
  scheme.activation_scale = ActivationScale::kToken;
  scheme.granularity = Granularity::kChannel;
  scheme.symmetric = true;
  scheme.scale_dtype = DType::kF32;
  return scheme;
}

// One input and one reader of it.
struct SmoothCase {
  std::int64_t tokens, channels, out_features;
  std::vector<float> x, w;
  InputStats stats;
  RowSample rows;

  SmoothCase(std::int64_t t, std::int64_t k, std::int64_t n, std::uint32_t seed,
             const std::vector<std::pair<std::int64_t, float>>& gains = {})
      : tokens(t), channels(k), out_features(n), stats(k), rows(t, k) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < t * k; ++i) x.push_back(normal(engine));
    for (std::int64_t i = 0; i < n * k; ++i) w.push_back(normal(engine));
    for (const auto& [channel, gain] : gains) {
      for (std::int64_t i = 0; i < t; ++i) x[static_cast<std::size_t>(i * k + channel)] *= gain;
      for (std::int64_t i = 0; i < n && gain != 0; ++i) w[static_cast<std::size_t>(i * k + channel)] /= gain;
    }
    const auto backend = make_reference_backend();
    const TensorView view(x.data(), DType::kF32, {t, k});
    stats.add(*backend, view);
    rows.add(*backend, view, 0);
  }

  ScaleProblem problem(const QuantScheme& scheme = w8a8()) const {
    ScaleProblem p;
    p.readers.push_back({w, out_features, scheme});
    p.stats = &stats;
    p.rows = &rows;
    return p;
  }
};

SmoothScales search(const ScaleProblem& problem, SmoothQuantOptions options = {}) {
  return search_smooth_scales(problem, options, *make_cpu_backend(2));
}

double loss(const ScaleProblem& problem, const std::vector<float>& s) {
  return smooth_loss(problem, s, *make_cpu_backend(2)).whole();
}

TEST(SmoothQuant, AGivenAlphaIsThePapersFormula) {
  const SmoothCase c(20, 6, 5, 1, {{2, 30.0f}});
  const std::vector<float> s = search(c.problem(), {0.8}).s;
  std::vector<double> expected(6);
  for (std::size_t k = 0; k < 6; ++k) {
    double x = 0, w = 0;
    for (std::size_t t = 0; t < 20; ++t) x = std::max(x, std::fabs(static_cast<double>(c.x[t * 6 + k])));
    for (std::size_t n = 0; n < 5; ++n) w = std::max(w, std::fabs(static_cast<double>(c.w[n * 6 + k])));
    expected[k] = std::pow(x, 0.8) / std::pow(w, 0.2);
  }
  for (std::size_t k = 1; k < 6; ++k)
    EXPECT_NEAR(s[k] / s[0] / (expected[k] / expected[0]), 1, 16 * 0x1p-24) << k;
  double mean = 0;
  for (const float value : s) mean += std::log(static_cast<double>(value));
  EXPECT_NEAR(mean, 0, 6 * 8 * 0x1p-24);
}

// The definition, in double and straight. A code may differ only where x' lies within FP32's error of a tie,
// where both codes err alike; an error of one element is then off by at most 4 roundings of 2^-24 of 128
// steps, 3.1e-5 of a step, against errors of 0.29 steps on the root of their mean square: 1e-3 of the loss is
// ten times that.
TEST(SmoothQuant, TheLossIsWhatItsDefinitionSays) {
  const std::int64_t kTokens = 40, kChannels = 48, kRows = 30;
  const SmoothCase c(kTokens, kChannels, kRows, 2, {{5, 20.0f}});
  std::vector<float> s(static_cast<std::size_t>(kChannels));
  for (std::size_t k = 0; k < s.size(); ++k) s[k] = 0.5f + 0.05f * static_cast<float>(k);
  const auto x = [&](std::int64_t t, std::int64_t k) {
    return static_cast<double>(c.x[static_cast<std::size_t>(t * kChannels + k)]);
  };
  const auto w = [&](std::int64_t n, std::int64_t k) {
    return static_cast<double>(c.w[static_cast<std::size_t>(n * kChannels + k)]);
  };
  const auto scale = [&](std::int64_t k) { return static_cast<double>(s[static_cast<std::size_t>(k)]); };
  std::vector<double> m(s.size()), g(s.size()), energy;
  for (std::int64_t n = 0; n < kRows; ++n)
    for (std::int64_t k = 0; k < kChannels; ++k) m[static_cast<std::size_t>(k)] += w(n, k) * w(n, k);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    energy.push_back(0);
    for (std::int64_t k = 0; k < kChannels; ++k)
      energy.back() += x(t, k) * x(t, k) * m[static_cast<std::size_t>(k)];
  }
  std::vector<double> sorted = energy;
  std::sort(sorted.begin(), sorted.end());
  double expected = 0, whole = 0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const double e = energy[static_cast<std::size_t>(t)], h = 1 / (e + sorted[sorted.size() / 2]);
    double top = 0;
    for (std::int64_t k = 0; k < kChannels; ++k) top = std::max(top, std::fabs(x(t, k)) / scale(k));
    for (std::int64_t k = 0; k < kChannels; ++k) {
      const double step = top / 127.5;
      const double code = std::min(127.0, std::max(-128.0, std::nearbyint(x(t, k) / scale(k) / step)));
      const double error = code * step * scale(k) - x(t, k);
      expected += h * error * error * m[static_cast<std::size_t>(k)];
      g[static_cast<std::size_t>(k)] += h * x(t, k) * x(t, k);
    }
    whole += h * e;
  }
  for (std::int64_t n = 0; n < kRows; ++n) {
    double top = 0;
    for (std::int64_t k = 0; k < kChannels; ++k) top = std::max(top, std::fabs(w(n, k)) * scale(k));
    for (std::int64_t k = 0; k < kChannels; ++k) {
      const double step = 2 * top / 255;
      const double code = std::min(127.0, std::max(-128.0, std::nearbyint(w(n, k) * scale(k) / step)));
      const double error = code * step / scale(k) - w(n, k);
      expected += error * error * g[static_cast<std::size_t>(k)];
    }
  }
  EXPECT_NEAR(loss(c.problem(), s) / (expected / whole), 1, 1e-3);
}

TEST(SmoothQuant, TheSearchIsNeverWorseThanTheIdentityOrAnyAlpha) {
  for (std::uint32_t seed = 10; seed < 20; ++seed) {
    const SmoothCase c(64, 32, 24, seed, {{seed % 32, 40.0f}, {(seed * 7) % 32, 0.01f}});
    const ScaleProblem problem = c.problem();
    const SmoothScales found = search(problem);
    EXPECT_LE(found.loss.whole(), found.identity_loss.whole());
    EXPECT_DOUBLE_EQ(found.loss.whole(), loss(problem, found.s));
    for (const double alpha : {0.3, 0.5, 0.8})
      EXPECT_LE(found.loss.whole(), loss(problem, search(problem, {alpha}).s)) << seed << " " << alpha;
  }
}

// Channels of gain 50 make the step of every token 50 times as wide. Their readers are 50 times as small, so
// scales exist that undo it all: the loss of a case without gains, up to where the search stops.
TEST(SmoothQuant, PlantedOutliersAreUndone) {
  const SmoothCase plain(128, 64, 48, 3), planted(128, 64, 48, 3, {{7, 50.0f}, {40, 50.0f}});
  const double without = search(plain.problem()).loss.whole();
  const SmoothScales found = search(planted.problem());
  EXPECT_GT(found.identity_loss.whole(), 100 * without) << "the outliers do not hurt";
  EXPECT_LT(found.loss.whole(), 1.1 * without);
}

TEST(SmoothQuant, SilentChannelsKeepTheirScaleAndHugeOnesStayFinite) {
  const SmoothCase c(64, 16, 12, 4, {{3, 0.0f}, {9, 1e4f}});
  for (const SmoothQuantOptions& options :
       {SmoothQuantOptions{}, SmoothQuantOptions{0.0}, SmoothQuantOptions{1.0}}) {
    const SmoothScales found = search(c.problem(), options);
    EXPECT_EQ(found.s[3], 1.0f);
    for (const float value : found.s) {
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_GT(value, 0);
    }
  }
  SmoothCase silent(8, 4, 4, 5);
  std::fill(silent.x.begin(), silent.x.end(), 0.0f);
  const auto backend = make_reference_backend();
  silent.stats = InputStats(4);
  silent.rows = RowSample(8, 4);
  silent.stats.add(*backend, TensorView(silent.x.data(), DType::kF32, {8, 4}));
  silent.rows.add(*backend, TensorView(silent.x.data(), DType::kF32, {8, 4}), 0);
  for (const float value : search(silent.problem()).s) EXPECT_EQ(value, 1.0f);
}

TEST(SmoothQuant, ChannelsOfOneProducerShareTheirScale) {
  const SmoothCase c(64, 12, 8, 6, {{1, 30.0f}});
  ScaleProblem problem = c.problem();
  problem.producer_of = {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5};
  for (const SmoothQuantOptions& options : {SmoothQuantOptions{}, SmoothQuantOptions{0.5}}) {
    const std::vector<float> s = search(problem, options).s;
    for (std::size_t k = 0; k < 6; ++k) {  // channel k and the next one of its producer
      const std::size_t first = k < 3 ? k : k + 3;
      EXPECT_EQ(s[first], s[first + 3]) << first;
    }
  }
}

TEST(SmoothQuant, EveryKindOfActivationScaleIsJudged) {
  const SmoothCase c(64, 256, 24, 7, {{100, 60.0f}});
  for (const ActivationScale kind : {ActivationScale::kToken, ActivationScale::kTensor}) {
    QuantScheme scheme = w8a8();
    scheme.activation_scale = kind;
    const SmoothScales found = search(c.problem(scheme));
    EXPECT_LT(found.loss.activations, 0.1 * found.identity_loss.activations);
  }
  QuantScheme block = w8a8();
  block.weight_type = WeightType::kFloat8;
  block.granularity = Granularity::kBlock;
  block.activation_scale = ActivationScale::kTokenGroup;
  EXPECT_GT(search(c.problem(block)).identity_loss.activations, 0);
  QuantScheme weights_only = w8a8();
  weights_only.activation_bits = 16;
  weights_only.activation_scale = ActivationScale::kNone;
  EXPECT_EQ(search(c.problem(weights_only)).loss.activations, 0);
}

}  // namespace
}  // namespace llmq
