#include "quant/methods/gptq/gptq.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "calibration/joined_sums.h"
#include "quant/methods/gptq/device_rows.h"
#include "quant/methods/gptq/factorization.h"
#include "quant/methods/gptq/float_rows.h"
#include "quant/methods/gptq/host_rows.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/rtn.h"

namespace llmq {
namespace {

double mean_of_alive(std::span<const double> diagonal) {
  double sum = 0, count = 0;
  for (const double d : diagonal)
    if (d != 0) sum += d, count += 1;
  return count == 0 ? 0 : sum / count;
}

// H with 1 on the diagonal of dead columns, in the order of places; device/placed_gram.h has it on a device.
class GramInPlaces {
 public:
  GramInPlaces(const InputStats& stats, const ColumnOrder& order, const std::vector<char>& dead)
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

class Gptq final : public Method {
 public:
  Gptq(const GptqOptions& options, const FloatGroupOptions& floats, Compute compute)
      : options_(options), floats_(floats), compute_(compute) {}

  QuantizedMatrix quantize(const RoundingProblem& problem, Backend& backend) const override {
    const bool floats = problem.scheme.scale_form() != ScaleForm::kNumber;
    if ((problem.scheme.weight_type != WeightType::kInteger && !floats) ||
        problem.scheme.granularity == Granularity::kBlock)
      fail(ErrorKind::kUnsupported,
           "GPTQ rounds to integers with scales per group, channel or tensor and to floats in groups, not to "
           "{}",
           problem.scheme.text());
    ThreadPool& pool = backend.workers();
    std::unique_ptr<PreparedInput> own_input;
    const GptqInput& input =
        prepared(problem.prepared != nullptr ? *problem.prepared : own_input, problem, backend);
    GptqLinear linear{input, problem.scheme, options_, {}};
    const std::int64_t rows = problem.out_features, columns = problem.in_features;
    if (problem.scheme.granularity == Granularity::kTensor)
      linear.fixed.push_back(
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
    if (floats)
      round_to_floats(linear, problem, matrix, pool);
    else if (!input.on_devices.empty())
      round_on_devices(linear, problem, matrix, backend);
    else
      round_on_host(linear, problem, matrix, pool);
    if (problem.scheme.zero_form == ZeroForm::kAddend) store_addends(matrix);
    matrix.loss = rounding_loss(problem, matrix, backend, compute_);
    return matrix;
  }

 private:
  // round(first row) for every tile of rows; of ranks each takes some, and is told what the others made.
  template <class Round>
  static void each_tile(const RoundingProblem& problem, QuantizedMatrix& matrix, ThreadPool& pool,
                        const Round& round) {
    Ranks& ranks = or_alone(problem.ranks);
    const auto tile = static_cast<std::size_t>(host_tile_rows()),
               tiles = (static_cast<std::size_t>(problem.out_features) + tile - 1) / tile;
    const Dealt own = own_part(tiles, ranks);
    pool.parallel_for(own.end - own.first, [&](std::size_t item, int) {
      round(static_cast<std::int64_t>((own.first + item) * tile));
    });
    const std::size_t columns = tile * static_cast<std::size_t>(matrix.in_features),
                      groups = tile * static_cast<std::size_t>(matrix.groups());
    join_parts(std::span(matrix.codes), tiles, columns, ranks);
    join_parts(std::span(matrix.scales), tiles, groups, ranks);
    join_parts(std::span(matrix.zeros), tiles, groups, ranks);
  }

  static void round_on_host(const GptqLinear& linear, const RoundingProblem& problem, QuantizedMatrix& matrix,
                            ThreadPool& pool) {
    each_tile(problem, matrix, pool, [&](std::int64_t first) {
      GptqRows rows(linear, problem, first);
      rows.run();
      rows.write(matrix);
    });
  }

  void round_to_floats(const GptqLinear& linear, const RoundingProblem& problem, QuantizedMatrix& matrix,
                       ThreadPool& pool) const {
    matrix.global_scale =
        global_scale_of(problem.scheme, problem.weight, floats_.search, problem.global_scale, pool);
    std::fill(matrix.zeros.begin(), matrix.zeros.end(), static_cast<std::uint8_t>(matrix.scheme.middle()));
    const FloatScales scales(problem.scheme, floats_.search, matrix.global_scale);
    each_tile(problem, matrix, pool, [&](std::int64_t first) {
      FloatRows rows(linear, problem, scales, first);
      rows.run();
      rows.write(matrix);
    });
  }

  int sweeps() const { return options_.descent_sweeps.value_or(1); }

  // Of the input as linears of this scheme need it: what `kept` holds, or made there.
  const GptqInput& prepared(std::unique_ptr<PreparedInput>& kept, const RoundingProblem& problem,
                            Backend& backend) const {
    const std::int64_t group = problem.scheme.group_of(problem.in_features);
    const bool on_host = problem.scheme.scale_form() != ScaleForm::kNumber;
    const bool is_fitted = !on_host && problem.scheme.granularity != Granularity::kTensor &&
                           (options_.refit_scales || options_.retry_scales || sweeps() > 0);
    if (const auto* found = dynamic_cast<const GptqInput*>(kept.get());
        found != nullptr && found->group == group && found->is_fitted == is_fitted &&
        found->on_host == on_host)
      return *found;
    kept.reset();
    auto input = std::make_unique<GptqInput>();
    input->group = group;
    input->on_host = on_host;
    input->is_fitted = is_fitted;
    prepare(*input, problem, backend);
    const GptqInput& made = *input;
    kept = std::move(input);
    return made;
  }

  void prepare(GptqInput& input, const RoundingProblem& problem, Backend& backend) const {
    const InputStats& stats = *problem.stats;
    const std::vector<double> diagonal = stats.gram_diagonal();
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
    const double damp = damp_for(stats, input.notes), mean = mean_of_alive(diagonal);
    Factorizer* const factorizer = factorizer_of(backend);
    const bool rounds = backend.extensions().column_rounder != nullptr && !input.on_host;
    // Several devices have their panels from one factor, which comes by way of the host.
    if (rounds && factorizer != nullptr && problem.further_devices.empty())
      return prepare_on_device(input, stats, damp, mean, *factorizer, backend);
    prepare_on_host(input, stats, damp, mean, backend);
    if (!rounds) return;
    input.on_devices.push_back(put_input(input, backend));
    for (const std::shared_ptr<Backend>& further : problem.further_devices)
      input.on_devices.push_back(put_input(input, *further));
  }

  double damp_for(const InputStats& stats, RoundingNotes& notes) const {
    const std::int64_t size = stats.channels();
    if (stats.tokens() == 0 || stats.tokens() >= size) return options_.damp;
    const double damp = options_.damp * (static_cast<double>(size) / static_cast<double>(stats.tokens()));
    notes.warnings.push_back(
        fmt::format("{} calibration tokens for {} channels: damp is {:.3g} instead of {:g}", stats.tokens(),
                    size, damp, options_.damp));
    return damp;
  }

  static void note(const Damping& found, RoundingNotes& notes) {
    notes.lambda = found.lambda;
    notes.lambda_raises = found.raises;
    if (found.raises > 0)
      notes.warnings.push_back(
          fmt::format("the Gram matrix is not positive definite: lambda was raised {} times, to {:.3g}",
                      found.raises, found.lambda));
  }

  static float cost_of(double r) { return static_cast<float>(r * r); }

  // All but the numbers of the square, whose elements it gives.
  auto prepare_descent(GptqInput& input, const InputStats& stats, ThreadPool& pool) const {
    DescentProblem& descent = input.descent;
    descent.order = &input.runs;
    descent.scales = options_.refit_scales;
    descent.sweeps = sweeps();
    const auto element = [gram = GramInPlaces(stats, input.runs, input.dead), lambda = input.notes.lambda](
                             std::int64_t i, std::int64_t j) { return gram(i, j) + (i == j ? lambda : 0); };
    const std::vector<std::int32_t>& run = input.runs.run_begin;
    for (std::size_t g = 0; g + 1 < run.size(); ++g)
      for (std::int64_t k = run[g]; k < run[g + 1]; ++k) {
        double sum = 0;
        for (std::int64_t j = run[g]; j < run[g + 1]; ++j) sum += element(k, j);
        descent.row_sum.push_back(static_cast<float>(sum));
        descent.inverse.push_back(static_cast<float>(1 / element(k, k)));
      }
    if (options_.retry_scales) descent.factors = factorize_blocks(descent.square.blocks(), element, pool);
    return element;
  }

  void prepare_on_host(GptqInput& input, const InputStats& stats, double damp, double mean,
                       Backend& backend) const {
    ThreadPool& pool = backend.workers();
    const std::int64_t size = stats.channels();
    {  // the factor goes before the descent's square comes
      const Factorization factor =
          factorize(size, damp, mean, GramInPlaces(stats, input.order, input.dead), backend);
      note({factor.lambda, factor.raises}, input.notes);
      input.unit_upper = ColumnPanels(input.order, true);
      fill(input.unit_upper, pool, [&](std::int64_t i, std::int64_t j) {
        return i > j ? 0 : factor.upper(i, j) / factor.upper(j, j);
      });
      for (std::int64_t k = 0; k < size; ++k) input.cost.push_back(cost_of(factor.upper(k, k)));
    }
    if (!input.is_fitted) return;
    input.descent.square = ColumnPanels(input.runs, false);
    const auto element = prepare_descent(input, stats, pool);
    fill(input.descent.square, pool, element);
  }

  // The same numbers, of which those of squares never come to the host.
  void prepare_on_device(GptqInput& input, const InputStats& stats, double damp, double mean,
                         Factorizer& factorizer, Backend& backend) const {
    const std::unique_ptr<PlacedGram> gram = factorizer.place(stats.triangle(), stats.channels());
    const std::vector<std::int32_t> order = input.marked(input.order);
    note(raise_until(damp, mean, [&](double lambda) { return gram->factorize(order, lambda); }), input.notes);
    input.unit_upper = ColumnPanels(input.order, true, false);
    std::vector<double> diagonal(static_cast<std::size_t>(stats.channels()));
    Buffer unit_upper = gram->unit_upper(input.unit_upper.blocks(), diagonal), square;
    for (const double r : diagonal) input.cost.push_back(cost_of(r));
    if (input.is_fitted) {
      input.descent.square = ColumnPanels(input.runs, false, false);
      prepare_descent(input, stats, backend.workers());
      square = gram->square(input.marked(input.runs), input.notes.lambda, input.descent.square.blocks());
    }
    input.on_devices.push_back(put_input(input, std::move(unit_upper), std::move(square), backend));
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
  FloatGroupOptions floats_;
  Compute compute_;
};

}  // namespace

std::unique_ptr<Method> make_gptq(const GptqOptions& options, Compute compute,
                                  const FloatGroupOptions& floats) {
  return std::make_unique<Gptq>(options, floats, compute);
}

}  // namespace llmq
