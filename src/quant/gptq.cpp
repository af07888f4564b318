#include "quant/gptq.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "quant/factorization.h"
#include "quant/gram_loss.h"
#include "quant/group_descent.h"
#include "quant/group_scales.h"
#include "quant/group_squares.h"
#include "quant/rtn.h"

namespace llmq {
namespace {

// What all rows of all linears that read an input share.
struct GptqInput final : PreparedInput {
  std::int64_t group = 0;
  bool is_fitted = false;         // scales and codes are fitted again: `runs` and `descent` are there
  ColumnOrder order, runs;        // of the rounding; with every group a run of places, for the descent
  std::vector<char> dead;         // by column
  std::vector<float> importance;  // diag H by place of `order`, dead ones 1
  ColumnPanels unit_upper;        // L by place of `order`
  std::vector<float> cost;        // R_kk^2 by place of `order`
  DescentProblem descent;         // by place of `runs`
  RoundingNotes notes;
};

// What all rows of a linear share.
struct Shared {
  const GptqInput& input;
  const QuantScheme& scheme;
  const GptqOptions& options;
  std::vector<GroupGrid> fixed;  // per-tensor: the one grid
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
        rows_(std::min(host_tile_rows(), problem.out_features - first_row)),
        size_(problem.in_features),
        group_(shared.scheme.group_of(size_)),
        groups_((size_ + group_ - 1) / group_),
        tile_(size_, groups_) {}

  void run(QuantizedMatrix& matrix) {
    read_weight(shared_.input.order, tile_);
    const std::vector<std::int32_t>& runs = shared_.input.order.run_begin;
    if (!shared_.fixed.empty())
      fix_grid();
    else if (runs.empty())
      choose_all_scales();
    const std::vector<ColumnBlock>& blocks = shared_.input.unit_upper.blocks();
    std::size_t run = 0;
    for (const ColumnBlock& block : blocks) {
      const bool begins = run < runs.size() && runs[run] == block.begin;
      if (begins && shared_.fixed.empty())
        choose_scales(block, runs[++run]);  // leaves what the block carries
      else
        carry(block, carried_);
      host_tile_round(columns_of(block, carried_));
    }
    if (shared_.input.is_fitted) {
      change_order();
      descend(shared_.input.descent, shared_.scheme, tile_);
    }
    write(shared_.input.is_fitted ? shared_.input.runs : shared_.input.order, matrix);
  }

 private:
  float* at(std::vector<float>& values, std::int64_t place) const {
    return values.data() + place * tile_.rows;
  }

  void read_weight(const ColumnOrder& order, RowTile& tile) const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float* const from = problem_.weight.data() + (first_row_ + r) * size_;
      for (std::int64_t place = 0; place < size_; ++place) {
        const auto column = static_cast<std::size_t>(order.columns[static_cast<std::size_t>(place)]);
        if (shared_.input.dead[column] == 0)
          tile.weight[static_cast<std::size_t>(place * tile.rows + r)] = from[column];
      }
    }
  }

  void fix_grid() {
    std::fill(tile_.scale.begin(), tile_.scale.end(), shared_.fixed[0].scale);
    std::fill(tile_.zero.begin(), tile_.zero.end(), shared_.fixed[0].zero);
  }

  // Each group's from the weights as they are, before anything is rounded.
  void choose_all_scales() {
    RowTile plain(size_, 0);
    read_weight(shared_.input.runs, plain);
    std::vector<float> importance(static_cast<std::size_t>(size_));
    for (std::size_t place = 0; place < importance.size(); ++place)
      importance[static_cast<std::size_t>(shared_.input.order.columns[place])] =
          shared_.input.importance[place];
    for (std::int64_t g = 0; g < groups_; ++g) {
      const std::int64_t begin = g * group_;
      choose_group_scales({at(plain.weight, begin), importance.data() + begin,
                           std::min(group_, size_ - begin), tile_.scale_of(g), tile_.zero_of(g)},
                          shared_.scheme, shared_.options);
    }
  }

