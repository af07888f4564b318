#include "quant/rotation/value_rotation.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "export/changed_tensor.h"
#include "model/tensor_reading.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

// Rows of which values are made, in a linear that may have others: of KV head h those from first + h * step.
struct ValueRows {
  std::int64_t first = 0, step = 0, heads = 0, head_dim = 0;
};

ValueRows value_rows(const BlockSpec& block, const AttentionSpec& attention) {
  const std::int64_t part = block.at(attention.value.linear).first_row(attention.value.part);
  if (attention.grouped)
    return {part + (attention.queries_of_group() + 1) * std::int64_t{attention.head_dim},
            attention.group_rows(), attention.kv_heads, attention.head_dim};
  return {part, attention.head_dim, attention.kv_heads, attention.head_dim};
}

// Refuses what a rotation would spread, rounds once, and refuses what that makes infinite.
class RotatedTensor : public ChangedTensor {
 public:
  using ChangedTensor::ChangedTensor;

  void read(std::span<float> into, ThreadPool& pool) const final {
    beneath().read_float32(tensor(), into, pool);
    const Shape& shape = tensor().view.shape;
    const std::int64_t columns = shape.rank() == 1 ? 1 : shape.back();
    const auto each_row = [&](const auto& see) {
      pool.parallel_for(static_cast<std::size_t>(shape[0]), [&](std::size_t row, int) {
        see(into.subspan(row * static_cast<std::size_t>(columns), static_cast<std::size_t>(columns)));
      });
    };
    std::atomic<bool> finite = true;
    each_row([&](std::span<const float> numbers) {
      if (!all_finite(numbers)) finite = false;
    });
    if (!finite)  // the first is named, whatever thread met one
      bad_tensor(beneath(), tensor().name,
                 first_nonfinite(into, columns) + ", and a rotation would spread it over a head",
                 "repair the checkpoint, or leave rotate out");
    rotate(into, columns, pool);
    std::atomic<bool> overflows = false;
    each_row([&](std::span<float> numbers) {
      for (float& number : numbers) {
        if (!std::isfinite(number) || storing_overflows(number, dtype())) overflows = true;
        number = stored_float(number, dtype());
      }
    });
    if (overflows)
      fail(ErrorKind::kUnsupported,
           {fmt::format("leaves the range of {} when its heads are rotated", dtype_row(dtype()).name),
            beneath().path().string(), tensor().name,
            dtype() == DType::kF16 ? "leave rotate out, or convert the model to bf16" : "leave rotate out"});
  }

 private:
  virtual void rotate(std::span<float> numbers, std::int64_t columns, ThreadPool& pool) const = 0;
};

// V, or its bias, which has one column.
class RotatedRows final : public RotatedTensor {
 public:
  RotatedRows(Checkpoint beneath, const StoredTensor& tensor, const std::string& module,
              const ValueRows& rows)
      : RotatedTensor(std::move(beneath), tensor, module), rows_(rows) {}

 private:
  static constexpr std::int64_t kSlice = 256;  // columns that stay in a cache with all rows of a head

  void rotate(std::span<float> numbers, std::int64_t columns, ThreadPool& pool) const override {
    const std::int64_t n = hadamard_size(rows_.head_dim), slices = (columns + kSlice - 1) / kSlice,
                       each = rows_.head_dim / n * slices;
    pool.parallel_for(static_cast<std::size_t>(rows_.heads * each), [&](std::size_t item, int) {
      const std::int64_t head = static_cast<std::int64_t>(item) / each,
                         within = static_cast<std::int64_t>(item) % each,
                         row = rows_.first + head * rows_.step + within / slices * n,
                         column = within % slices * kSlice;
      rotate_by_hadamard(numbers.subspan(static_cast<std::size_t>(row * columns + column)), n, columns,
                         std::min(kSlice, columns - column));
    });
  }

  ValueRows rows_;
};

// O: each row has heads of head_dim channels, one behind another.
class RotatedColumns final : public RotatedTensor {
 public:
  RotatedColumns(Checkpoint beneath, const StoredTensor& tensor, const std::string& module,
                 std::int64_t head_dim)
      : RotatedTensor(std::move(beneath), tensor, module), n_(hadamard_size(head_dim)) {}

 private:
  void rotate(std::span<float> numbers, std::int64_t columns, ThreadPool& pool) const override {
    const auto width = static_cast<std::size_t>(columns), n = static_cast<std::size_t>(n_);
    pool.parallel_for(numbers.size() / width, [&](std::size_t row, int) {
      for (std::size_t first = row * width; first < (row + 1) * width; first += n)
        rotate_by_hadamard(numbers.subspan(first), n_, 1, 1);
    });
  }

  std::int64_t n_;
};

// What no rotation of channels passes; empty: nothing is there.
std::string between(const BlockSpec& block, const AttentionSpec& attention) {
  if (attention.gated) return "a gate multiplies each channel of what attention gives";
  if (!attention.shared_pages && attention.value_is_key()) return "keys and values are made by one linear";
  const NormSpec* const norm = attention.value_norm ? &block.at(*attention.value_norm) : nullptr;
  if (norm != nullptr && (norm->gain.exists() || norm->kind != NormSpec::Kind::kRms))
    return "a norm tells the channels of values apart";
  if (hadamard_size(attention.head_dim) == 1)
    return fmt::format("heads of {} channels have no Hadamard matrix", attention.head_dim);
  return "";
}

