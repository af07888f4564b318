#include "quant/gptq.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "quant/factorization.h"
#include "quant/gram_loss.h"
#include "quant/group_descent.h"
#include "quant/group_scales.h"
#include "quant/row_tile.h"
#include "quant/rtn.h"

namespace llmq {
namespace {

constexpr std::int64_t kBlock = 64;  // columns between two products with all that came before

// What all rows share.
struct Shared {
  QuantScheme scheme;
  GptqOptions options;
  ColumnOrder order, runs;        // of the rounding; with every group a run of places, for the descent
  std::vector<char> dead;         // by column
  std::vector<float> importance;  // diag H by column, dead ones 1
  std::vector<float> unit_upper;  // L, by place
  std::vector<float> square;      // H + lambda I by place of `runs`; empty where nothing is fitted again
  std::vector<GroupGrid> fixed;   // per-tensor: the one grid
  bool fits_again() const { return fixed.empty() && (options.refit_scales || options.descent_sweeps > 0); }
};

std::vector<double> diagonal_of(const InputStats& stats) {
  std::vector<double> diagonal(static_cast<std::size_t>(stats.channels()));
  for (std::size_t c = 0; c < diagonal.size(); ++c)
    diagonal[c] = stats.gram_at(static_cast<std::int64_t>(c), static_cast<std::int64_t>(c));
  return diagonal;
}

double mean_of_alive(std::span<const double> diagonal) {
  double sum = 0, count = 0;
  for (const double d : diagonal)
    if (d != 0) sum += d, count += 1;
  return count == 0 ? 0 : sum / count;
}

// H with 1 on the diagonal of dead columns, in the order of places.
class PlacedGram {
 public:
  PlacedGram(const InputStats& stats, const ColumnOrder& order, const std::vector<char>& dead)
      : stats_(stats), order_(order), dead_(dead) {}
  double operator()(std::int64_t i, std::int64_t j) const {
    const std::int32_t row = order_.columns[static_cast<std::size_t>(i)],
                       column = order_.columns[static_cast<std::size_t>(j)];
    return row == column && dead_[static_cast<std::size_t>(row)] != 0 ? 1 : stats_.gram_at(row, column);
  }

 private:
  const InputStats& stats_;
  const ColumnOrder& order_;
  const std::vector<char>& dead_;
};

// Rounds the rows of one tile; places are those of `order`, but for the descent, which has its own.
class TileRounding {
 public:
  TileRounding(const Shared& shared, const RoundingProblem& problem, std::int64_t first_row)
      : shared_(shared),
        problem_(problem),
        first_row_(first_row),
        rows_(std::min(kTileRows, problem.out_features - first_row)),
        size_(problem.in_features),
        group_(shared.scheme.group_of(size_)),
        groups_((size_ + group_ - 1) / group_),
        top_(static_cast<float>(shared.scheme.code_count() - 1)),
        tile_(size_, groups_) {}

  void run(QuantizedMatrix& matrix) {
    read_weight(shared_.order, tile_);
    if (shared_.order.run_begin.empty() || !shared_.fixed.empty()) fix_scales();
    for_each_run([&](std::int64_t begin, std::int64_t end, bool chooses) {
      if (chooses) choose_scales(begin, end);
      for (std::int64_t first = begin; first < end; first += kBlock)
        round_block(first, std::min(kBlock, end - first));
    });
    if (shared_.fits_again()) {
      change_order();
      descend({shared_.square, &shared_.runs, shared_.scheme, shared_.options.refit_scales,
               shared_.options.descent_sweeps},
              tile_);
      write(shared_.runs, matrix);
    } else {
      write(shared_.order, matrix);
    }
  }

 private:
  const float* unit_upper(std::int64_t row, std::int64_t column) const {
    return shared_.unit_upper.data() + row * size_ + column;
  }

  void read_weight(const ColumnOrder& order, RowTile& tile) const {
    for (std::int64_t place = 0; place < size_; ++place) {
      const auto column = static_cast<std::size_t>(order.columns[static_cast<std::size_t>(place)]);
      if (shared_.dead[column] != 0) continue;
      for (std::int64_t r = 0; r < rows_; ++r)
        tile.weight[static_cast<std::size_t>(place * kTileRows + r)] =
            problem_.weight[static_cast<std::size_t>((first_row_ + r) * size_) + column];
    }
  }

  // Before anything is rounded: the same grid for all, or each group's from the weights as they are.
  void fix_scales() {
    if (!shared_.fixed.empty()) {
      for (float& s : tile_.scale) s = shared_.fixed[0].scale;
      for (float& z : tile_.zero) z = shared_.fixed[0].zero;
      return;
    }
    RowTile plain(size_, groups_);
    read_weight(shared_.runs, plain);
    std::vector<float> importance(static_cast<std::size_t>(size_));
    for (std::size_t p = 0; p < importance.size(); ++p)
      importance[p] = shared_.importance[static_cast<std::size_t>(shared_.runs.columns[p])];
    for (std::int64_t g = 0; g < groups_; ++g) {
      const std::int64_t begin = g * group_;
      choose_group_scales(plain.weight.data() + begin * kTileRows, importance.data() + begin,
                          std::min(group_, size_ - begin), shared_.scheme, shared_.options, tile_.scale_of(g),
                          tile_.zero_of(g));
    }
  }

