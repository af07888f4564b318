// Row i of a result is the same bits alone, in any batch, in any chunk, on any pages, at 1, 2, 3 and 8
// threads.
#include "attention_fixture.h"

namespace llmq::testing {
namespace {

// The CPU levels at every thread count, each against the same level alone.
class RowInvariance : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    if (IsSkipped()) return;
    std::string why;
    single_ = open_backend({GetParam().name, 1}, &why);
  }
  Backend& single() { return *single_; }

 private:
  std::shared_ptr<Backend> single_;
};

constexpr std::int64_t kRows = 70;

// Of what is multiplied: the backends for calibration, too, which differ in nothing else.
class RowInvarianceOfProducts : public RowInvariance {
 protected:
  // Features and columns of weights. A host takes the turns of an emulated device's threads one by one, so
  // that it gets the least that crosses every tile of kernels/cuda/linear_shape.h and fills every ring twice:
  // rows that are gathered; few features of many columns; more features than the widest tile has.
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes() const {
    if (is_emulated(GetParam())) return {{67, 131}, {48, 1088}, {520, 160}};
    return {{67, 131}, {576, 192}, {48, 1536}, {1600, 64}, {1030, 96}};
  }
  // Rows that run together: every remainder of a tile; where it is emulated its last, its first and between.
  std::vector<std::int64_t> counts() const {
    if (is_emulated(GetParam())) return {2, 7, 16, 17, 48, 64, 65};
    std::vector<std::int64_t> all;
    for (std::int64_t count = 2; count <= kRows; count += count < 20 ? 1 : 14) all.push_back(count);
    return all;
  }
};

TEST_P(RowInvarianceOfProducts, Linear) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const auto& shape : shapes()) {
      const std::int64_t n = shape.first, k = shape.second;
      Numbers numbers(21);
      const std::vector<float> x = numbers.values(kRows * k), w = numbers.values(n * k);
      const auto run = [&](Backend& on, std::int64_t first, std::int64_t count) {
        const auto weight = on.prepare(TensorView(w.data(), DType::kF32, Shape{n, k}), compute);
        const Placed in = put(on, activation_dtype(compute), {count, k}, rows_of(x, first, count, k));
        const Placed out = poisoned(on, DType::kF32, {count, n});
        on.linear(out.view, in.view, *weight, {});
        return get(on, out.view);
      };
      const std::vector<float> all = run(single(), 0, kRows);
      for (const std::int64_t first : {0, 1, 33, 69})
        ASSERT_TRUE(same_bits(run(backend(), first, 1), rows_of(all, first, 1, n)));
      for (const std::int64_t count : counts())
        ASSERT_TRUE(same_bits(run(backend(), kRows - count, count), rows_of(all, kRows - count, count, n)))
            << count << " rows, N " << n << " K " << k;
    }
}

// Column n is the same bits whatever other columns the weight has: what dividing a weight over devices rests
// on.
TEST_P(RowInvarianceOfProducts, LinearOfSomeColumns) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const auto& shape : shapes())
      for (const std::int64_t rows : {1, 5, 70}) {
        const std::int64_t n = shape.first, k = shape.second;
        Numbers numbers(25);
        const std::vector<float> x = numbers.values(rows * k), w = numbers.values(n * k),
                                 bias = numbers.values(n);
        const Placed in = put(backend(), activation_dtype(compute), {rows, k}, x);
        const auto run = [&](std::int64_t first, std::int64_t count) {
          const auto weight = backend().prepare(
              TensorView(w.data(), DType::kF32, Shape{n, k}).row_slice(first, count), compute);
          const Placed b = put(backend(), DType::kF32, {count}, rows_of(bias, first, count, 1));
          const Placed out = poisoned(backend(), DType::kF32, {rows, count});
          backend().linear(out.view, in.view, *weight, b.view);
          return get(backend(), out.view);
        };
        const std::vector<float> all = run(0, n);
        for (const std::int64_t parts : {2, 4})
          for (std::int64_t part = 0; part < parts; ++part) {
            const std::int64_t first = part * n / parts, count = (part + 1) * n / parts - first;
            ASSERT_TRUE(same_bits(run(first, count), columns_of(all, n, first, count)))
                << rows << " rows, columns " << first << " + " << count << " of N " << n << " K " << k
                << " compute " << static_cast<int>(compute);
          }
      }
}

