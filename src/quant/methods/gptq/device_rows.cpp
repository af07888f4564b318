#include "quant/methods/gptq/device_rows.h"

#include <algorithm>

#include "base/error.h"
#include "base/side_by_side.h"
#include "device/upload_values.h"

namespace llmq {
namespace {

constexpr std::int64_t kRowArrays = 6;    // of K values for each row, with what a group takes
constexpr std::int64_t kBlockArrays = 5;  // of a block's columns for each row

// Error(kInternal) where not every device rounds columns: their rows would be rounded by nobody.
ColumnRounder& rounder_of(const Backend& device) {
  ColumnRounder* const rounder = device.extensions().column_rounder;
  if (rounder == nullptr)
    fail(ErrorKind::kInternal, "{} was given rows to round, and rounds no columns", device.name());
  return *rounder;
}

DevicePanels put_panels(Buffer values, const GptqInput& input, const ColumnOrder& order, Backend& backend) {
  return {std::move(values), upload_values(backend, input.marked(order)),
          upload_values(backend, order.group)};
}

// Arrays are [places, rows].
class DeviceRows {
 public:
  DeviceRows(const GptqLinear& linear, const RoundingProblem& problem, std::int64_t first_row,
             std::int64_t rows, const InputOnDevice& input, ColumnRounder& rounder, Backend& backend)
      : linear_(linear),
        problem_(problem),
        input_(input),
        rounder_(rounder),
        backend_(backend),
        first_row_(first_row),
        rows_(rows),
        size_(problem.in_features),
        group_(linear.scheme.group_of(size_)),
        groups_((size_ + group_ - 1) / group_),
        rule_(grid_rule(linear.scheme)) {
    weight_ = array(size_), difference_ = array(size_), steps_ = array(size_);
    scale_ = array(groups_), zero_ = array(groups_), tried_scale_ = array(1), tried_zero_ = array(1),
    loss_ = array(1), tried_loss_ = array(1);
  }

  void run() {
    read_weight();
    if (!linear_.fixed.empty())
      fix_grid();
    else if (linear_.input.order.run_begin.empty())
      choose_all_scales();
    linear_.each_block([&](const ColumnBlock& block, std::int64_t end) { round(block, end); });
    if (linear_.input.is_fitted) descend();
  }

  void write(QuantizedMatrix& matrix) {
    const DevicePanels& panels = linear_.input.is_fitted ? input_.square : input_.upper;
    // The codes take the memory of the differences, which have done their work.
    const TensorView codes(difference_.get(), DType::kU8, {rows_, size_}, difference_.device());
    rounder_.write_codes({{size_, panels.column.as<std::int32_t>()},
                          steps_.as<float>(),
                          zero_.as<float>(),
                          panels.group.as<std::int32_t>(),
                          codes.as<std::uint8_t>()},
                         rows_);
    backend_.download(matrix.codes.data() + first_row_ * size_, codes);
    std::vector<float> scales(static_cast<std::size_t>(groups_ * rows_)), zeros(scales.size());
    backend_.download(scales.data(), lines(scale_, 0, groups_));
    backend_.download(zeros.data(), lines(zero_, 0, groups_));
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t g = 0; g < groups_; ++g) {
        const auto to = static_cast<std::size_t>((first_row_ + r) * groups_ + g),
                   from = static_cast<std::size_t>(g * rows_ + r);
        matrix.scales[to] = scales[from];
        matrix.zeros[to] = static_cast<std::uint8_t>(zeros[from]);
      }
  }

 private:
  Buffer array(std::int64_t count) {
    return backend_.allocate(static_cast<std::size_t>(count * rows_) * sizeof(float));
  }
  float* at(const Buffer& values, std::int64_t line) const { return values.as<float>() + line * rows_; }
  TensorView lines(const Buffer& values, std::int64_t first, std::int64_t count) const {
    return {at(values, first), DType::kF32, {count, rows_}, values.device()};
  }
  RowGrids grids_of(std::int64_t group) const { return {at(scale_, group), at(zero_, group)}; }
  // One scale and zero for each row.
  static void under(TileColumns& columns, const RowGrids& grids) {
    columns.scale = grids.scale;
    columns.zero = grids.zero;
    columns.group = nullptr;
  }

