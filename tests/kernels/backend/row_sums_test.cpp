// Sums over rows by a device: the bits of one row after another, one column after another in its lane, for
// rows that end inside a tile of terms and inside a lane's turn, one step for a row, for groups of its
// columns and for all.
#include "device/row_sums.h"

#include <utility>

#include "kernels/backend/backend_fixture.h"

namespace llmq::testing {
namespace {

constexpr float kLeast = 0x1p-23f;

// Lane k % 8 adds term(k).
template <class Term>
double in_lanes(std::int64_t count, const Term& term) {
  double sums[kSumLanes] = {};
  for (std::int64_t k = 0; k < count; ++k) sums[k % kSumLanes] += term(k);
  return sum_of_lanes(sums);
}

std::vector<double> positive(std::int64_t count, Numbers& numbers) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = 0.01 + numbers.uniform();
  return values;
}

class RowSumsTest : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    if (IsSkipped()) return;
    sums_ = backend().extensions().row_sums;
    ASSERT_NE(sums_, nullptr);
  }
  template <class T>
  Buffer put_values(const std::vector<T>& values) {
    Buffer buffer = backend().allocate(std::max<std::size_t>(1, values.size() * sizeof(T)));
    if (!values.empty())
      backend().upload(buffer.view(DType::kU8, {static_cast<std::int64_t>(values.size() * sizeof(T))}),
                       values.data());
    return buffer;
  }
  template <class T>
  std::vector<T> get_values(const Buffer& from, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count != 0)
      backend().download(values.data(),
                         from.view(DType::kU8, {count * static_cast<std::int64_t>(sizeof(T))}));
    return values;
  }

  RowSums* sums_ = nullptr;
};

struct Size {
  std::int64_t rows, columns;
};
constexpr Size kSizes[] = {{1, 1}, {3, 7}, {2, 129}, {33, 40}, {300, 70}, {5, 1024}, {4, 2603}, {0, 8}};

TEST_P(RowSumsTest, InputErrors) {
  for (const auto& [rows, columns] : kSizes)
    for (const std::int64_t group : {columns, std::int64_t{128}})
      for (const bool float8 : {false, true})
        for (const float fixed : {-1.0f, 0.0f, 0.02f}) {  // below zero: each group its own
          Numbers numbers(static_cast<std::uint64_t>(columns));
          std::vector<float> x = numbers.values(rows * columns, 3), s = numbers.values(columns), inverse;
          for (float& scale : s) inverse.push_back(1 / (scale = 0.5f + std::fabs(scale)));
          if (rows > 2) std::fill_n(x.begin() + columns, columns, 0.0f);
          const std::vector<double> weight = positive(columns, numbers);
          const std::int64_t groups = (columns + group - 1) / group;
          const Buffer on_x = put_values(x), on_s = put_values(s), on_inverse = put_values(inverse),
                       on_weight = put_values(weight),
                       on_sums =
                           backend().allocate(static_cast<std::size_t>(rows * groups) * sizeof(double) + 1);
          InputErrors errors;
          errors.rows = rows, errors.columns = columns, errors.group = group;
          errors.x = on_x.as<float>(), errors.s = on_s.as<float>(), errors.inverse = on_inverse.as<float>(),
          errors.weight = on_weight.as<double>();
          errors.sums = on_sums.as<double>();
          errors.top = float8 ? 448.0f : 127.5f, errors.least = kLeast, errors.scale = fixed,
          errors.one_scale = fixed >= 0, errors.float8 = float8;
          sums_->sum_input_errors(errors);
          std::vector<double> want;
          for (std::int64_t i = 0; i < rows * groups; ++i) {
            const std::int64_t first = i % groups * group, count = std::min(group, columns - first),
                               at = i / groups * columns + first;
            const auto number = [](const auto& values, std::int64_t k) {
              return values[static_cast<std::size_t>(k)];
            };
            float most = 0;
            for (std::int64_t k = 0; k < count; ++k)
              most = std::max(most, std::fabs(number(x, at + k) * number(inverse, first + k)));
            const InputStep step = InputStep::of(fixed < 0 ? most / errors.top : fixed, kLeast);
            want.push_back(in_lanes(count, [&](std::int64_t k) {
              const auto error = float8 ? input_error<true> : input_error<false>;
              return weighted_square(
                  error(number(x, at + k), number(s, first + k), number(inverse, first + k), step),
                  number(weight, first + k));
            }));
          }
          EXPECT_EQ(get_values<double>(on_sums, rows * groups), want)
              << rows << " rows of " << columns << " in groups of " << group << ", step " << fixed;
        }
}

