// The causal convolution and the gated delta rule: by their definitions where these are short, against the
// reference elsewhere, and row by row whatever a sequence is cut into.
#include "backend_fixture.h"

namespace llmq::testing {
namespace {

class Recurrence : public BackendTest {};

struct ConvCase {
  std::int64_t rows, channels, taps;
  std::vector<float> x, weight, before;
  ConvCase(std::int64_t t, std::int64_t c, std::int64_t w) : rows(t), channels(c), taps(w) {
    Numbers numbers(static_cast<std::uint64_t>(c * 31 + t));
    x = numbers.values(rows * channels, 1);
    weight = numbers.values(taps * channels, 1);
    before = numbers.values((taps - 1) * channels, 1);
  }
  struct Result {
    std::vector<float> y, before;
  };
  // In parts of `most` rows.
  Result run(Backend& on, std::int64_t most) const {
    const Placed w = put(on, DType::kF32, {taps, channels}, weight),
                 kept = put(on, DType::kF32, {taps - 1, channels}, before);
    Result result;
    for (std::int64_t first = 0; first < rows; first += most) {
      const std::int64_t count = std::min(most, rows - first);
      const Placed in = put(on, DType::kF32, {count, channels}, rows_of(x, first, count, channels)),
                   out = poisoned(on, DType::kF32, {count, channels});
      on.causal_conv(out.view, in.view, w.view, kept.view);
      const std::vector<float> y = get(on, out.view);
      result.y.insert(result.y.end(), y.begin(), y.end());
    }
    result.before = get(on, kept.view);
    return result;
  }
  float input(std::int64_t t, std::int64_t c) const {
    return t < 0 ? before[static_cast<std::size_t>((taps - 1 + t) * channels + c)]
                 : x[static_cast<std::size_t>(t * channels + c)];
  }
};

TEST_P(Recurrence, AConvolutionIsThatOfTheRowsBefore) {
  for (const std::int64_t channels : {1, 7, 64, 300})
    for (const std::int64_t taps : {2, 4}) {
      const ConvCase conv(9, channels, taps);
      const ConvCase::Result got = conv.run(backend(), conv.rows);
      std::vector<double> want, bound;
      for (std::int64_t t = 0; t < conv.rows; ++t)
        for (std::int64_t c = 0; c < channels; ++c) {
          double sum = 0, magnitude = 0;
          for (std::int64_t j = 0; j < taps; ++j) {
            const double product =
                static_cast<double>(conv.weight[static_cast<std::size_t>(j * channels + c)]) *
                static_cast<double>(conv.input(t - taps + 1 + j, c));
            sum += product, magnitude += std::fabs(product);
          }
          want.push_back(sum / (1 + std::exp(-sum)));
          // silu's slope is below 1.1
          bound.push_back(1.1 * fp32_dot_bound(taps, magnitude) +
                          (kExpError + gamma(4)) * std::fabs(want.back()) + fp32_rounding_bound(want.back()));
        }
      ASSERT_EQ(outside(got.y, want, bound), "") << channels << " channels, " << taps;
      std::vector<float> last;
      for (std::int64_t t = conv.rows - taps + 1; t < conv.rows; ++t)
        for (std::int64_t c = 0; c < channels; ++c) last.push_back(conv.input(t, c));
      ASSERT_TRUE(same_bits(got.before, last));
    }
}

TEST_P(Recurrence, AConvolutionMayBeCutAnywhere) {
  const ConvCase conv(9, 70, 4);
  const ConvCase::Result whole = conv.run(backend(), conv.rows);
  for (const std::int64_t most : {1, 2, 3, 5}) {
    const ConvCase::Result parts = conv.run(backend(), most);
    EXPECT_TRUE(same_bits(parts.y, whole.y)) << most;
    EXPECT_TRUE(same_bits(parts.before, whole.before)) << most;
  }
}

struct DeltaCase {
  std::int64_t rows;
  DeltaHeads heads;
  std::vector<float> qkv, decay, share, rate, shift, state;
  DeltaCase(std::int64_t t, DeltaHeads of) : rows(t), heads(of) {
    Numbers numbers(static_cast<std::uint64_t>(heads.value_dim * 31 + t));
    qkv = numbers.values(rows * width(), 1);
    decay = numbers.values(rows * heads.value_heads, 1);
    share = numbers.values(rows * heads.value_heads, 1);
    rate = numbers.values(heads.value_heads, 1);
    shift = numbers.values(heads.value_heads, 1);
    state = numbers.values(heads.state(), 0);
  }
  std::int64_t width() const { return 2 * heads.keys() + heads.values(); }
  struct Result {
    std::vector<float> out, state;
  };
  // In parts of `most` rows; q, k and v lie side by side, as one convolution leaves them.
  Result run(Backend& on, std::int64_t most) const {
    const Placed s = put(on, DType::kF32, {heads.value_heads, heads.key_dim, heads.value_dim}, state),
                 r = put(on, DType::kF32, {heads.value_heads}, rate),
                 d = put(on, DType::kF32, {heads.value_heads}, shift);
    Result result;
    for (std::int64_t first = 0; first < rows; first += most) {
      const std::int64_t count = std::min(most, rows - first), h = heads.value_heads;
      const Placed in = put(on, DType::kF32, {count, width()}, rows_of(qkv, first, count, width())),
                   a = put(on, DType::kF32, {count, h}, rows_of(decay, first, count, h)),
                   b = put(on, DType::kF32, {count, h}, rows_of(share, first, count, h)),
                   out = poisoned(on, DType::kF32, {count, heads.values()});
      const auto columns = [&](std::int64_t from, std::int64_t many) {
        TensorView view = in.view;
        view.pointer = in.view.as<char>() + from * 4;
        view.shape = Shape{count, many};
        return view;
      };
      on.delta_rule(out.view, columns(0, heads.keys()), columns(heads.keys(), heads.keys()),
                    columns(2 * heads.keys(), heads.values()), {a.view, b.view, r.view, d.view}, s.view,
                    heads);
      const std::vector<float> y = get(on, out.view);
      result.out.insert(result.out.end(), y.begin(), y.end());
    }
    result.state = get(on, s.view);
    return result;
  }
};

// One row from an empty state: out = sigmoid(share) (q k) v with q and k of length 1, q over sqrt(key_dim).
TEST_P(Recurrence, TheFirstRowGivesItsOwnValue) {
  DeltaCase delta(1, {2, 4, 12, 20});
  std::fill(delta.state.begin(), delta.state.end(), 0.0f);
  const std::vector<float> got = delta.run(backend(), 1).out;
  std::vector<double> want, bound;
  for (std::int64_t h = 0; h < 4; ++h) {
    double product = 0, queries = 1e-6, keys = 1e-6, magnitude = 0;
    for (std::int64_t c = 0; c < 12; ++c) {
      const double q = delta.qkv[static_cast<std::size_t>(h / 2 * 12 + c)],
                   k = delta.qkv[static_cast<std::size_t>(24 + h / 2 * 12 + c)];
      product += q * k, magnitude += std::fabs(q * k), queries += q * q, keys += k * k;
    }
    const double share = 1 / (1 + std::exp(-static_cast<double>(delta.share[static_cast<std::size_t>(h)]))),
                 factor = share / std::sqrt(queries * keys * 12);
    for (std::int64_t j = 0; j < 20; ++j) {
      const double v = delta.qkv[static_cast<std::size_t>(48 + h * 20 + j)];
      want.push_back(factor * product * v);
      // the sum, two norms of 12 squares, and a dozen operations
      bound.push_back(factor * std::fabs(v) * (gamma(13 + 14 + 12) + kExpError) * magnitude);
    }
  }
  EXPECT_EQ(outside(got, want, bound), "");
}

// The update takes away what is along k and adds no more than |v|: so the length of a column of the state is
// at most that of the first one and the sum of |v| so far, an error of one row is not made greater by the
// next, and each row adds what its sums, factors and roundings are off by.
TEST_P(Recurrence, TheDeltaRuleIsTheReferences) {
  for (const DeltaHeads& heads : {DeltaHeads{1, 1, 8, 8}, DeltaHeads{2, 4, 16, 24}, DeltaHeads{1, 3, 33, 70},
                                  DeltaHeads{2, 2, 128, 128}}) {
    const DeltaCase delta(19, heads);
    const DeltaCase::Result want = delta.run(oracle(), delta.rows), got = delta.run(backend(), delta.rows);
    double longest = 2 * std::sqrt(static_cast<double>(heads.key_dim));  // |S| <= 1, and a rest
    for (std::int64_t t = 0; t < delta.rows; ++t) longest += 2;          // |v| < 2
    const double step = (gamma(2 * static_cast<double>(heads.key_dim) + 24) + 2 * kExpError) * longest,
                 error = static_cast<double>(delta.rows) * step;
    const std::vector<double> of_state(want.state.size(), error),
        of_out(want.out.size(), 2 * error / std::sqrt(static_cast<double>(heads.key_dim)));
    EXPECT_EQ(outside(got.state, widened(want.state), of_state), "") << heads.key_dim;
    EXPECT_EQ(outside(got.out, widened(want.out), of_out), "") << heads.key_dim;
    std::vector<float> planted = want.out;
    planted.front() += 0.01f;
    EXPECT_NE(outside(planted, widened(want.out), of_out), "");
  }
}

TEST_P(Recurrence, ASequenceMayBeCutAnywhere) {
  for (const DeltaHeads& heads : {DeltaHeads{2, 4, 16, 24}, DeltaHeads{1, 2, 40, 130}}) {
    const DeltaCase delta(11, heads);
    const DeltaCase::Result whole = delta.run(backend(), delta.rows);
    for (const std::int64_t most : {1, 2, 4, 7}) {
      const DeltaCase::Result parts = delta.run(backend(), most);
      EXPECT_TRUE(same_bits(parts.out, whole.out)) << most;
      EXPECT_TRUE(same_bits(parts.state, whole.state)) << most;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Recurrence, ::testing::ValuesIn(backends({1, 2})), param_name);

}  // namespace
}  // namespace llmq::testing
