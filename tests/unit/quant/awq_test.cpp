// AWQ on matrices small enough to run the inputs themselves: the Gram loss is the output error, the search
// beats rounding where a channel stands out, and nothing depends on threads or on the order of rows.
#include "quant/methods/awq/clip_search.h"
#include "quant/methods/awq/scale_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "quant/methods/awq/salient_columns.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/rounding.h"
#include "quant/methods/rtn.h"
#include "support/recording_device.h"

namespace llmq {
namespace {

constexpr std::int64_t kAwqChannels = 64, kAwqRows = 24, kAwqTokens = 200;

struct Fixture {
  std::shared_ptr<Backend> backend = make_reference_backend();
  std::vector<float> weight, x;
  InputStats stats{kAwqChannels};
  QuantScheme scheme;

  // Inputs with a few loud channels, as decoder blocks have them.
  explicit Fixture(float loud = 30.0f) : weight(kAwqRows * kAwqChannels), x(kAwqTokens * kAwqChannels) {
    std::mt19937 generator(11);
    std::normal_distribution<float> normal;
    for (float& w : weight) w = 0.05f * normal(generator);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = normal(generator) * (i % 16 == 3 ? loud : 1.0f);
    stats.add(*backend, TensorView(x.data(), DType::kF32, {kAwqTokens, kAwqChannels}));
    scheme.group_size = 32;
  }
  ScaleProblem problem() const {
    ScaleProblem p;
    p.readers = {{weight, kAwqRows, scheme}};
    p.stats = &stats;
    p.compute = Compute::kFloat32;
    return p;
  }
  // ||X D^T||^2 with D = dequantized / s - W, all in double.
  double output_error(const QuantizedMatrix& m, const std::vector<float>& s) const {
    std::vector<float> back(weight.size());
    dequantize(m, back);
    double error = 0;
    for (std::int64_t t = 0; t < kAwqTokens; ++t)
      for (std::int64_t r = 0; r < kAwqRows; ++r) {
        double y = 0;
        for (std::int64_t k = 0; k < kAwqChannels; ++k) {
          const auto i = static_cast<std::size_t>(r * kAwqChannels + k);
          y += (static_cast<double>(back[i]) / s[static_cast<std::size_t>(k)] - weight[i]) *
               x[static_cast<std::size_t>(t * kAwqChannels + k)];
        }
        error += y * y;
      }
    return error;
  }
  std::vector<float> scaled(const std::vector<float>& s) const {
    std::vector<float> w = weight;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] *= s[i % kAwqChannels];
    return w;
  }
};

const std::vector<float> kOnes(kAwqChannels, 1.0f);

// The Gram matrix is stored in FP32 (relative 2^-24 per entry) and d is FP32: against sums in double the loss
// is off by at most 2^-22 of sum |d_i| |G_ij| |d_j|, which Cauchy bounds by K tr-like terms; K = 64 leaves 64
// * 2^-22 < 2e-5.
constexpr double kRelative = 2e-5;

TEST(GramLoss, IsTheOutputError) {
  const Fixture f;
  ThreadPool pool(2);
  const QuantizedMatrix m = round_to_nearest(f.weight, kAwqRows, kAwqChannels, f.scheme, pool);
  GramLoss gram(f.stats, *f.backend, Compute::kFloat32);
  const double loss = sum_in_order(row_losses(m, f.weight, gram, pool)), exact = f.output_error(m, kOnes);
  EXPECT_GT(exact, 0);
  EXPECT_NEAR(loss, exact, kRelative * exact);
}

// Whatever the codes mean: E4M3, groups that columns carry themselves, columns that stayed as they were.
TEST(GramLoss, SeesWhatTheCodesMean) {
  const Fixture f;
  ThreadPool pool(2);
  GramLoss gram(f.stats, *f.backend, Compute::kFloat32);
  const auto expect_output_error = [&](const QuantizedMatrix& m) {
    const double loss = sum_in_order(row_losses(m, f.weight, gram, pool)), exact = f.output_error(m, kOnes);
    EXPECT_GT(exact, 0);
    EXPECT_NEAR(loss, exact, kRelative * exact);
  };
  QuantScheme float8 = f.scheme;
  float8.bits = 8;
  float8.weight_type = WeightType::kFloat8;
  float8.granularity = Granularity::kChannel;
  float8.symmetric = true;
  expect_output_error(round_to_nearest(f.weight, kAwqRows, kAwqChannels, float8, pool));
  QuantizedMatrix m = round_to_nearest(f.weight, kAwqRows, kAwqChannels, f.scheme, pool);
  for (std::int64_t k = 0; k < kAwqChannels; ++k)
    m.column_group.push_back(static_cast<std::int32_t>(k % m.groups()));
  expect_output_error(m);
}

TEST(Salient, ColumnsAreThoseOfTheLargestMeanInput) {
  const std::vector<double> mean = {1, 5, 3, 5, 0, 2, 3, 1, 1, 1};
  using Columns = std::vector<std::int32_t>;
  EXPECT_EQ(salient_columns(mean, 0.2), (Columns{1, 3}));
  EXPECT_EQ(salient_columns(mean, 0.39), (Columns{1, 2, 3}))
      << "the first of equals; never more than the share";
  EXPECT_EQ(salient_columns(mean, 0.001), (Columns{1})) << "one at least";
  EXPECT_EQ(salient_columns(mean, 1).size(), mean.size());
}

TEST(Salient, ColumnsStayAsTheyWereAndTheOthersAreRoundedToNearest) {
  const Fixture f;
  ThreadPool pool(2);
  const QuantizedMatrix m =
      make_salient_rounding(0.07, Compute::kFloat32)
          ->quantize({f.weight, kAwqRows, kAwqChannels, &f.stats, f.scheme}, *f.backend);
  const QuantizedMatrix plain = round_to_nearest(f.weight, kAwqRows, kAwqChannels, f.scheme, pool);
  EXPECT_EQ(m.kept_columns, (std::vector<std::int32_t>{3, 19, 35, 51})) << "the loud ones";
  std::vector<float> kept(f.weight.size()), rounded(f.weight.size());
  dequantize(m, kept);
  dequantize(plain, rounded);
  for (std::size_t i = 0; i < kept.size(); ++i)
    ASSERT_EQ(kept[i], i % 16 == 3 ? f.weight[i] : rounded[i]) << i;
  EXPECT_NEAR(m.loss, f.output_error(m, kOnes), kRelative * m.loss);
  // Four channels of energy 900 carry no error any more, sixty of energy 1 do: 60 / 3660 of it is left,
  // about.
  EXPECT_LT(m.loss, 0.05 * f.output_error(plain, kOnes));
}

TEST(GramLoss, RunsWhereTheDevicesMemoryIsClosed) {
  const Fixture f;
  ThreadPool pool(2);
  const QuantizedMatrix m = round_to_nearest(f.weight, kAwqRows, kAwqChannels, f.scheme, pool);
  GramLoss open(f.stats, *f.backend, Compute::kFloat32);
  const auto fake = make_fake_backend();
  GramLoss closed(f.stats, *fake, Compute::kFloat32);
  EXPECT_EQ(row_losses(m, f.weight, open, pool), row_losses(m, f.weight, closed, pool));
}

// The same rows judged on the same devices, whoever makes their differences.
TEST(GramLoss, DevicesMakeTheDifferencesOfTheHost) {
  const Fixture f;
  testing::DeviceNotes notes;
  const std::shared_ptr<Backend> backend = testing::recording_backend(notes);
  const std::vector<std::shared_ptr<Backend>> further = {make_backend({"emulated:1", 1})};
  GramLoss gram(f.stats, *backend, Compute::kFloat32, further);
  std::vector<float> weight = f.weight;
  std::fill_n(weight.begin() + 5 * kAwqChannels, kAwqChannels, 0.0f);
  std::vector<float> s = kOnes;
  for (std::size_t k = 0; k < s.size(); ++k) s[k] = 0.3f + 0.07f * static_cast<float>(k);
  QuantScheme symmetric = f.scheme, channel = f.scheme, float8 = f.scheme;
  symmetric.symmetric = true, symmetric.scale_dtype = DType::kF16, symmetric.group_size = 24;
  channel.granularity = Granularity::kChannel, channel.bits = 3;
  float8.weight_type = WeightType::kFloat8, float8.bits = 8, float8.granularity = Granularity::kChannel;
  const QuantScheme* const schemes[] = {&f.scheme, &symmetric, &channel, &float8};
  const auto row_of = [&](std::int64_t i) {
    return GramLoss::Row{weight.data() + i * kAwqChannels, schemes[i / 6]};
  };

  std::vector<double> want(kAwqRows);
  for (const std::vector<float>* const factors :
       std::initializer_list<const std::vector<float>*>{&s, &kOnes}) {
    std::vector<float> inverse, scratch(kAwqChannels);
    for (const float factor : *factors) inverse.push_back(1.0f / factor);
    const auto make_row = [&](std::int64_t i, float* d) {
      const GramLoss::Row row = row_of(i);
      scaled_difference(row.weight, kAwqChannels, row.scheme->group_of(kAwqChannels), factors->data(),
                        inverse.data(), *row.scheme, scratch.data(), d);
    };
    ThreadPool one(1);
    GramLoss(f.stats, *backend, Compute::kFloat32).evaluate(want, make_row, one);
    const std::vector<float>* const candidates[] = {&kOnes, factors};
    EXPECT_EQ(gram.scaled_losses(kAwqRows, row_of, candidates, backend->workers())[1], want);
  }
  // the second device begins inside a row's
  const GramLoss::Shrink shrinks[] = {{1, 1}, {0.9f, 0.9f}, {1, 0.8f}, {0.7f, 1}, {0.6f, 0.5f}};
  for (const QuantScheme* scheme : schemes) {
    const auto ranged = [&](std::int64_t i) {
      return GramLoss::RangedRow{weight.data() + i * kAwqChannels,
                                 find_range(weight.data() + i * kAwqChannels, kAwqChannels)};
    };
    want.assign(5 * kAwqRows, 0);
    const auto make_row = [&](std::int64_t i, float* d) {
      const GramLoss::RangedRow row = ranged(i / 5);
      const GramLoss::Shrink shrink = shrinks[i % 5];
      round_difference(row.weight, kAwqChannels,
                       grid_for({row.range.low * shrink.low, row.range.high * shrink.high}, *scheme), d);
    };
    GramLoss(f.stats, *backend, Compute::kFloat32).evaluate(want, make_row, backend->workers());
    EXPECT_EQ(gram.shrunk_losses(kAwqRows, ranged, shrinks, *scheme, backend->workers()), want);
    want.resize(kAwqRows);
  }
}

// Floats in groups among rows of integers, wherever they stand, are judged as the host rounds them.
TEST(GramLoss, DevicesLeaveFloatsInGroupsToTheHost) {
  const Fixture f;
  const std::shared_ptr<Backend> host = make_backend({"cpu", 1}), device = make_backend({"emulated", 1});
  QuantScheme floats = f.scheme;
  floats.weight_type = WeightType::kFloat4, floats.group_size = kNvfp4Group, floats.symmetric = true;
  const auto row_of = [&](std::int64_t i) {
    return GramLoss::Row{f.weight.data() + i * kAwqChannels, i < kAwqRows / 2 ? &f.scheme : &floats};
  };
  const std::vector<float>* const plain[] = {&kOnes};
  const auto losses = [&](Backend& backend) {
    GramLoss gram(f.stats, backend, Compute::kFloat32);
    return gram.scaled_losses(kAwqRows, row_of, plain, backend.workers()).front();
  };
  const std::vector<double> want = losses(*host), found = losses(*device);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(found[i], want[i], 1e-4 * want[i]) << i;
}

TEST(GramLoss, RowsInOneCallFollowTheScratchOfADevice) {
  EXPECT_EQ(GramLoss::rows_at_once(25600, 0), 20);
  EXPECT_EQ(GramLoss::rows_at_once(25600, 64 << 10), 20);  // never fewer than the host
  EXPECT_EQ(GramLoss::rows_at_once(25600, 256 << 20), 655);
  EXPECT_EQ(GramLoss::rows_at_once(1 << 20, 0), 16);
  EXPECT_EQ(GramLoss::rows_at_once(1, 0), 8192);
}

// 9,300 items are two calls for a device of little scratch, one for another.
TEST(GramLoss, PiecesOfAnySizeGiveTheSameBits) {
  const Fixture f;
  constexpr std::int64_t kMany = 300;
  const auto weight_of = [&](std::int64_t i) {
    return f.weight.data() + i * 13 % ((kAwqRows - 1) * kAwqChannels);
  };
  std::vector<GramLoss::Shrink> shrinks;
  for (int i = 0; i < 31; ++i)
    shrinks.push_back({1.0f - 0.01f * static_cast<float>(i), 1.0f - 0.02f * static_cast<float>(i)});
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    std::vector<double> losses[2];
    std::uint64_t most[2] = {};
    for (const int large : {0, 1}) {
      const std::shared_ptr<Backend> backend =
          make_emulated_cuda_backend(1, {0, {}, {}, large == 1 ? 16 << 20 : 64 << 10});
      GramLoss gram(f.stats, *backend, compute);
      const auto ranged = [&](std::int64_t i) {
        return GramLoss::RangedRow{weight_of(i), find_range(weight_of(i), kAwqChannels)};
      };
      losses[large] = gram.shrunk_losses(kMany, ranged, shrinks, f.scheme, backend->workers());
      most[large] = backend->peak_bytes();
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_GT(most[1], most[0]);
  }
}

// Rows go up once for all candidates.
TEST(AwqScales, RowsCrossToADeviceOncePerSearch) {
  std::size_t up[2] = {};
  for (const int grid : {2, 12}) {
    Fixture f;
    testing::DeviceNotes notes;
    const std::shared_ptr<Backend> backend = testing::recording_backend(notes);
    AwqOptions options;
    options.grid = grid;
    options.duo_scaling = AwqOptions::Duo::kNo;
    search_awq_scales(f.problem(), options, *backend);
    up[grid == 2 ? 0 : 1] = notes.up;
  }
  EXPECT_EQ(up[1] - up[0], 10u * 2 * kAwqChannels * sizeof(float));  // s and 1 / s of ten candidates
}

TEST(AwqScales, BeatRoundingWhereChannelsStandOut) {
  const Fixture f;
  const AwqScales scales = search_awq_scales(f.problem(), {}, *f.backend);
  EXPECT_FALSE(scales.identity);
  EXPECT_LT(scales.loss, 0.5 * scales.identity_loss);
  ThreadPool pool(1);
  const std::vector<float> w = f.scaled(scales.s);
  const double exact = f.output_error(round_to_nearest(w, kAwqRows, kAwqChannels, f.scheme, pool), scales.s);
  EXPECT_NEAR(scales.loss, exact, kRelative * exact);
  // Channels that stand out are the ones that are scaled up.
  EXPECT_GT(scales.s[3], 2 * scales.s[4]);
}

TEST(AwqScales, AreNeverWorseThanTheIdentity) {
  for (const auto duo : {AwqOptions::Duo::kNo, AwqOptions::Duo::kYes, AwqOptions::Duo::kBoth})
    for (const int grid : {1, 2, 20}) {
      const Fixture f(1.0f);
      ScaleProblem p = f.problem();
      AwqOptions options;
      options.duo_scaling = duo;
      options.grid = grid;
      const AwqScales scales = search_awq_scales(p, options, *f.backend);
      EXPECT_LE(scales.loss, scales.identity_loss);
      for (const float s : scales.s) EXPECT_TRUE(std::isfinite(s) && s > 0);
    }
}

TEST(AwqScales, SilentChannelsKeepOne) {
  Fixture f;
  for (std::size_t i = 5; i < f.x.size(); i += kAwqChannels) f.x[i] = 0;
  f.stats = InputStats(kAwqChannels);
  f.stats.add(*f.backend, TensorView(f.x.data(), DType::kF32, {kAwqTokens, kAwqChannels}));
  const AwqScales scales = search_awq_scales(f.problem(), {}, *f.backend);
  EXPECT_FALSE(scales.identity);
  EXPECT_EQ(scales.s[5], 1.0f);
}

TEST(AwqScales, ChannelsOfOneProducerShareOne) {
  const Fixture f;
  ScaleProblem p = f.problem();
  for (std::int32_t c = 0; c < kAwqChannels; ++c)
    p.producer_of.push_back(c % 16);  // four readers' channels each
  const AwqScales scales = search_awq_scales(p, {}, *f.backend);
  EXPECT_FALSE(scales.identity);
  for (std::size_t c = 0; c < kAwqChannels; ++c) EXPECT_EQ(scales.s[c], scales.s[c % 16]);
}

TEST(AwqScales, EveryReaderCounts) {
  const Fixture f;
  ScaleProblem together = f.problem(), halves = f.problem();
  halves.readers = {{std::span(f.weight).first(10 * kAwqChannels), 10, f.scheme},
                    {std::span(f.weight).subspan(10 * kAwqChannels), kAwqRows - 10, f.scheme}};
  EXPECT_EQ(search_awq_scales(together, {}, *f.backend).s, search_awq_scales(halves, {}, *f.backend).s);
  EXPECT_EQ(search_awq_scales(together, {}, *f.backend).loss, search_awq_scales(halves, {}, *f.backend).loss);
}

// Weights that nobody holds are read at each look, and count as those that are held; a share is of the loss.
TEST(AwqScales, ReadersMayBeReadAndCountInPart) {
  const Fixture f;
  ScaleProblem held = f.problem(), read = f.problem();
  held.readers = {{std::span(f.weight).first(10 * kAwqChannels), 10, f.scheme},
                  {std::span(f.weight).subspan(10 * kAwqChannels), kAwqRows - 10, f.scheme}};
  read.readers = held.readers;
  for (ScaleReader& reader : read.readers) {
    const std::span<const float> whole = std::exchange(reader.weight, {});
    reader.read = [whole] {
      ZeroedNumbers<float> values(whole.size());
      std::copy(whole.begin(), whole.end(), values.begin());
      return values;
    };
  }
  const AwqScales of_held = search_awq_scales(held, {}, *f.backend),
                  of_read = search_awq_scales(read, {}, *f.backend);
  EXPECT_EQ(of_held.s, of_read.s);
  EXPECT_EQ(of_held.loss, of_read.loss);
  const double both = awq_scale_loss(held, of_held.s, *f.backend);
  held.readers[1].share = 0;
  const double first = awq_scale_loss(held, of_held.s, *f.backend);
  held.readers[1].share = 0.25;
  EXPECT_NEAR(awq_scale_loss(held, of_held.s, *f.backend), 0.75 * first + 0.25 * both, 1e-9 * both);
  const AwqScales in_part = search_awq_scales(held, {}, *f.backend);
  EXPECT_EQ(in_part.loss, awq_scale_loss(held, in_part.s, *f.backend));
}

// Of 64 small readers each gives rows to the sample, and different ones.
TEST(AwqScales, TheSampleHasRowsOfEveryReader) {
  constexpr std::int64_t kReaders = 64, kRows = 512;
  const std::int64_t stride = scale_sample_stride(kReaders * kRows, kRows);
  std::set<std::int64_t> readers, rows;
  for (std::int64_t i = 0; i < kReaders * kRows; i += stride)
    readers.insert(i / kRows), rows.insert(i % kRows);
  EXPECT_EQ(readers.size(), static_cast<std::size_t>(kReaders));
  EXPECT_GT(rows.size(), 60u);
  EXPECT_EQ(scale_sample_stride(4096, 4096), 32) << "of one reader 128 rows";
}

RoundingProblem rounding_problem(const Fixture& f) {
  return {f.weight, kAwqRows, kAwqChannels, &f.stats, f.scheme};
}

TEST(AwqClip, NeverLosesAgainstPlainRoundingAndReportsTheTrueLoss) {
  for (const bool symmetric : {false, true})
    for (const Granularity granularity : {Granularity::kGroup, Granularity::kChannel, Granularity::kTensor}) {
      Fixture f;
      f.scheme.symmetric = symmetric;
      f.scheme.granularity = granularity;
      for (std::size_t i = 0; i < f.weight.size(); i += 64)
        f.weight[i + 7] *= 8;  // one long weight per row: worth clipping
      const QuantizedMatrix plain = make_rtn(Compute::kFloat32)->quantize(rounding_problem(f), *f.backend);
      const QuantizedMatrix clipped =
          make_awq_rounding({}, Compute::kFloat32)->quantize(rounding_problem(f), *f.backend);
      EXPECT_LE(clipped.loss, plain.loss);
      if (granularity != Granularity::kTensor) {
        EXPECT_LT(clipped.loss, 0.99 * plain.loss);
      }
      const double exact = f.output_error(clipped, kOnes);
      EXPECT_NEAR(clipped.loss, exact, kRelative * exact);
    }
}

TEST(AwqClip, OffMeansPlainRounding) {
  const Fixture f;
  AwqOptions off;
  off.clip = false;
  EXPECT_EQ(make_awq_rounding(off, Compute::kFloat32)->quantize(rounding_problem(f), *f.backend).codes,
            make_rtn(Compute::kFloat32)->quantize(rounding_problem(f), *f.backend).codes);
}

TEST(AwqClip, PermutedRowsGivePermutedCodes) {
  const Fixture f;
  Fixture reversed;
  for (std::int64_t r = 0; r < kAwqRows; ++r)
    std::copy_n(f.weight.begin() + (kAwqRows - 1 - r) * kAwqChannels, kAwqChannels,
                reversed.weight.begin() + r * kAwqChannels);
  const auto method = make_awq_rounding({}, Compute::kFloat32);
  const QuantizedMatrix a = method->quantize(rounding_problem(f), *f.backend),
                        b = method->quantize(rounding_problem(reversed), *f.backend);
  for (std::int64_t r = 0; r < kAwqRows; ++r)
    for (std::int64_t k = 0; k < kAwqChannels; ++k)
      EXPECT_EQ(a.codes[static_cast<std::size_t>(r * kAwqChannels + k)],
                b.codes[static_cast<std::size_t>((kAwqRows - 1 - r) * kAwqChannels + k)]);
}

TEST(Awq, SameBytesAtAnyThreadCount) {
  try {
    make_cpu_backend(1);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kUnsupported) throw;
    GTEST_SKIP() << e.what();
  }
  const Fixture f;
  const auto run = [&](int threads) {
    const auto backend = make_cpu_backend(threads);
    ScaleProblem p = f.problem();
    p.compute = Compute::kBFloat16;
    const AwqScales scales = search_awq_scales(p, {}, *backend);
    QuantizedMatrix m = make_awq_rounding({}, Compute::kBFloat16)->quantize(rounding_problem(f), *backend);
    std::vector<float> all = scales.s;
    all.insert(all.end(), m.scales.begin(), m.scales.end());
    all.insert(all.end(), m.codes.begin(), m.codes.end());
    all.push_back(static_cast<float>(scales.loss));
    all.push_back(static_cast<float>(m.loss));
    return all;
  };
  const std::vector<float> expected = run(1);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(run(threads), expected) << threads;
}

}  // namespace
}  // namespace llmq