TEST_P(RowSumsTest, SquaresSoftMaximaAndShares) {
  for (const auto& [rows, columns] : kSizes) {
    Numbers numbers(static_cast<std::uint64_t>(rows + columns));
    std::vector<float> x = numbers.values(rows * columns, 3);
    if (rows > 2) std::fill_n(x.begin() + columns, columns, 0.0f);
    const std::vector<double> factor = positive(columns, numbers), weight = positive(rows, numbers);
    const Buffer on_x = put_values(x), on_factor = put_values(factor), on_weight = put_values(weight),
                 on_sums = backend().allocate(static_cast<std::size_t>(rows) * sizeof(double) + 1),
                 on_soft = backend().allocate(static_cast<std::size_t>(rows) * sizeof(SoftRow) + 1),
                 on_share = backend().allocate(static_cast<std::size_t>(columns) * sizeof(double));
    sums_->sum_squares({rows, columns, on_x.as<float>(), on_factor.as<double>(), on_sums.as<double>()});
    const SoftRows soft{rows,
                        columns,
                        on_x.as<float>(),
                        on_factor.as<double>(),
                        on_weight.as<double>(),
                        on_soft.as<SoftRow>()};
    sums_->soften_rows(soft);
    sums_->share_columns({soft, on_share.as<double>()});

    std::vector<double> squares, energy, share(static_cast<std::size_t>(columns)), block(share.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const row = x.data() + r * columns;
      const auto value = [&](std::int64_t k) {
        return soft_value(row[k], factor[static_cast<std::size_t>(k)]);
      };
      double most = 0;
      for (std::int64_t k = 0; k < columns; ++k) most = std::max(most, value(k));
      squares.push_back(in_lanes(columns, [&](std::int64_t k) {
        return weighted_square(static_cast<double>(row[k]), factor[static_cast<std::size_t>(k)]);
      }));
      const double whole =
          in_lanes(columns, [&](std::int64_t k) { return soft_power(value(k), inverse_of_most(most)); });
      const SoftRow one = soft_row(most, whole, weight[static_cast<std::size_t>(r)]);
      energy.push_back(one.energy);
      EXPECT_NEAR(
          one.energy,
          most == 0 ? 0 : weight[static_cast<std::size_t>(r)] * std::pow(most * std::pow(whole, 1.0 / 16), 2),
          1e-14 * one.energy);
      for (std::size_t k = 0; k < share.size(); ++k)
        block[k] += one.part * soft_power(value(static_cast<std::int64_t>(k)), one.inverse);
      if (r % kRowsTogether != kRowsTogether - 1 && r + 1 != rows) continue;
      for (std::size_t k = 0; k < share.size(); ++k) share[k] += std::exchange(block[k], 0.0);
    }
    std::vector<double> got;
    for (const SoftRow& row : get_values<SoftRow>(on_soft, rows)) got.push_back(row.energy);
    EXPECT_EQ(get_values<double>(on_sums, rows), squares) << rows << " rows of " << columns;
    EXPECT_EQ(got, energy) << rows << " rows of " << columns;
    EXPECT_EQ(get_values<double>(on_share, columns), share) << rows << " rows of " << columns;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RowSumsTest,
                         ::testing::Values(BackendParam{"cuda_emulated", 1}, BackendParam{"cuda", 1}),
                         param_name);

}  // namespace
}  // namespace llmq::testing
