// FP8 with numbers that multiply it, as quantization_config says: "NAME.weight" is E4M3 [rows, columns].
//
//   fp8, weight_block_size   "NAME.weight_scale_inv": a number for each block (DeepSeek V3, others since)
//   fp8 without it           the same name or "NAME.weight_scale": one number (Mistral's releases, AutoFP8's)
//   fbgemm_fp8               "NAME.weight_scale" [rows, 1]: a number for each row (Llama 3.1 405B's)
//
// All of them multiply, those that are called inverse, too. They are F64, F32, F16 or BF16, or powers of two:
// F8_E8M0, or U8 of the same bytes where scale_fmt is ue8m0. One number is that of a block as large as the
// matrix, and one for each row that of a block as long as the row.
//
// The two are joined where a checkpoint is opened, so that everybody who reads, copies, counts or writes a
// tensor by its name sees a matrix of numbers; written anew it is BF16. A scale for inputs beside such a
// weight is passed over with a warning, since inputs are not rounded to FP8 here. No value is looked at until
// it is read: there a scale that is not finite or is below 0 is refused (0 is that of zeros). Sources:
// Transformers 5.23 (integrations/finegrained_fp8.py, integrations/fbgemm_fp8.py).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "io/checkpoint_reader.h"
#include "io/codes/refuse_scale.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

constexpr std::string_view kOfWeights = ".weight", kInverse = "_scale_inv", kScale = "_scale";
constexpr std::array<std::string_view, 3> kOfInputs = {".activation_scale", ".input_scale",
                                                       ".input_scale_ub"};

struct Float8Form {
  std::vector<std::string_view> scales;  // what stands behind a weight's name; none: no such checkpoint
  std::int64_t rows = 0, columns = 0;    // of a block; 0: all of the matrix's
  bool bytes_are_exponents = false;
  std::string text;  // what a weight of it has beside it
};

bool is_text(const Json* value, const char* text) { return value != nullptr && *value == Json(text); }

// What model/packed/quantization_config.h refuses where it is something else.
Float8Form float8_form_of(const Json& config) {
  const Json* const said = config.find("quantization_config");
  if (said == nullptr || !said->is_object()) return {};
  const Json* const method = said->find("quant_method");
  if (is_text(method, "fbgemm_fp8"))
    return {{kScale}, 1, 0, false, "fbgemm_fp8 has E4M3 [rows, columns] and a number for each row"};
  if (!is_text(method, "fp8")) return {};
  const bool exponents = is_text(said->find("scale_fmt"), "ue8m0");
  const Json* const size = said->find("weight_block_size");
  if (size == nullptr || size->is_null())
    return {{kInverse, kScale},
            0,
            0,
            exponents,
            "FP8 without weight_block_size has E4M3 [rows, columns] and one number"};
  if (!size->is_array() || size->items().size() != 2) return {};
  std::array<std::int64_t, 2> sides{};
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& side = size->items()[i];
    if (!side.is_integer() || side.as_integer() < 1 ||
        side.as_integer() > StoredTensor::BlockScales::kMostOfABlock)
      return {};
    sides[i] = side.as_integer();
  }
  return {{kInverse},
          sides[0],
          sides[1],
          exponents,
          fmt::format("FP8 in blocks of {} x {} has E4M3 [rows, columns] and a number for each block",
                      sides[0], sides[1])};
}

std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

// The weight, or the stack of them, that a tensor of this name scales, or nothing: "k_scale" is of neither.
std::string scaled_weight(const Float8Form& form, const std::string& name) {
  for (const std::string_view scales : form.scales) {
    if (!name.ends_with(scales)) continue;
    std::string weight = name.substr(0, name.size() - scales.size());
    if (scales == kInverse || weight.ends_with(kOfWeights) || weight.ends_with("_proj")) return weight;
  }
  return {};
}

// With the block that each of them is of, as [blocks down, blocks across]; nothing where they are no such.
std::optional<StoredTensor::BlockScales> scales_of(const Float8Form& form, const TensorView& weight,
                                                   const StoredTensor& scales) {
  if (weight.dtype != DType::kF8E4M3 || weight.shape.rank() != 2 || weight.shape.elements() == 0)
    return std::nullopt;
  const TensorView& own = scales.view;
  const bool numbers = (is_float(own.dtype) && !is_block_type(own.dtype)) || own.dtype == DType::kF8E8M0 ||
                       (own.dtype == DType::kU8 && form.bytes_are_exponents);
  const std::int64_t rows = form.rows > 0 ? form.rows : weight.shape[0],
                     columns = form.columns > 0 ? form.columns : weight.shape[1];
  const Shape grid{blocks_of(weight.shape[0], rows), blocks_of(weight.shape[1], columns)};
  const bool flat = form.columns == 0 && own.shape.rank() < 2 &&
                    own.shape.elements() == grid.elements();  // [] and [1], too
  if (!numbers || !(flat || own.shape == grid)) return std::nullopt;
  return StoredTensor::BlockScales{TensorView(own.pointer, own.dtype, grid), scales.shard, scales.offset,
                                   rows, columns};
}