  void read_weight() {
    // The weight takes the memory of the steps, because there are no steps yet.
    const TensorView raw(steps_.get(), DType::kF32, {rows_, size_}, steps_.device());
    backend_.upload(raw, problem_.weight.data() + first_row_ * size_);
    rounder_.place_columns(lines(weight_, 0, size_), raw, {size_, input_.upper.column.as<std::int32_t>()});
  }

  void fix_grid() {
    const std::vector<float> scale(static_cast<std::size_t>(groups_ * rows_), linear_.fixed[0].scale),
        zero(scale.size(), linear_.fixed[0].zero);
    backend_.upload(lines(scale_, 0, groups_), scale.data());
    backend_.upload(lines(zero_, 0, groups_), zero.data());
  }

  // As GptqRows::choose_all_scales().
  void choose_all_scales() {
    const TensorView plain = lines(difference_, 0, size_);  // there are no differences yet
    backend_.embed(plain, lines(weight_, 0, size_), linear_.input.places_of_runs());
    for (std::int64_t g = 0; g < groups_; ++g) {
      const std::int64_t begin = g * group_;
      rounder_.choose_scales(
          {std::min(group_, size_ - begin), at(difference_, begin), nullptr,
           input_.column_importance.as<float>() + begin, grids_of(g), linear_.candidates()},
          rows_);
    }
  }

  TileColumns columns_of(const DevicePanels& panels, const ColumnBlock& block,
                         const TensorView& carried) const {
    TileColumns columns;
    columns.columns = block.width;
    columns.factors = panels.values.as<float>() + block.offset + block.begin * block.width;
    columns.factor_row = block.width;
    columns.carried = carried.as<float>();
    columns.weight = at(weight_, block.begin);
    columns.steps = at(steps_, block.begin);
    columns.difference = at(difference_, block.begin);
    columns.scale = scale_.as<float>();
    columns.zero = zero_.as<float>();
    columns.group = panels.group.as<std::int32_t>() + block.begin;
    columns.top = rule_.top;
    return columns;
  }

  // sum (+)= what values, of the places from `first` on, say of a block.
  void multiply(const TensorView& sum, const DevicePanels& panels, const ColumnBlock& block,
                const TensorView& values, std::int64_t first = 0, bool accumulate = false) {
    const TensorView factors(panels.values.as<float>() + block.offset + first * block.width, DType::kF32,
                             {values.rows(), block.width}, panels.values.device());
    rounder_.tile_product(sum, factors, values, accumulate);
  }

  void round(const ColumnBlock& block, std::int64_t end) {
    const Buffer sums = array(block.width);
    const TensorView carried = lines(sums, 0, block.width);
    multiply(carried, input_.upper, block, lines(difference_, 0, block.begin));
    if (end > 0) choose_scales(block, end, carried);
    rounder_.tile_round(columns_of(input_.upper, block, carried), rows_);
  }

  // As GptqRows::choose_scales().
  void choose_scales(const ColumnBlock& first, std::int64_t end, const TensorView& carried) {
    const std::int64_t begin = first.begin,
                       group = linear_.input.order.group[static_cast<std::size_t>(begin)];
    if (begin > 0)
      for (const ColumnBlock& block : linear_.blocks_until(first, end)) {
        const Buffer sums = block.begin == begin ? Buffer() : array(block.width);
        const TensorView solved = block.begin == begin ? carried : lines(sums, 0, block.width);
        if (block.begin > begin) multiply(solved, input_.upper, block, lines(difference_, 0, block.begin));
        rounder_.tile_solve(columns_of(input_.upper, block, solved), rows_);
      }
    rounder_.choose_scales({end - begin, at(weight_, begin), begin > 0 ? at(difference_, begin) : nullptr,
                            input_.importance.as<float>() + begin, grids_of(group), linear_.candidates()},
                           rows_);
    if (!linear_.tries(first, end)) return;
    TrialSearch search{columns_of(input_.upper, first, carried), grids_of(group), nullptr, kCoarseTrials,
                       rule_};
    under(search.columns, search.found);
    search.columns.cost = input_.cost.as<float>() + begin;
    rounder_.try_scales(search, rows_);
  }