  template <class Body>
  void for_each_run(const Body& body) const {
    const std::vector<std::int32_t>& run = shared_.order.run_begin;
    if (run.empty()) body(0, size_, false);
    for (std::size_t g = 0; g + 1 < run.size(); ++g) body(run[g], run[g + 1], shared_.fixed.empty());
  }

  // The group's weights with the errors so far made good as far as they can be, x + w with
  //   x_k = sum_{j before the group} D_j L_jk - sum_{j < k in it} x_j L_jk
  // give its scale.
  void choose_scales(std::int64_t begin, std::int64_t end) {
    const std::int64_t width = end - begin;
    std::vector<float> x(static_cast<std::size_t>(width * kTileRows)), importance;
    for (std::int64_t first = 0; begin > 0 && first < width; first += kBlock) {
      const std::int64_t count = std::min(kBlock, width - first);
      float* const at = x.data() + first * kTileRows;
      add_products(at, unit_upper(0, begin + first), size_, count, tile_.difference.data(), begin, 1);
      add_products(at, unit_upper(begin, begin + first), size_, count, x.data(), first, -1);
      for (std::int64_t j = 0; j < count; ++j)
        add_products(at + (j + 1) * kTileRows, unit_upper(begin + first + j, begin + first + j + 1), size_,
                     count - j - 1, at + j * kTileRows, 1, -1);
    }
    for (std::int64_t i = 0; i < width * kTileRows; ++i)
      x[static_cast<std::size_t>(i)] += tile_.weight[static_cast<std::size_t>(begin * kTileRows + i)];
    for (std::int64_t p = begin; p < end; ++p)
      importance.push_back(
          shared_.importance[static_cast<std::size_t>(shared_.order.columns[static_cast<std::size_t>(p)])]);
    const std::int64_t group = shared_.order.group[static_cast<std::size_t>(begin)];
    choose_group_scales(x.data(), importance.data(), width, shared_.scheme, shared_.options,
                        tile_.scale_of(group), tile_.zero_of(group));
  }

  void round_block(std::int64_t first, std::int64_t count) {
    std::vector<float> carried(static_cast<std::size_t>(count * kTileRows));
    add_products(carried.data(), unit_upper(0, first), size_, count, tile_.difference.data(), first, 1);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t place = first + k, group = shared_.order.group[static_cast<std::size_t>(place)];
      const float* const scale = tile_.scale_of(group);
      const float* const zero = tile_.zero_of(group);
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        const auto i = static_cast<std::size_t>(place * kTileRows + r);
        const float w = tile_.weight[i];
        tile_.steps[i] =
            steps_of(w + carried[static_cast<std::size_t>(k * kTileRows + r)], scale[r], zero[r], top_);
        tile_.difference[i] = w - tile_.steps[i] * scale[r];
      }
      add_products(carried.data() + (k + 1) * kTileRows, unit_upper(place, place + 1), size_, count - k - 1,
                   tile_.difference.data() + place * kTileRows, 1, 1);
    }
  }

  // From the places of `order` to those of `runs`.
  void change_order() {
    if (shared_.order.columns == shared_.runs.columns) return;
    std::vector<std::size_t> place_of(static_cast<std::size_t>(size_));
    for (std::size_t p = 0; p < place_of.size(); ++p)
      place_of[static_cast<std::size_t>(shared_.order.columns[p])] = p;
    for (std::vector<float>* values : {&tile_.weight, &tile_.difference, &tile_.steps}) {
      const std::vector<float> old = *values;
      for (std::size_t p = 0; p < place_of.size(); ++p)
        std::copy_n(
            old.begin() + static_cast<std::ptrdiff_t>(
                              place_of[static_cast<std::size_t>(shared_.runs.columns[p])] * kTileRows),
            kTileRows, values->begin() + static_cast<std::ptrdiff_t>(p * kTileRows));
    }
  }

  void write(const ColumnOrder& order, QuantizedMatrix& matrix) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t row = first_row_ + r;
      for (std::int64_t g = 0; g < groups_; ++g) {
        const auto at = static_cast<std::size_t>(row * groups_ + g);
        matrix.scales[at] = tile_.scale_of(g)[r];
        matrix.zeros[at] = static_cast<std::uint8_t>(tile_.zero_of(g)[r]);
      }
      for (std::int64_t place = 0; place < size_; ++place) {
        const auto column = static_cast<std::size_t>(order.columns[static_cast<std::size_t>(place)]);
        const float zero = tile_.zero_of(order.group[static_cast<std::size_t>(place)])[r];
        const float steps =
            shared_.dead[column] != 0 ? 0 : tile_.steps[static_cast<std::size_t>(place * kTileRows + r)];
        matrix.codes[static_cast<std::size_t>(row * size_) + column] =
            static_cast<std::uint8_t>(steps + zero);
      }
    }
  }

  const Shared& shared_;
  const RoundingProblem& problem_;
  std::int64_t first_row_, rows_, size_, group_, groups_;
  float top_;
  RowTile tile_;
};