TEST_P(RowInvariance, Norm) {
  const std::int64_t width = 579;
  Numbers numbers(22);
  const std::vector<float> x = numbers.values(kRows * width), gain = numbers.values(width);
  const auto run = [&](Backend& on, std::int64_t first, std::int64_t count, bool centred) {
    const Placed in = put(on, DType::kF32, {count, width}, rows_of(x, first, count, width)),
                 g = put(on, DType::kF32, {width}, gain);
    const Placed out = poisoned(on, DType::kF32, {count, width});
    if (centred)
      on.layer_norm(out.view, in.view, g.view, g.view, 1e-5f);
    else
      on.rms_norm(out.view, in.view, g.view, 1e-5f);
    return get(on, out.view);
  };
  for (const bool centred : {false, true}) {
    const std::vector<float> all = run(single(), 0, kRows, centred);
    for (std::int64_t count = 1; count <= kRows; count += 3)
      ASSERT_TRUE(same_bits(run(backend(), kRows - count, count, centred),
                            rows_of(all, kRows - count, count, width)));
  }
}

TEST_P(RowInvariance, Scores) {
  const std::int64_t vocabulary = 4099;
  Numbers numbers(23);
  const std::vector<float> p = numbers.values(kRows * vocabulary, 0, 20),
                           q = numbers.values(kRows * vocabulary, 0, 20);
  const auto run = [&](Backend& on, std::int64_t first, std::int64_t count) {
    const Placed a = put(on, DType::kF32, {count, vocabulary}, rows_of(p, first, count, vocabulary));
    const Placed b = put(on, DType::kF32, {count, vocabulary}, rows_of(q, first, count, vocabulary));
    std::vector<RowScore> scores(static_cast<std::size_t>(count));
    std::vector<double> results(static_cast<std::size_t>(count));
    on.divergence(a.view, b.view, results);
    on.score_rows(a.view, std::vector<std::int32_t>(static_cast<std::size_t>(count), 17), scores);
    for (const RowScore& score : scores) results.push_back(score.log_prob);
    return results;
  };
  const std::vector<double> all = run(single(), 0, kRows);
  for (std::int64_t row = 0; row < kRows; row += 23) {
    const std::vector<double> one = run(backend(), row, 1);
    EXPECT_EQ(one[0], all[static_cast<std::size_t>(row)]);
    EXPECT_EQ(one[1], all[static_cast<std::size_t>(kRows + row)]);
  }
  EXPECT_EQ(run(backend(), 0, kRows), all);
}

// Sums over rows, too, have one order at any thread count.
TEST_P(RowInvarianceOfProducts, SumsOverRows) {
  const std::int64_t k = 131, rows = 2053;
  Numbers numbers(24);
  const std::vector<float> x = numbers.values(rows * k), d = numbers.values(9 * k),
                           square = numbers.values(k * k);
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    const auto run = [&](Backend& on) {
      const Placed in = put(on, activation_dtype(compute), {rows, k}, x),
                   g = put(on, DType::kF32, {k, k}, std::vector<float>(static_cast<std::size_t>(k * k)));
      on.gram(g.view, in.view);
      std::vector<double> results = widened(get(on, g.view)), sum(static_cast<std::size_t>(k)), loss(9);
      std::vector<float> greatest(static_cast<std::size_t>(k));
      on.channel_stats(in.view, sum, greatest);
      const auto weight = on.prepare(TensorView(square.data(), DType::kF32, Shape{k, k}), compute);
      on.quadratic_form(loss, put(on, DType::kF32, {9, k}, d).view, *weight);
      results.insert(results.end(), sum.begin(), sum.end());
      results.insert(results.end(), loss.begin(), loss.end());
      return results;
    };
    EXPECT_EQ(run(backend()), run(single()));
  }
}