  // carried = what the columns before the block leave to it.
  void carry(const ColumnBlock& block, std::vector<float>& carried) {
    carried.resize(static_cast<std::size_t>(block.width * tile_.rows));
    host_tile_product(carried.data(), shared_.input.unit_upper.at(0, block), block.width, block.width,
                      tile_.difference.data(), block.begin, false);
  }

  TileColumns columns_of(const ColumnBlock& block, std::vector<float>& carried) {
    TileColumns columns;
    columns.columns = block.width;
    columns.factors = shared_.input.unit_upper.at(block.begin, block);
    columns.factor_row = block.width;
    columns.carried = carried.data();
    columns.weight = at(tile_.weight, block.begin);
    columns.steps = at(tile_.steps, block.begin);
    columns.difference = at(tile_.difference, block.begin);
    columns.scale = tile_.scale.data();
    columns.zero = tile_.zero.data();
    columns.group = shared_.input.order.group.data() + block.begin;
    columns.top = static_cast<float>(shared_.scheme.code_count() - 1);
    return columns;
  }

  // A group's scale comes from its weights with the errors so far made good as far as they can be, w + x with
  //   x_k = sum_{j before the group} D_j L_jk - sum_{j < k in it} x_j L_jk;
  // the places of the group hold -x until it is rounded. `first` is the group's first block.
  void choose_scales(const ColumnBlock& first, std::int64_t end) {
    const auto count = static_cast<std::size_t>((end - first.begin) * tile_.rows);
    std::vector<float> current(at(tile_.weight, first.begin), at(tile_.weight, first.begin) + count);
    carry(first, carried_);
    if (first.begin > 0) {
      const std::vector<ColumnBlock>& blocks = shared_.input.unit_upper.blocks();
      std::vector<float> solved;
      for (std::size_t b = shared_.input.unit_upper.first_block(first.begin);
           b < blocks.size() && blocks[b].begin < end; ++b) {
        if (blocks[b].begin == first.begin)
          solved = carried_;
        else
          carry(blocks[b], solved);
        host_tile_solve(columns_of(blocks[b], solved));
      }
      const float* const x = at(tile_.difference, first.begin);
      for (std::size_t i = 0; i < count; ++i) current[i] -= x[i];
    }
    const std::int64_t group = shared_.input.order.group[static_cast<std::size_t>(first.begin)];
    choose_group_scales({current.data(), shared_.input.importance.data() + first.begin, end - first.begin,
                         tile_.scale_of(group), tile_.zero_of(group)},
                        shared_.scheme, shared_.options);
    if (shared_.options.scale_search != GptqOptions::ScaleSearch::kFeedback ||
        first.begin + first.width != end)
      return;
    TileColumns columns = columns_of(first, carried_);
    columns.cost = shared_.input.cost.data() + first.begin;
    try_group_scales(columns, {tile_.scale_of(group), tile_.zero_of(group), nullptr}, kCoarseTrials,
                     shared_.scheme);
  }

  // From the places of `order` to those of `runs`.
  void change_order() {
    if (shared_.input.order.columns == shared_.input.runs.columns) return;
    std::vector<std::int64_t> place_of(static_cast<std::size_t>(size_));
    for (std::size_t p = 0; p < place_of.size(); ++p)
      place_of[static_cast<std::size_t>(shared_.input.order.columns[p])] = static_cast<std::int64_t>(p);
    for (std::vector<float>* values : {&tile_.weight, &tile_.difference, &tile_.steps}) {
      std::vector<float> old = *values;
      for (std::int64_t p = 0; p < size_; ++p) {
        const auto column = static_cast<std::size_t>(shared_.input.runs.columns[static_cast<std::size_t>(p)]);
        std::copy_n(at(old, place_of[column]), tile_.rows, at(*values, p));
      }
    }
  }