class Gptq final : public Method {
 public:
  Gptq(const GptqOptions& options, Compute compute) : options_(options), compute_(compute) {}
  std::string name() const override { return "gptq"; }
  bool needs_statistics() const override { return true; }

  QuantizedMatrix quantize(const RoundingProblem& problem, Backend& backend) const override {
    ThreadPool pool(backend.threads());
    QuantizedMatrix matrix;
    const Shared shared = prepare(problem, matrix.notes, pool);
    const std::int64_t rows = problem.out_features, columns = problem.in_features;
    matrix.scheme = problem.scheme;
    matrix.out_features = rows;
    matrix.in_features = columns;
    matrix.codes.resize(problem.weight.size());
    matrix.scales.resize(static_cast<std::size_t>(rows * matrix.groups()));
    matrix.zeros.resize(matrix.scales.size());
    if (shared.order.index_stored) {
      matrix.column_group.resize(static_cast<std::size_t>(columns));
      for (std::size_t p = 0; p < shared.order.columns.size(); ++p)
        matrix.column_group[static_cast<std::size_t>(shared.order.columns[p])] = shared.order.group[p];
    }
    pool.parallel_for(
        static_cast<std::size_t>((rows + kTileRows - 1) / kTileRows), [&](std::size_t item, int) {
          TileRounding(shared, problem, static_cast<std::int64_t>(item) * kTileRows).run(matrix);
        });
    std::optional<GramLoss> own;
    GramLoss& gram = problem.gram != nullptr ? *problem.gram : own.emplace(*problem.stats, backend, compute_);
    matrix.loss = sum_in_order(row_losses(matrix, problem.weight, gram, pool));
    return matrix;
  }

 private:
  Shared prepare(const RoundingProblem& problem, RoundingNotes& notes, ThreadPool& pool) const {
    const InputStats& stats = *problem.stats;
    const std::int64_t size = problem.in_features;
    Shared shared;
    shared.scheme = problem.scheme;
    shared.options = options_;
    const std::vector<double> diagonal = diagonal_of(stats);
    const std::int64_t group = problem.scheme.group_of(size);
    // One group has no order of groups to store.
    shared.order = order_columns(
        options_.order == RoundingOrder::kAct && group >= size ? RoundingOrder::kGar : options_.order,
        diagonal, group);
    shared.runs = by_groups(shared.order, group);
    for (const double d : diagonal) {
      shared.dead.push_back(d == 0 ? 1 : 0);
      shared.importance.push_back(d == 0 ? 1.0f : static_cast<float>(d));
      notes.dead_channels += d == 0 ? 1 : 0;
    }
    if (problem.scheme.granularity == Granularity::kTensor)
      shared.fixed.push_back(
          grid_for(find_ranges(problem.weight, problem.out_features, size, problem.scheme, pool).front(),
                   problem.scheme));
    factorize_into(shared, stats, diagonal, notes, pool);
    return shared;
  }

  void factorize_into(Shared& shared, const InputStats& stats, std::span<const double> diagonal,
                      RoundingNotes& notes, ThreadPool& pool) const {
    const std::int64_t size = stats.channels();
    double damp = options_.damp;
    if (stats.tokens() > 0 && stats.tokens() < size) {
      damp *= static_cast<double>(size) / static_cast<double>(stats.tokens());
      notes.warnings.push_back(
          fmt::format("{} calibration tokens for {} channels: damp is {:.3g} instead of {:g}", stats.tokens(),
                      size, damp, options_.damp));
    }
    const Factorization factor =
        factorize(size, damp, mean_of_alive(diagonal), PlacedGram(stats, shared.order, shared.dead), pool);
    notes.lambda = factor.lambda;
    notes.lambda_raises = factor.raises;
    if (factor.raises > 0)
      notes.warnings.push_back(
          fmt::format("the Gram matrix is not positive definite: lambda was raised {} times, to {:.3g}",
                      factor.raises, factor.lambda));
    shared.unit_upper.assign(factor.unit_upper.begin(), factor.unit_upper.end());
    if (!shared.fits_again()) return;
    const PlacedGram gram(stats, shared.runs, shared.dead);
    shared.square.resize(static_cast<std::size_t>(size * size));
    pool.parallel_for(static_cast<std::size_t>(size), [&](std::size_t row, int) {
      const auto i = static_cast<std::int64_t>(row);
      for (std::int64_t j = 0; j < size; ++j)
        shared.square[static_cast<std::size_t>(i * size + j)] =
            static_cast<float>(gram(i, j) + (i == j ? factor.lambda : 0));
    });
  }

  GptqOptions options_;
  Compute compute_;
};

}  // namespace

std::unique_ptr<Method> make_gptq(const GptqOptions& options, Compute compute) {
  return std::make_unique<Gptq>(options, compute);
}

}  // namespace llmq