// However many heads share a key, each has the bits that it has alone.
TEST_P(RowInvariance, HeadsThatShareAKey) {
  constexpr std::int64_t kStep = 5;
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const bool sinks : {false, true}) {
      AttentionCase together{53, 1, 64, 0, 16, {{66, kStep}}, compute, true, 0, sinks};
      const AttentionData data = make_attention_data(together, 37);
      const std::vector<float> all = run_attention(backend(), together, data);
      AttentionCase alone = together;
      alone.heads = 1;
      for (const std::int64_t head : {0, 4, 24, 28, 52}) {  // a multiple of four has the sink of head 0
        AttentionData own = data;
        own.q.clear();
        for (std::int64_t row = 0; row < kStep; ++row) {
          const auto from = data.q.begin() + (row * together.heads + head) * together.head_dim;
          own.q.insert(own.q.end(), from, from + together.head_dim);
        }
        const std::vector<float> got = run_attention(backend(), alone, own);
        for (std::int64_t row = 0; row < kStep; ++row)
          ASSERT_TRUE(same_bits(rows_of(got, row, 1, alone.head_dim),
                                rows_of(all, row * together.heads + head, 1, alone.head_dim)))
              << "head " << head << ", row " << row;
      }
    }
}

// One sequence of 150 positions: at once; its rows in chunks; each row alone; beside other sequences; on
// other pages.
TEST_P(RowInvariance, Attention) {
  const std::int64_t positions = 150;
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const std::int64_t window : {0, 40, -1, -40}) {
      AttentionCase whole{6,       2,    64, window == -1 ? 0 : std::abs(window), 16, {{0, positions}},
                          compute, false};
      if (window == -1) whole.softcap = 3, whole.sinks = true;
      whole.chunks = window == -40;
      const AttentionData data = make_attention_data(whole, 31);
      const std::vector<float> all = run_attention(single(), whole, data);
      const std::int64_t width = std::int64_t{whole.heads} * whole.head_dim,
                         kv_width = std::int64_t{whole.kv_heads} * whole.head_dim;
      whole.permuted = true;
      EXPECT_TRUE(same_bits(run_attention(backend(), whole, data), all));
      whole.block_size = 24;  // tiles of 16 and of 8 positions
      EXPECT_TRUE(same_bits(run_attention(backend(), whole, data), all));
      for (const auto& [block_size, chunk] : std::vector<std::pair<int, std::int64_t>>{
               {16, 1}, {16, 4}, {16, 65}, {24, 1}, {24, 7}, {24, 64}}) {
        whole.block_size = block_size;
        // Of the many small chunks some, in every place of a tile.
        const std::int64_t some = chunk == 1 ? 29 : chunk < 16 ? 3 : 1;
        for (std::int64_t first = 0; first < positions; first += chunk * some) {
          const std::int64_t count = std::min(chunk, positions - first);
          AttentionCase part = whole;
          part.sequences = {{3, 2}, {first, count}};  // beside a small stranger
          AttentionData beside =
              make_attention_data({6, 2, 64, whole.sliding_window, 16, {{3, 2}}, compute}, 32);
          const std::vector<float> mine = rows_of(data.q, first, count, width);
          beside.q.insert(beside.q.end(), mine.begin(), mine.end());
          beside.keys.push_back(rows_of(data.keys[0], 0, first + count, kv_width));
          beside.values.push_back(rows_of(data.values[0], 0, first + count, kv_width));
          const std::vector<float> got = run_attention(backend(), part, beside);
          ASSERT_TRUE(same_bits(rows_of(got, 2, count, width), rows_of(all, first, count, width)))
              << "rows " << first << " + " << count << " in blocks of " << block_size;
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Every, RowInvariance, ::testing::ValuesIn(backends({1, 2, 3, 8})), param_name);
INSTANTIATE_TEST_SUITE_P(Every, RowInvarianceOfProducts,
                         ::testing::ValuesIn(multiplying_backends({1, 2, 3, 8})), param_name);

TEST(CpuLevels, AreAllTested) {
  for (const std::string& level : cpu_levels_present())
    EXPECT_NE(std::find(cpu_levels().begin(), cpu_levels().end(), level), cpu_levels().end()) << level;
}

}  // namespace
}  // namespace llmq::testing