struct RotatedLinears {
  const LinearSpec* value = nullptr;   // null: the block reads the pages of an earlier one
  const LinearSpec* output = nullptr;  // null: it has no attention
};

RotatedLinears rotated_linears(const BlockSpec& block, const std::string& source) {
  const AttentionSpec* const attention = block.attention();
  const std::string reason = attention != nullptr                  ? between(block, *attention)
                             : block.latent_attention() != nullptr ? "its values are made of latents"
                                                                   : "";
  if (!reason.empty())
    fail(ErrorKind::kUnsupported,
         {fmt::format("{}: {}, so its values cannot be rotated", block.prefix, reason), source,
          "rotate.value", "leave it out"});
  if (attention == nullptr) return {};
  return {attention->shared_pages ? nullptr : &block.at(attention->value.linear),
          &block.at(attention->output)};
}

}  // namespace

void rotate_by_hadamard(std::span<float> numbers, std::int64_t n, std::int64_t stride, std::int64_t width) {
  float* const first = numbers.data();
  for (std::int64_t half = 1; half < n; half *= 2) {
    // Numbers that lie side by side are one run of them.
    const std::int64_t runs = stride == width ? 1 : half, run = stride == width ? half * width : width;
    for (std::int64_t pair = 0; pair < n; pair += 2 * half)
      for (std::int64_t i = pair; i < pair + runs; ++i) {
        float* const one = first + i * stride;
        float* const other = one + half * stride;
        for (std::int64_t w = 0; w < run; ++w) {
          const float sum = one[w] + other[w];
          other[w] = one[w] - other[w];
          one[w] = sum;
        }
      }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(n));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t w = 0; w < width; ++w) first[i * stride + w] *= scale;
}

std::int64_t hadamard_size(std::int64_t head_dim) { return head_dim & -head_dim; }

Checkpoint with_rotated_values(const Checkpoint& checkpoint, const ModelSpec& spec,
                               const std::string& source) {
  ChangedTensors changed;
  for (const BlockSpec& block : spec.blocks) {
    const RotatedLinears rotated = rotated_linears(block, source);
    if (rotated.output == nullptr) continue;
    const AttentionSpec& attention = *block.attention();
    const auto change = [&](const TensorPlace& place, const auto& make) {
      if (place.exists()) changed[place.tensor] = make(checkpoint.at(place.tensor));
    };
    change(rotated.output->weight, [&](const StoredTensor& tensor) {
      return std::make_shared<const RotatedColumns>(checkpoint, tensor, rotated.output->module,
                                                    attention.head_dim);
    });
    if (rotated.value == nullptr) continue;
    const auto rotate_rows = [&](const StoredTensor& tensor) {
      return std::make_shared<const RotatedRows>(checkpoint, tensor, rotated.value->module,
                                                 value_rows(block, attention));
    };
    change(rotated.value->weight, rotate_rows);
    change(rotated.value->bias, rotate_rows);
  }
  return with_changed(checkpoint, changed);
}

std::set<std::string> rotated_modules(const ModelSpec& spec, const std::string& source) {
  std::set<std::string> modules;
  for (const BlockSpec& block : spec.blocks) {
    const RotatedLinears rotated = rotated_linears(block, source);
    for (const LinearSpec* linear : {rotated.value, rotated.output})
      if (linear != nullptr) modules.insert(linear->module);
  }
  return modules;
}

std::vector<RotatedHeads> rotated_heads(const Recipe& recipe, const ModelSpec& spec,
                                        std::span<const PlannedModule> modules) {
  if (!recipe.rotates_values) return {};
  std::set<std::string_view> quantized;
  for (const PlannedModule& module : modules) quantized.insert(module.module);
  std::map<std::int64_t, RotatedHeads> by_size;
  for (const BlockSpec& block : spec.blocks) {
    const RotatedLinears rotated = rotated_linears(block, recipe.source);
    for (const LinearSpec* linear : {rotated.value, rotated.output})
      if (linear != nullptr && quantized.count(linear->module) == 0)
        fail(ErrorKind::kUsage,
             {fmt::format("{} would be rotated, and it stays dense", linear->module), recipe.source,
              "rotate.value", "quantize the linears that make and read values, or leave it out"});
    if (rotated.output == nullptr) continue;
    const AttentionSpec& attention = *block.attention();
    RotatedHeads& heads = by_size[hadamard_size(attention.head_dim)];
    if (rotated.value != nullptr) {
      const ValueRows rows = value_rows(block, attention);
      if (rotated.value->out_features != rows.heads * rows.head_dim) continue;
      heads.values.push_back(rotated.value->module);
    }
    heads.outputs.push_back(rotated.output->module);
  }
  std::vector<RotatedHeads> all;
  for (auto& [size, heads] : by_size) {
    if (heads.values.empty()) continue;
    heads.size = size;
    all.push_back(std::move(heads));
  }
  return all;
}

}  // namespace llmq
