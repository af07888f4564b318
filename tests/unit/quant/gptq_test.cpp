// What must hold of GPTQ whatever the matrix: codes in range, rows independent of each other and of threads,
// a bad Gram matrix said or refused.
#include "quant/methods/gptq/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gptq_fixture.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/rounding.h"
#include "quant/methods/rtn.h"
#include "support/recording_device.h"
#include "support/tolerance.h"

namespace llmq {
namespace {

TEST(Gptq, StoresAGroupPerColumnWhereTheOrderNeedsIt) {
  GptqFixture f(4, 64, 100);
  f.see_inputs();
  EXPECT_TRUE(f.quantize(plain_gptq(RoundingOrder::kGar)).column_group.empty());
  EXPECT_TRUE(f.quantize(plain_gptq(RoundingOrder::kStatic)).column_group.empty());
  const QuantizedMatrix act = f.quantize(plain_gptq(RoundingOrder::kAct));
  ASSERT_EQ(act.column_group.size(), 64u);
  for (std::int32_t g = 0; g < 4; ++g)
    EXPECT_EQ(std::count(act.column_group.begin(), act.column_group.end(), g), 16);
  // The loudest channel is the first to be rounded.
  EXPECT_EQ(act.column_group[static_cast<std::size_t>(
                std::max_element(f.stats.absolute_max().begin(), f.stats.absolute_max().end()) -
                f.stats.absolute_max().begin())],
            0);
}

std::vector<GptqOptions> option_sets() {
  std::vector<GptqOptions> sets;
  for (const RoundingOrder order :
       {RoundingOrder::kNone, RoundingOrder::kAct, RoundingOrder::kStatic, RoundingOrder::kGar}) {
    sets.push_back(plain_gptq(order));
    sets.push_back({});
    sets.back().order = order;
  }
  return sets;
}

QuantScheme gptq_scheme(int bits, bool symmetric, Granularity granularity) {
  QuantScheme s;
  s.bits = bits;
  s.symmetric = symmetric;
  s.granularity = granularity;
  s.group_size = 16;
  return s;
}

std::vector<QuantScheme> schemes() {
  std::vector<QuantScheme> all;
  for (const int bits : {2, 3, 4, 8})
    for (const bool symmetric : {false, true})
      for (const Granularity granularity : {Granularity::kGroup, Granularity::kChannel, Granularity::kTensor})
        all.push_back(gptq_scheme(bits, symmetric, granularity));
  return all;
}

void expect_sound(const QuantizedMatrix& m) {
  for (const std::uint8_t code : m.codes) ASSERT_LT(code, m.scheme.code_count());
  for (const std::uint8_t zero : m.zeros) ASSERT_LT(zero, m.scheme.code_count());
  for (const float scale : m.scales) {
    ASSERT_TRUE(std::isfinite(scale) && scale != 0);
    ASSERT_EQ(scale, stored_scale(scale, m.scheme.scale_dtype));
  }
  for (const std::uint8_t zero : m.zeros) ASSERT_TRUE(!m.scheme.symmetric || zero == m.scheme.middle());
  ASSERT_TRUE(std::isfinite(m.loss));
}

TEST(Gptq, LosesLessThanRoundingUnderEveryScheme) {
  for (const QuantScheme& scheme : schemes())
    for (const GptqOptions& options : option_sets()) {
      GptqFixture f(20, 64, 200);
      f.scheme = scheme;
      f.see_inputs();
      const QuantizedMatrix m = f.quantize(options);
      ASSERT_NO_FATAL_FAILURE(expect_sound(m));
      EXPECT_LT(m.loss, f.rtn_loss()) << scheme.text() << " order " << static_cast<int>(options.order);
    }
}

TEST(Gptq, ReportsTheLossOfItsCodes) {
  GptqFixture f(20, 64, 200);
  f.see_inputs();
  for (const GptqOptions& options : option_sets()) {
    const QuantizedMatrix m = f.quantize(options);
    std::vector<float> value(m.codes.size());
    dequantize(m, value);
    double loss = 0;
    for (std::int64_t t = 0; t < f.tokens; ++t)
      for (std::int64_t n = 0; n < f.rows; ++n) {
        double y = 0;
        for (std::int64_t k = 0; k < f.channels; ++k)
          y += (static_cast<double>(value[static_cast<std::size_t>(n * 64 + k)]) -
                f.weight[static_cast<std::size_t>(n * 64 + k)]) *
               f.x[static_cast<std::size_t>(t * 64 + k)];
        loss += y * y;
      }
    // As in awq_test: K 2^-22 relative to sum |d_i| |G_ij| |d_j|, which is at most K times the loss of a
    // diagonal G; here the inputs' correlation lifts it by less than 10.
    EXPECT_NEAR(m.loss, loss, 64 * 0x1p-22 * 10 * loss);
  }
}

// What the search alone is worth depends on how alike the channels are: docs/adr/0004-gptq.md has real
// models.
TEST(Gptq, FittingAgainLowersTheLoss) {
  for (const auto search : {GptqOptions::ScaleSearch::kMinMax, GptqOptions::ScaleSearch::kImportance,
                            GptqOptions::ScaleSearch::kFeedback}) {
    double rounded = 0, refitted = 0, descended = 0, all = 0;
    for (std::uint32_t seed = 1; seed <= 4; ++seed) {
      GptqFixture f(32, 128, 400, seed);
      f.scheme.group_size = 32;
      f.see_inputs();
      GptqOptions options = plain_gptq(RoundingOrder::kGar);
      options.scale_search = search;
      rounded += f.quantize(options).loss;
      options.refit_scales = true;
      refitted += f.quantize(options).loss;
      options.descent_sweeps = 2;
      descended += f.quantize(options).loss;
      options.retry_scales = true;
      all += f.quantize(options).loss;
    }
    EXPECT_LT(refitted, rounded);
    EXPECT_LT(descended, refitted);
    EXPECT_LT(all, descended);
  }
}

// Rows are rounded in tiles, but no row sees another.
TEST(Gptq, PermutedOutputsGivePermutedResults) {
  GptqFixture f(37, 64, 200);
  f.see_inputs();
  std::vector<std::size_t> from(37);
  std::iota(from.begin(), from.end(), std::size_t{0});
  std::shuffle(from.begin(), from.end(), std::mt19937(3));
  for (const GptqOptions& options : option_sets()) {
    const QuantizedMatrix before = f.quantize(options);
    GptqFixture g = f;
    for (std::size_t r = 0; r < from.size(); ++r)
      std::copy_n(f.weight.begin() + static_cast<std::ptrdiff_t>(from[r] * 64), 64,
                  g.weight.begin() + static_cast<std::ptrdiff_t>(r * 64));
    const QuantizedMatrix after = g.quantize(options);
    for (std::size_t r = 0; r < from.size(); ++r) {
      for (std::size_t k = 0; k < 64; ++k) ASSERT_EQ(after.codes[r * 64 + k], before.codes[from[r] * 64 + k]);
      for (std::size_t q = 0; q < 4; ++q) {
        ASSERT_EQ(after.scales[r * 4 + q], before.scales[from[r] * 4 + q]);
        ASSERT_EQ(after.zeros[r * 4 + q], before.zeros[from[r] * 4 + q]);
      }
    }
  }
}

TEST(Gptq, LinearsThatShareAnInputAreRoundedAsAlone) {
  GptqFixture f(24, 64, 200), g(24, 64, 200, 6);
  f.see_inputs();
  const auto method = make_gptq({}, Compute::kFloat32);
  std::unique_ptr<PreparedInput> prepared;
  for (const int group : {16, 32}) {
    f.scheme.group_size = group;
    const PreparedInput* made = nullptr;
    for (const std::vector<float>& weight : {f.weight, g.weight}) {
      RoundingProblem problem = f.problem();
      problem.weight = weight;
      const QuantizedMatrix alone = method->quantize(problem, *f.backend);
      problem.prepared = &prepared;
      const QuantizedMatrix shared = method->quantize(problem, *f.backend);
      EXPECT_EQ(shared.codes, alone.codes) << group;
      EXPECT_EQ(shared.scales, alone.scales) << group;
      EXPECT_EQ(shared.notes.lambda, alone.notes.lambda) << group;
      if (made != nullptr) {
        EXPECT_EQ(made, prepared.get()) << group;
      }
      made = prepared.get();
    }
  }
}

// Every part of the search for scales and of the descent with and without the others.
std::vector<GptqOptions> search_sets() {
  using Search = GptqOptions::ScaleSearch;
  std::vector<GptqOptions> sets;
  for (const Search search : {Search::kMinMax, Search::kImportance, Search::kFeedback})
    for (const int sweeps : {0, 2})
      for (const bool refit : {false, true})
        for (const bool retry : {false, true}) {
          GptqOptions& options = sets.emplace_back();
          options.scale_search = search;
          options.descent_sweeps = sweeps;
          options.refit_scales = options.full_range = refit;
          options.retry_scales = retry;
        }
  return sets;
}

// From identical weights and Gram matrices a device's codes are the processor's: it does the same operations
// in the same order. LLMQ_CODES_DEVICE=cuda, as scripts/device_check.sh asks, takes a GPU, of whose codes one
// in a thousand may be a near-tie that went the other way; each group with one is named.
TEST(Gptq, ADeviceGivesTheProcessorsCodes) {
  std::size_t equal = 0, one_apart = 0, all = 0, turn_of_case = 0;
  const char* const asked = std::getenv("LLMQ_CODES_DEVICE");
  const bool emulated = asked == nullptr || std::string_view(asked) == "emulated";
  // shift: of the rows' weights in turn up, not at all and down, so that zeros lie at either end.
  const auto compare = [&](const QuantScheme& scheme, const GptqOptions& options, std::int64_t rows,
                           std::int64_t group_size, float shift) {
    GptqFixture f(rows, 150, 300);
    for (std::size_t i = 0; i < f.weight.size(); ++i)
      f.weight[i] += shift * (1.0f - static_cast<float>(i / 150 % 3));
    f.scheme = scheme;
    f.scheme.group_size = static_cast<int>(group_size);
    f.silence(7);
    f.see_inputs();
    const QuantizedMatrix host = f.quantize(options);
    f.backend = emulated ? make_emulated_cuda_backend(2, {0, {}, {}, 4 << 10})  // rows go in two parts
                         : make_backend({asked, 2, {}, DeviceUse::kCalibration});
    const QuantizedMatrix device = f.quantize(options);
    if (emulated) {
      EXPECT_EQ(device.zeros, host.zeros);
      EXPECT_EQ(device.scales, host.scales);
    }
    all += host.codes.size();
    ++turn_of_case;
    for (std::size_t i = 0; i < host.codes.size(); ++i) {
      const int apart = std::abs(int{device.codes[i]} - int{host.codes[i]});
      equal += apart == 0 ? 1 : 0;
      one_apart += apart == 1 ? 1 : 0;
      if (apart != 0)
        std::printf("case %zu, row %zu, channel %zu: %d on the device, %d on the processor\n", turn_of_case,
                    i / 150, i % 150, int{device.codes[i]}, int{host.codes[i]});
    }
  };
  // rows that fill no tile, a channel of more than one block; every granularity and every order with zeros
  // and without
  int turn = 0;
  for (const Granularity granularity : {Granularity::kGroup, Granularity::kChannel, Granularity::kTensor})
    for (const GptqOptions& options : option_sets()) {
      compare(gptq_scheme(4, (turn / 2 + turn / 8) % 2 == 0, granularity), options, 37, 30, 0);
      ++turn;
    }
  turn = 0;
  for (const GptqOptions& options : search_sets())
    for (const bool symmetric : {true, false}) {
      QuantScheme scheme = gptq_scheme(turn % 3 == 0 ? 2 : 3, symmetric, Granularity::kGroup);
      scheme.scale_dtype = turn++ % 2 == 0 ? DType::kF16 : DType::kF32;
      // blocks of columns that devices copy one by one, and 16 bytes at a time
      compare(scheme, options, 24, turn % 2 == 0 ? 70 : 72, 0.1f);
    }
  std::printf("%zu of %zu codes are equal, %zu are one step apart\n", equal, all, one_apart);
  if (emulated)
    EXPECT_EQ(equal, all);
  else
    EXPECT_GE(static_cast<double>(equal), 0.999 * static_cast<double>(all));
}

// Weights go up and codes, scales and zeros come down, whatever is searched; with them the differences of
// which the loss is measured, and that.
TEST(Gptq, RowsCrossToADeviceOnce) {
  for (const bool symmetric : {true, false}) {
    testing::DeviceNotes notes[2];
    for (const int count : {1, 2}) {
      GptqFixture f(40 * count, 60, 100);
      f.scheme.symmetric = symmetric;
      f.scheme.group_size = 30;
      f.see_inputs();
      f.backend = testing::recording_backend(notes[count - 1]);
      f.quantize();
    }
    EXPECT_EQ(notes[1].up - notes[0].up, 40u * 60 * (4 + 4));
    EXPECT_EQ(notes[1].down - notes[0].down, 40u * (60 + 2 * 8 + 8));
  }
}

TEST(Gptq, GivesTheSameBytesAtAnyThreadCount) {
  GptqFixture f(50, 192, 300);
  f.see_inputs();
  for (const GptqOptions& options : option_sets()) {
    f.backend = make_cpu_backend(1);
    const QuantizedMatrix one = f.quantize(options);
    for (const int threads : {2, 3}) {
      f.backend = make_cpu_backend(threads);
      const QuantizedMatrix more = f.quantize(options);
      EXPECT_EQ(one.codes, more.codes);
      EXPECT_EQ(one.scales, more.scales);
      EXPECT_EQ(one.zeros, more.zeros);
      EXPECT_EQ(one.loss, more.loss);
    }
  }
}

TEST(Gptq, AChannelNeverActiveGetsTheCodeZero) {
  GptqFixture f(10, 64, 200);
  f.silence(7);
  f.silence(40);
  f.see_inputs();
  for (const GptqOptions& options : option_sets()) {
    const QuantizedMatrix m = f.quantize(options);
    EXPECT_EQ(m.notes.dead_channels, 2);
    for (std::int64_t row = 0; row < 10; ++row)
      for (const std::int64_t k : {7, 40})
        EXPECT_EQ(m.codes[static_cast<std::size_t>(row * 64 + k)],
                  m.zeros[static_cast<std::size_t>(row * 4 + m.group_of_column(k))]);
  }
}

TEST(Gptq, InputsThatAreAllZeroRoundToZero) {
  GptqFixture f(5, 64, 100);
  std::fill(f.x.begin(), f.x.end(), 0.0f);
  f.see_inputs();
  const QuantizedMatrix m = f.quantize();
  ASSERT_NO_FATAL_FAILURE(expect_sound(m));
  EXPECT_EQ(m.notes.dead_channels, 64);
  EXPECT_EQ(m.loss, 0);
}

TEST(Gptq, OddWeightsRoundSoundly) {
  for (const QuantScheme& scheme : schemes())
    for (const GptqOptions& options : option_sets()) {
      GptqFixture f(8, 64, 200);
      f.scheme = scheme;
      std::fill_n(f.weight.begin() + 1 * 64, 64, 0.0f);       // a row of zeros
      f.weight[2 * 64 + 5] = 1e4f;                            // an outlier
      std::fill_n(f.weight.begin() + 3 * 64 + 16, 16, 0.5f);  // a group of one value
      std::fill_n(f.weight.begin() + 4 * 64, 64, -1e-30f);
      f.see_inputs();
      const QuantizedMatrix m = f.quantize(options);
      ASSERT_NO_FATAL_FAILURE(expect_sound(m));
      std::vector<float> value(m.codes.size());
      dequantize(m, value);
      for (std::size_t k = 0; k < 64; ++k) ASSERT_EQ(value[64 + k], 0.0f);
      EXPECT_NEAR(value[2 * 64 + 5], 1e4f,
                  scheme.bits == 8 ? 1e2f : 5e3f);  // within one step of 2e4 / (2^b - 1)
      EXPECT_LE(m.loss, f.rtn_loss());
    }
}

// Statistics that no inputs have: saved, spoilt and loaded.
InputStats spoilt(const InputStats& stats, std::int64_t channel, double factor) {
  std::vector<std::byte> bytes = stats.save();
  const auto k = static_cast<std::size_t>(stats.channels());
  const std::size_t triangle = bytes.size() - k * (k + 1) / 2 * sizeof(double);
  const auto c = static_cast<std::size_t>(channel);
  double* const at = reinterpret_cast<double*>(bytes.data() + triangle) + (c * k - c * (c - 1) / 2);
  *at *= factor;
  return InputStats::load(bytes, "spoilt");
}

TEST(Gptq, RaisesLambdaWhereTheGramMatrixIsNotPositiveDefinite) {
  GptqFixture f(6, 64, 200);
  f.see_inputs();
  EXPECT_EQ(f.quantize().notes.lambda_raises, 0);
  EXPECT_TRUE(f.quantize().notes.warnings.empty());
  f.stats = spoilt(f.stats, 10, -0.5);
  const QuantizedMatrix m = f.quantize();
  EXPECT_GE(m.notes.lambda_raises, 1);
  ASSERT_EQ(m.notes.warnings.size(), 1u);
  EXPECT_NE(m.notes.warnings[0].find("not positive definite"), std::string::npos);
  f.backend = make_backend({"emulated", 1});
  const QuantizedMatrix device = f.quantize();
  EXPECT_EQ(device.notes.lambda_raises, m.notes.lambda_raises);
  EXPECT_EQ(device.notes.lambda, m.notes.lambda);
  EXPECT_EQ(device.codes, m.codes);
  ASSERT_NO_FATAL_FAILURE(expect_sound(m));
}

TEST(Gptq, RefusesAGramMatrixThatNoLambdaMends) {
  GptqFixture f(6, 64, 200);
  f.see_inputs();
  f.stats = spoilt(f.stats, 10, -1e12);
  try {
    f.quantize();
    FAIL() << "it was factorized";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(error.what()).find("Cholesky"), std::string::npos) << error.what();
  }
}

TEST(Gptq, RefusesFloatingPointCodes) {
  GptqFixture f(6, 64, 200);
  f.see_inputs();
  f.scheme.weight_type = WeightType::kFloat8;
  f.scheme.granularity = Granularity::kChannel;  // in groups they are a grid of its own
  EXPECT_THROW(f.quantize(), Error);
}

TEST(Gptq, SaysWhenTokensAreFewerThanChannels) {
  GptqFixture f(6, 64, 16);
  f.see_inputs();
  const QuantizedMatrix m = f.quantize();
  ASSERT_EQ(m.notes.warnings.size(), 1u);
  EXPECT_NE(m.notes.warnings[0].find("16 calibration tokens for 64 channels"), std::string::npos);
  double mean = 0;
  for (std::int64_t k = 0; k < 64; ++k) mean += f.stats.gram_at(k, k) / 64;
  EXPECT_NEAR(m.notes.lambda, 0.04 * mean, 1e-12 * mean);
  EXPECT_LT(m.loss, f.rtn_loss());
}

}  // namespace
}  // namespace llmq