  void descend() {
    if (linear_.input.changes_order()) {
      const std::vector<std::int32_t> places = linear_.input.places_of_runs();
      for (Buffer* values : {&weight_, &difference_, &steps_}) {
        Buffer moved = array(size_);
        backend_.embed(lines(moved, 0, size_), lines(*values, 0, size_), places);
        *values = std::move(moved);
      }
    }
    const DescentProblem& problem = linear_.input.descent;
    problem.each_group([&](std::int64_t begin, std::int64_t end) { visit(begin, end); });
  }

  // As GroupDescent::visit().
  void visit(std::int64_t begin, std::int64_t end) {
    const DescentProblem& problem = linear_.input.descent;
    const Buffer sums = array(end - begin);
    const auto slopes = [&](const ColumnBlock& block) {
      const TensorView y = lines(sums, block.begin - begin, block.width);
      multiply(y, input_.square, block, lines(difference_, 0, block.rows));
      return y;
    };
    for (const ColumnBlock& block : problem.blocks_of(begin, end)) slopes(block);
    if (problem.factor_of(begin, end) != nullptr) search_again(problem.square.first_block(begin), sums);
    if (problem.scales) refit(begin, end, sums);
    if (problem.sweeps == 0) return;
    for (const ColumnBlock& block : problem.blocks_of(begin, end)) {
      TileColumns columns =
          columns_of(input_.square, block, block.begin > begin ? slopes(block) : lines(sums, 0, block.width));
      columns.inverse = input_.inverse.as<float>() + block.begin;
      rounder_.tile_descend(columns, rows_);
    }
  }

  // As GroupDescent::search_again().
  void search_again(std::size_t index, const Buffer& y) {
    const ColumnBlock& block = linear_.input.descent.square.blocks()[index];
    const std::int64_t width = block.width;
    const float* const upper = input_.factors.as<float>() + input_.factor_begin[index];
    const TensorView inverse(upper + width * width, DType::kF32, {width, width}, input_.factors.device());
    const Buffer target = array(width), fresh = array(width), spent = array(width);
    const RowGrids grid = grids_of(linear_.input.runs.group[static_cast<std::size_t>(block.begin)]),
                   tried{tried_scale_.as<float>(), tried_zero_.as<float>()};
    rounder_.tile_product(lines(target, 0, width), inverse, lines(y, 0, width), false);
    rounder_.target_group(
        {width, y.as<float>(), at(steps_, block.begin), grid.scale, target.as<float>(), loss_.as<float>()},
        rows_);
    TrialSearch search{columns_of(input_.square, block, {}), tried, tried_loss_.as<float>(), kFineTrials,
                       rule_};
    TileColumns& columns = search.columns;
    under(columns, grid);
    columns.factors = upper;
    columns.weight = target.as<float>();
    columns.steps = fresh.as<float>();
    columns.difference = spent.as<float>();
    columns.cost = upper + 2 * width * width;
    rounder_.try_scales(search, rows_);
    under(columns, tried);
    rounder_.tile_round(columns, rows_);
    rounder_.take_group(
        {width, at(weight_, block.begin), fresh.as<float>(), tried, grid, tried_loss_.as<float>(),
         loss_.as<float>(), at(steps_, block.begin), at(difference_, block.begin), spent.as<float>()},
        rows_);
    multiply(lines(y, 0, width), input_.square, block, lines(spent, 0, width), block.begin, true);
  }

  // As GroupDescent::fit_scale() and shift_zero().
  void refit(std::int64_t begin, std::int64_t end, const Buffer& y) {
    const Buffer u = array(end - begin);
    for (const ColumnBlock& block : linear_.input.descent.blocks_of(begin, end))
      multiply(lines(u, block.begin - begin, block.width), input_.square, block,
               lines(steps_, begin, end - begin), begin);
    rounder_.refit_group({end - begin, at(weight_, begin), input_.row_sum.as<float>() + begin, u.as<float>(),
                          y.as<float>(), at(steps_, begin), at(difference_, begin),
                          grids_of(linear_.input.runs.group[static_cast<std::size_t>(begin)]), rule_},
                         rows_);
  }