// A number for each block, all of them finite and none below 0: some writers give a block of zeros a scale
// of 0.
std::vector<float> float8_scales(const StoredTensor& tensor, const std::string& file) {
  const StoredTensor::BlockScales& blocks = *tensor.block_scales;
  std::vector<float> scales(static_cast<std::size_t>(blocks.scales.shape.elements()));
  if (is_float(blocks.scales.dtype)) {
    to_float32(blocks.scales, scales);
  } else {
    const auto* const bytes = blocks.scales.as<const std::uint8_t>();
    std::transform(bytes, bytes + scales.size(), scales.begin(), [](std::uint8_t byte) {
      return byte == kMxfp4NoNumber ? std::numeric_limits<float>::quiet_NaN() : mxfp4_scale(byte);
    });
  }
  const auto wrong = std::find_if(scales.begin(), scales.end(),
                                  [](float scale) { return scale < 0 || !std::isfinite(scale); });
  if (wrong == scales.end()) return scales;
  const std::int64_t at = wrong - scales.begin(), across = blocks.scales.cols(),
                     row = at / across * blocks.block_rows, column = at % across * blocks.block_columns;
  refuse_scale(*wrong,
               fmt::format("rows {} to {}, columns {} to {}", row,
                           std::min(row + blocks.block_rows, tensor.view.rows()) - 1, column,
                           std::min(column + blocks.block_columns, tensor.view.cols()) - 1),
               "those of FP8 are finite and not below 0", file, tensor.name);
}

}  // namespace

void CheckpointReader::join_float8_blocks() {
  const Float8Form form = float8_form_of(state_->config);
  if (form.scales.empty()) return;
  std::map<std::string, StoredTensor> scales;  // by the name of what they scale
  std::vector<StoredTensor> others;
  const auto bad = [&](const StoredTensor& tensor, const std::string& name, std::string message,
                       std::string hint = {}) {
    fail(ErrorKind::kBadInput, {std::move(message), shard(tensor).string(), name, std::move(hint)});
  };
  for (StoredTensor& tensor : state_->tensors) {
    const std::string weight = scaled_weight(form, tensor.name);
    if (weight.empty())
      others.push_back(std::move(tensor));
    else if (const auto found = scales.find(weight); found != scales.end())
      bad(tensor, weight, fmt::format("has scales twice: {} and {}", found->second.name, tensor.name));
    else
      scales.emplace(weight, std::move(tensor));
  }
  state_->tensors = std::move(others);
  std::set<std::string> modules;
  for (StoredTensor& tensor : state_->tensors) {
    const auto found = scales.find(tensor.name);
    if (found == scales.end() && tensor.view.dtype == DType::kF8E4M3) {
      std::vector<std::string> names;
      for (const std::string_view end : form.scales) names.push_back(fmt::format("{}{}", tensor.name, end));
      bad(tensor, tensor.name,
          fmt::format("is FP8, and its scales are missing: no {}", fmt::join(names, " and no ")),
          "is the download complete?");
    }
    if (found == scales.end()) continue;
    tensor.block_scales = scales_of(form, tensor.view, found->second);
    if (!tensor.block_scales) {
      const TensorView &view = tensor.view, &own = found->second.view;
      bad(tensor, tensor.name,
          fmt::format("is {} of shape {} with scales {} of shape {}: {}", dtype_row(view.dtype).name,
                      view.shape.text(), dtype_row(own.dtype).name, own.shape.text(), form.text));
    }
    if (tensor.name.ends_with(kOfWeights))
      modules.insert(tensor.name.substr(0, tensor.name.size() - kOfWeights.size()));
    scales.erase(found);
  }
  if (!scales.empty()) {
    const auto& [name, left] = *scales.begin();
    bad(left, name, fmt::format("has scales in {}, and is not there", left.name),
        "is the download complete?");
  }
  pass_over_scales_of_inputs(modules);
}

// Of one number each, beside a weight of FP8.
void CheckpointReader::pass_over_scales_of_inputs(const std::set<std::string>& modules) {
  std::string first;
  const auto passed = std::erase_if(state_->tensors, [&](const StoredTensor& tensor) {
    const bool one = std::any_of(kOfInputs.begin(), kOfInputs.end(), [&](std::string_view end) {
      return tensor.name.ends_with(end) &&
             modules.contains(tensor.name.substr(0, tensor.name.size() - end.size()));
    });
    if (!one || tensor.view.shape.elements() != 1) return false;
    if (first.empty() || tensor.name < first) first = tensor.name;
    return true;
  });
  if (passed > 0)
    Log::get().warn(
        fmt::format("{}: {} scales of inputs are passed over ({}): inputs meet FP8 weights as they "
                    "are, and are not rounded",
                    state_->path.string(), passed, first));
}

void Checkpoint::read_float8_rows(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const {
  const StoredTensor::BlockScales& blocks = *tensor.block_scales;
  const std::int64_t rows = tensor.view.rows(), columns = tensor.view.cols(), across = blocks.scales.cols();
  const Lease codes = hold(tensor),
              numbers = state_->mapping(blocks).lease(blocks.offset, blocks.scales.bytes());
  const std::vector<float> scales =
      float8_scales(tensor, state_->shards[static_cast<std::size_t>(blocks.shard)].string());
  pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t row, int) {
    const auto own = static_cast<std::int64_t>(row);
    const std::span<float> values =
        into.subspan(row * static_cast<std::size_t>(columns), static_cast<std::size_t>(columns));
    to_float32(tensor.view.row_slice(own, 1), values);
    const float* const of_row = scales.data() + own / blocks.block_rows * across;
    for (std::int64_t c = 0; c < columns; ++c)
      values[static_cast<std::size_t>(c)] *= of_row[c / blocks.block_columns];
  });
}

}  // namespace llmq