  void write(const ColumnOrder& order, QuantizedMatrix& matrix) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t row = first_row_ + r;
      for (std::int64_t g = 0; g < groups_; ++g) {
        const auto i = static_cast<std::size_t>(row * groups_ + g);
        matrix.scales[i] = tile_.scale_of(g)[r];
        matrix.zeros[i] = static_cast<std::uint8_t>(tile_.zero_of(g)[r]);
      }
      for (std::int64_t place = 0; place < size_; ++place) {
        const auto column = static_cast<std::size_t>(order.columns[static_cast<std::size_t>(place)]);
        const float zero = tile_.zero_of(order.group[static_cast<std::size_t>(place)])[r];
        const float steps = shared_.input.dead[column] != 0
                                ? 0
                                : tile_.steps[static_cast<std::size_t>(place * tile_.rows + r)];
        matrix.codes[static_cast<std::size_t>(row * size_) + column] =
            static_cast<std::uint8_t>(steps + zero);
      }
    }
  }

  const Shared& shared_;
  const RoundingProblem& problem_;
  std::int64_t first_row_, rows_, size_, group_, groups_;
  RowTile tile_;
  std::vector<float> carried_;
};

class Gptq final : public Method {
 public:
  Gptq(const GptqOptions& options, Compute compute) : options_(options), compute_(compute) {}
  std::string name() const override { return "gptq"; }
  bool needs_statistics() const override { return true; }

  QuantizedMatrix quantize(const RoundingProblem& problem, Backend& backend) const override {
    if (problem.scheme.weight_type != WeightType::kInteger ||
        problem.scheme.granularity == Granularity::kBlock)
      fail(ErrorKind::kUnsupported,
           "GPTQ rounds to integers with scales per group, channel or tensor, not to {}",
           problem.scheme.text());
    ThreadPool& pool = backend.workers();
    std::unique_ptr<PreparedInput> own_input;
    const GptqInput& input =
        prepared(problem.prepared != nullptr ? *problem.prepared : own_input, problem, pool);
    Shared shared{input, problem.scheme, options_, {}};
    const std::int64_t rows = problem.out_features, columns = problem.in_features;
    if (problem.scheme.granularity == Granularity::kTensor)
      shared.fixed.push_back(
          grid_for(find_ranges(problem.weight, rows, columns, problem.scheme, pool).front(), problem.scheme));
    QuantizedMatrix matrix;
    matrix.notes = input.notes;
    matrix.scheme = problem.scheme;
    matrix.out_features = rows;
    matrix.in_features = columns;
    matrix.codes.resize(problem.weight.size());
    matrix.scales.resize(static_cast<std::size_t>(rows * matrix.groups()));
    matrix.zeros.resize(matrix.scales.size());
    if (input.order.index_stored) {
      matrix.column_group.resize(static_cast<std::size_t>(columns));
      for (std::size_t p = 0; p < input.order.columns.size(); ++p)
        matrix.column_group[static_cast<std::size_t>(input.order.columns[p])] = input.order.group[p];
    }
    const std::int64_t tile = host_tile_rows();
    pool.parallel_for(static_cast<std::size_t>((rows + tile - 1) / tile), [&](std::size_t item, int) {
      TileRounding(shared, problem, static_cast<std::int64_t>(item) * tile).run(matrix);
    });
    std::optional<GramLoss> own;
    GramLoss& gram = problem.gram != nullptr ? *problem.gram : own.emplace(*problem.stats, backend, compute_);
    matrix.loss = sum_in_order(row_losses(matrix, problem.weight, gram, pool));
    return matrix;
  }

 private:
  int sweeps() const { return options_.descent_sweeps.value_or(1); }

  // Of the input as linears of this scheme need it: what `kept` holds, or made there.
  const GptqInput& prepared(std::unique_ptr<PreparedInput>& kept, const RoundingProblem& problem,
                            ThreadPool& pool) const {
    const std::int64_t group = problem.scheme.group_of(problem.in_features);
    const bool is_fitted = problem.scheme.granularity != Granularity::kTensor &&
                           (options_.refit_scales || options_.retry_scales || sweeps() > 0);
    if (const auto* found = dynamic_cast<const GptqInput*>(kept.get());
        found != nullptr && found->group == group && found->is_fitted == is_fitted)
      return *found;
    kept.reset();
    auto input = std::make_unique<GptqInput>();
    input->group = group;
    input->is_fitted = is_fitted;
    prepare(*input, *problem.stats, pool);
    const GptqInput& made = *input;
    kept = std::move(input);
    return made;
  }