  const GptqLinear& linear_;
  const RoundingProblem& problem_;
  const InputOnDevice& input_;
  ColumnRounder& rounder_;
  Backend& backend_;
  std::int64_t first_row_, rows_, size_, group_, groups_;
  GridRule rule_;
  Buffer weight_, difference_, steps_;                   // [places, rows]
  Buffer scale_, zero_;                                  // [groups, rows]
  Buffer tried_scale_, tried_zero_, loss_, tried_loss_;  // [rows]
};

}  // namespace

std::uint64_t gptq_device_bytes(std::uint64_t out_features, std::uint64_t columns,
                                std::uint64_t device_scratch) {
  const std::uint64_t row = kRowArrays * columns * sizeof(float),
                      rows = std::min(
                          static_cast<std::uint64_t>(rounded_rows(static_cast<std::int64_t>(device_scratch),
                                                                  static_cast<std::int64_t>(row))),
                          out_features);
  return 6 * columns * columns +
         columns * (BlockCholesky::kColumnBytes / 2 + BlockCholesky::kColumnBytes + 8 * sizeof(float)) +
         rows * (row + kBlockArrays * ColumnPanels::kMostColumns * sizeof(float));
}

std::uint64_t gptq_factor_device_bytes(std::uint64_t columns, bool alone) {
  return (alone ? 4 + 8 + 2 : 8) * columns * columns;
}

InputOnDevice put_input(const GptqInput& input, Backend& backend) {
  return put_input(input, upload_values(backend, input.unit_upper.values()),
                   input.is_fitted ? upload_values(backend, input.descent.square.values()) : Buffer(),
                   backend);
}

InputOnDevice put_input(const GptqInput& input, Buffer unit_upper, Buffer of_descent, Backend& backend) {
  const auto put = [&](const std::vector<float>& values) { return upload_values(backend, values); };
  InputOnDevice on_device;
  on_device.upper = put_panels(std::move(unit_upper), input, input.order, backend);
  on_device.importance = put(input.importance);
  on_device.cost = put(input.cost);
  if (input.order.run_begin.empty()) on_device.column_importance = put(input.importance_by_column());
  if (!input.is_fitted) return on_device;
  const DescentProblem& descent = input.descent;
  on_device.square = put_panels(std::move(of_descent), input, input.runs, backend);
  on_device.inverse = put(descent.inverse);
  on_device.row_sum = put(descent.row_sum);
  std::vector<float> factors;
  for (const BlockCholesky& square : descent.factors) {
    on_device.factor_begin.push_back(factors.size());
    for (const std::vector<float>* part : {&square.unit_upper, &square.inverse, &square.cost})
      factors.insert(factors.end(), part->begin(), part->end());
  }
  on_device.factors = put(factors);
  return on_device;
}

void round_on_devices(const GptqLinear& linear, const RoundingProblem& problem, QuantizedMatrix& matrix,
                      Backend& backend) {
  std::vector<Backend*> devices = {&backend};
  for (const std::shared_ptr<Backend>& further : problem.further_devices) devices.push_back(further.get());
  const auto count = static_cast<std::int64_t>(devices.size());
  const std::int64_t rows = problem.out_features,
                     row_bytes = kRowArrays * problem.in_features * std::int64_t{sizeof(float)};
  // In a batch: a multiple of four rows, as devices copy them 16 bytes at a time
  // (kernels/cuda/tile_product.h).
  std::int64_t most = (rows + 4 * count - 1) / (4 * count) * 4;
  for (Backend* const device : devices) most = std::min(most, rounder_of(*device).rows_at_once(row_bytes));
  if (most > 4) most -= most % 4;
  side_by_side(devices.size(), [&](std::size_t index, const std::atomic<bool>& failed) {
    Backend& device = *devices[index];
    for (std::int64_t first = static_cast<std::int64_t>(index) * most; first < rows && !failed;
         first += count * most) {
      DeviceRows batch(linear, problem, first, std::min(most, rows - first), linear.input.on_devices[index],
                       rounder_of(device), device);
      batch.run();
      batch.write(matrix);
    }
  });
}

}  // namespace llmq
