#include "quant/device_rows.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "base/turns.h"

namespace llmq {
namespace {

template <class T>
Buffer put_values(std::span<const T> values, Backend& backend) {
  if (values.empty()) return {};
  Buffer buffer = backend.allocate(values.size_bytes());
  const DType dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
  backend.upload(buffer.view(dtype, {static_cast<std::int64_t>(values.size())}), values.data());
  return buffer;
}

// Tiles side by side: the device's arrays are [places, rows of all tiles].
class DeviceRows {
 public:
  DeviceRows(const GptqLinear& linear, const RoundingProblem& problem, std::int64_t first_row, std::int64_t count,
             const PanelsOnDevice& panels, ColumnRounder& rounder, Backend& backend)
      : linear_(linear), panels_(panels), rounder_(rounder), backend_(backend), size_(problem.in_features), width_(host_tile_rows()) {
    for (std::int64_t row = first_row; row < first_row + count; row += width_)
      tiles_.push_back(std::make_unique<GptqRows>(linear, problem, row));
    rows_ = static_cast<std::int64_t>(tiles_.size()) * width_;
    groups_ = static_cast<std::int64_t>(tiles_.front()->tile().scale.size()) / width_;
    weight_ = array(size_), difference_ = array(size_), steps_ = array(size_);
    scale_ = array(groups_), zero_ = array(groups_);
  }

  void run() {
    each_tile([&](std::size_t i) { tiles_[i]->start(); });
    put(lines(weight_, 0, size_), [&](std::size_t i) { return tile(i).weight.data(); });
    put_scales(0, groups_);
    linear_.each_block([&](const ColumnBlock& block, std::int64_t end) { round(block, end); });
    get_differences(0, size_);
    get_steps(0, size_);
    if (linear_.input.is_fitted) descend();
  }

  void write(QuantizedMatrix& matrix) {
    each_tile([&](std::size_t i) { tiles_[i]->write(matrix); });
  }

 private:
  RowTile& tile(std::size_t i) { return tiles_[i]->tile(); }
  Buffer array(std::int64_t count) {
    return backend_.allocate(static_cast<std::size_t>(count * rows_) * sizeof(float));
  }
  TensorView lines(const Buffer& values, std::int64_t first, std::int64_t count) const {
    return {values.as<float>() + first * rows_, DType::kF32, {count, rows_}, values.device()};
  }

  template <class Work>
  void each_tile(const Work& work) {
    backend_.workers().parallel_for(tiles_.size(), [&](std::size_t i, int) { work(i); });
  }

  // of(i): where the lines lie in tile i.
  template <class Of>
  void put(const TensorView& to, const Of& of) {
    staging_.resize(static_cast<std::size_t>(to.rows() * rows_));
    each_tile([&](std::size_t i) {
      const float* const from = of(i);
      for (std::int64_t line = 0; line < to.rows(); ++line) std::copy_n(from + line * width_, width_, staged(line, i));
    });
    backend_.upload(to, staging_.data());
  }
  template <class Of>
  void get(const TensorView& from, const Of& of) {
    staging_.resize(static_cast<std::size_t>(from.rows() * rows_));
    backend_.download(staging_.data(), from);
    each_tile([&](std::size_t i) {
      float* const to = of(i);
      for (std::int64_t line = 0; line < from.rows(); ++line) std::copy_n(staged(line, i), width_, to + line * width_);
    });
  }
  float* staged(std::int64_t line, std::size_t i) {
    return staging_.data() + line * rows_ + static_cast<std::int64_t>(i) * width_;
  }

  void put_scales(std::int64_t first, std::int64_t count) {
    put(lines(scale_, first, count), [&](std::size_t i) { return tile(i).scale_of(first); });
    put(lines(zero_, first, count), [&](std::size_t i) { return tile(i).zero_of(first); });
  }
  void get_differences(std::int64_t first, std::int64_t count) {
    get(lines(difference_, first, count), [&](std::size_t i) { return tile(i).difference.data() + first * width_; });
  }
  void put_differences(std::int64_t first, std::int64_t count) {
    put(lines(difference_, first, count), [&](std::size_t i) { return tile(i).difference.data() + first * width_; });
  }
  void get_steps(std::int64_t first, std::int64_t count) {
    get(lines(steps_, first, count), [&](std::size_t i) { return tile(i).steps.data() + first * width_; });
  }

  TileColumns columns_of(const DevicePanels& panels, const ColumnBlock& block, const TensorView& carried) const {
    TileColumns columns;
    columns.columns = block.width;
    columns.factors = panels.values.as<float>() + block.offset + block.begin * block.width;
    columns.factor_row = block.width;
    columns.carried = carried.as<float>();
    columns.weight = weight_.as<float>() + block.begin * rows_;
    columns.steps = steps_.as<float>() + block.begin * rows_;
    columns.difference = difference_.as<float>() + block.begin * rows_;
    columns.scale = scale_.as<float>();
    columns.zero = zero_.as<float>();
    columns.group = panels.group.as<std::int32_t>() + block.begin;
    if (panels.inverse.bytes() > 0) columns.inverse = panels.inverse.as<float>() + block.begin;
    columns.top = static_cast<float>(linear_.scheme.code_count() - 1);
    return columns;
  }

  // sum = what the differences of the first `depth` places say of a block.
  void multiply(const TensorView& sum, const DevicePanels& panels, const ColumnBlock& block, std::int64_t depth) {
    const TensorView factors(panels.values.as<float>() + block.offset, DType::kF32, {depth, block.width}, panels.values.device());
    rounder_.tile_product(sum, factors, lines(difference_, 0, depth));
  }