  void prepare(GptqInput& input, const InputStats& stats, ThreadPool& pool) const {
    const std::vector<double> diagonal = diagonal_of(stats);
    // One group has no order of groups to store.
    input.order = order_columns(options_.order == RoundingOrder::kAct && input.group >= stats.channels()
                                    ? RoundingOrder::kGar
                                    : options_.order,
                                diagonal, input.group);
    input.runs = by_groups(input.order, input.group);
    for (const double d : diagonal) {
      input.dead.push_back(d == 0 ? 1 : 0);
      input.notes.dead_channels += d == 0 ? 1 : 0;
    }
    for (const std::int32_t column : input.order.columns) {
      const double d = diagonal[static_cast<std::size_t>(column)];
      input.importance.push_back(d == 0 ? 1.0f : static_cast<float>(d));
    }
    factorize_into(input, stats, diagonal, pool);
  }

  void factorize_into(GptqInput& input, const InputStats& stats, std::span<const double> diagonal,
                      ThreadPool& pool) const {
    RoundingNotes& notes = input.notes;
    const std::int64_t size = stats.channels();
    double damp = options_.damp;
    if (stats.tokens() > 0 && stats.tokens() < size) {
      damp *= static_cast<double>(size) / static_cast<double>(stats.tokens());
      notes.warnings.push_back(
          fmt::format("{} calibration tokens for {} channels: damp is {:.3g} instead of {:g}", stats.tokens(),
                      size, damp, options_.damp));
    }
    {  // the factor goes before the descent's square comes
      const Factorization factor =
          factorize(size, damp, mean_of_alive(diagonal), PlacedGram(stats, input.order, input.dead), pool);
      notes.lambda = factor.lambda;
      notes.lambda_raises = factor.raises;
      input.unit_upper = ColumnPanels(input.order, true);
      fill(input.unit_upper, pool, [&](std::int64_t i, std::int64_t j) {
        return i > j ? 0 : factor.upper(i, j) / factor.upper(j, j);
      });
      for (std::int64_t k = 0; k < size; ++k)
        input.cost.push_back(static_cast<float>(factor.upper(k, k) * factor.upper(k, k)));
    }
    if (notes.lambda_raises > 0)
      notes.warnings.push_back(
          fmt::format("the Gram matrix is not positive definite: lambda was raised {} times, to {:.3g}",
                      notes.lambda_raises, notes.lambda));
    if (input.is_fitted)
      prepare_descent(input, PlacedGram(stats, input.runs, input.dead), notes.lambda, pool);
  }

  void prepare_descent(GptqInput& input, const PlacedGram& gram, double lambda, ThreadPool& pool) const {
    DescentProblem& descent = input.descent;
    descent.order = &input.runs;
    descent.scales = options_.refit_scales;
    descent.sweeps = sweeps();
    descent.square = ColumnPanels(input.runs, false);
    const auto element = [&](std::int64_t i, std::int64_t j) { return gram(i, j) + (i == j ? lambda : 0); };
    fill(descent.square, pool, element);
    const std::vector<std::int32_t>& run = input.runs.run_begin;
    for (std::size_t g = 0; g + 1 < run.size(); ++g)
      for (std::int64_t k = run[g]; k < run[g + 1]; ++k) {
        double sum = 0;
        for (std::int64_t j = run[g]; j < run[g + 1]; ++j) sum += element(k, j);
        descent.row_sum.push_back(static_cast<float>(sum));
        descent.inverse.push_back(static_cast<float>(1 / element(k, k)));
      }
    if (options_.retry_scales) descent.own = factorize_groups(descent.square.blocks(), element, pool);
  }

  template <class Element>
  static void fill(ColumnPanels& panels, ThreadPool& pool, const Element& element) {
    pool.parallel_for(panels.blocks().size(), [&](std::size_t index, int) {
      const ColumnBlock& block = panels.blocks()[index];
      for (std::int64_t row = 0; row < block.rows; ++row)
        for (std::int64_t c = 0; c < block.width; ++c)
          panels.at(row, block)[c] = static_cast<float>(element(row, block.begin + c));
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