  void round(const ColumnBlock& block, std::int64_t end) {
    const DevicePanels& upper = panels_.upper;
    const Buffer sums = array(block.width);
    const TensorView carried = lines(sums, 0, block.width);
    multiply(carried, upper, block, block.begin);
    if (end > 0) choose_scales(block, end, carried);
    rounder_.tile_round(columns_of(upper, block, carried), rows_);
  }

  // As GptqRows::choose_scales().
  void choose_scales(const ColumnBlock& first, std::int64_t end, const TensorView& carried) {
    const DevicePanels& upper = panels_.upper;
    get(carried, [&](std::size_t i) {
      tiles_[i]->carried().resize(static_cast<std::size_t>(first.width * width_));
      return tiles_[i]->carried().data();
    });
    if (first.begin > 0) {
      for (const ColumnBlock& block : linear_.blocks_until(first, end)) {
        const Buffer sums = array(block.width);
        const TensorView solved = lines(sums, 0, block.width);
        if (block.begin == first.begin)
          backend_.upload(solved, staging_.data());  // what was just read of `carried`, which is still to be rounded with
        else
          multiply(solved, upper, block, block.begin);
        rounder_.tile_solve(columns_of(upper, block, solved), rows_);
      }
      get_differences(first.begin, end - first.begin);
    }
    each_tile([&](std::size_t i) { tiles_[i]->fit_scales(first, end); });
    put_scales(linear_.input.order.group[static_cast<std::size_t>(first.begin)], 1);
  }

  void descend() {
    const DescentProblem& problem = linear_.input.descent;
    each_tile([&](std::size_t i) { tiles_[i]->change_order(); });
    put_differences(0, size_);
    std::vector<GroupDescent> descents;
    for (std::size_t i = 0; i < tiles_.size(); ++i) descents.emplace_back(problem, linear_.scheme, tile(i));
    problem.each_group([&](std::int64_t begin, std::int64_t end) { visit(descents, begin, end); });
  }

  // As GroupDescent::visit().
  void visit(std::vector<GroupDescent>& descents, std::int64_t begin, std::int64_t end) {
    const DescentProblem& problem = linear_.input.descent;
    const DevicePanels& square = panels_.square;
    const std::int64_t count = end - begin;
    const Buffer sums = array(count);
    const auto slopes = [&](const ColumnBlock& block) {
      const TensorView y = lines(sums, block.begin - begin, block.width);
      multiply(y, square, block, block.rows);
      return y;
    };
    for (const ColumnBlock& block : problem.blocks_of(begin, end)) slopes(block);
    std::vector<float*> y(descents.size());
    get(lines(sums, 0, count), [&](std::size_t i) { return y[i] = descents[i].enter(begin, end); });
    each_tile([&](std::size_t i) { descents[i].refit(); });
    put_differences(begin, count);
    if (problem.sweeps == 0) return;
    put(lines(sums, 0, count), [&](std::size_t i) { return y[i]; });
    put(lines(weight_, begin, count), [&](std::size_t i) { return tile(i).weight.data() + begin * width_; });
    put(lines(steps_, begin, count), [&](std::size_t i) { return tile(i).steps.data() + begin * width_; });
    put_scales(problem.order->group[static_cast<std::size_t>(begin)], 1);
    for (const ColumnBlock& block : problem.blocks_of(begin, end)) {
      const TensorView carried = block.begin > begin ? slopes(block) : lines(sums, 0, block.width);
      rounder_.tile_descend(columns_of(square, block, carried), rows_);
    }
    get_differences(begin, count);
    get_steps(begin, count);
  }

  const GptqLinear& linear_;
  const PanelsOnDevice& panels_;
  ColumnRounder& rounder_;
  Backend& backend_;
  std::int64_t size_, width_, rows_ = 0, groups_ = 0;  // width_: rows of a tile
  std::vector<std::unique_ptr<GptqRows>> tiles_;
  Buffer weight_, difference_, steps_;  // [places, rows]
  Buffer scale_, zero_;                 // [groups, rows]
  std::vector<float> staging_;
};

}  // namespace

DevicePanels put_panels(const ColumnPanels& panels, const ColumnOrder& order, std::span<const float> inverse, Backend& backend) {
  return {put_values(panels.values(), backend), put_values(std::span<const std::int32_t>(order.group), backend), put_values(inverse, backend)};
}

void round_on_devices(const GptqLinear& linear, const RoundingProblem& problem, QuantizedMatrix& matrix, Backend& backend) {
  constexpr std::int64_t kArrays = 4;  // of K values for each row, with what a group takes
  std::vector<Backend*> devices = {&backend};
  for (const std::shared_ptr<Backend>& further : problem.further_devices) devices.push_back(further.get());
  const auto count = static_cast<std::int64_t>(devices.size());
  const std::int64_t row_bytes = kArrays * problem.in_features * std::int64_t{sizeof(float)}, tile = host_tile_rows(),
                     tiles = (problem.out_features + tile - 1) / tile, share = (tiles + count - 1) / count;
  std::int64_t most = share;  // of tiles in a batch
  for (Backend* const device : devices)
    most = std::min(most, std::max<std::int64_t>(1, dynamic_cast<ColumnRounder&>(*device).rows_at_once(row_bytes) / tile));
  Turns turns;  // nobody waits: batches are of different rows
  side_by_side(devices.size(), turns, [&](std::size_t own) {
    Backend& device = *devices[own];
    for (std::int64_t batch = static_cast<std::int64_t>(own); batch * most < tiles; batch += count) {
      const std::int64_t first = batch * most * tile;
      DeviceRows rows(linear, problem, first, std::min(most * tile, problem.out_features - first), linear.input.on_devices[own],
                      dynamic_cast<ColumnRounder&>(device), device);
      rows.run();
      rows.write(matrix);
    }
  });
}

}  // namespace llmq
