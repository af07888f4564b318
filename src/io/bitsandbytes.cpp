// Weights as bitsandbytes stores them: NF4 and FP4 (load_in_4bit), and LLM.int8 (load_in_8bit).
//
//   4 bits  value i = map[code i] * absmax[i / blocksize], rounded to the type that the weight had; i counts
//           through all rows, and the first code of a byte is its high half. "NAME.weight" U8 [codes / 2, 1],
//           beside it "NAME.weight.absmax", ".quant_map" F32 [16] and ".quant_state.bitsandbytes__nf4", U8,
//           whose bytes are JSON: quant_type, blocksize, dtype, shape
//           nested: absmax[j] = nested_map[U8 code j] * nested_absmax[j / nested_blocksize] + nested_offset
//   8 bits  value = (code * SCB[row]) * (1 / 127), in FP32: "NAME.weight" I8 [rows, columns], "NAME.SCB"
//
// They are joined where a checkpoint is opened, so that everybody who reads, copies, counts or writes a
// tensor by its name sees a matrix of numbers. Products are of FP32 numbers, in this order. Source:
// bitsandbytes 0.50, functional.py (QuantState) and backends/default/ops.py.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "io/checkpoint_reader.h"
#include "io/codes/refuse_scale.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

constexpr const char* kState = ".quant_state.bitsandbytes__";
constexpr const char* kRowScales = ".SCB";
constexpr std::size_t kMostStateBytes = 4096;
constexpr float kOver127 = 7.874015718698502e-3f;
constexpr std::array<std::int64_t, 8> kBlockSizes = {32, 64, 128, 256, 512, 1024, 2048, 4096};

bool is_of_bitsandbytes(const Json& config) {
  const Json* const quantization = config.find("quantization_config");
  if (quantization == nullptr || !quantization->is_object()) return false;
  const Json* const method = quantization->find("quant_method");
  return method != nullptr && *method == Json("bitsandbytes");
}

std::int64_t over(std::int64_t count, std::int64_t block) { return count / block + (count % block != 0); }

}  // namespace

// Takes what stands beside weights out of the list of tensors.
struct CheckpointReader::BesideWeights {
  std::map<std::string, StoredTensor> by_name;

  const StoredTensor* find(const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : &found->second;
  }
};

void CheckpointReader::bad_codes(const StoredTensor& tensor, std::string message) const {
  fail(ErrorKind::kBadInput,
       {std::move(message), shard(tensor).string(), tensor.name, "was it written by bitsandbytes?"});
}

// Of `count` numbers or codes of one of these types.
StoredTensor::Part CheckpointReader::part_beside(const BesideWeights& beside, const StoredTensor& weight,
                                                 const std::string& name, std::int64_t count,
                                                 std::initializer_list<DType> types) const {
  const StoredTensor* const tensor = beside.find(name);
  if (tensor == nullptr) bad_codes(weight, fmt::format("has no {} beside it", name));
  const TensorView& view = tensor->view;
  if (std::find(types.begin(), types.end(), view.dtype) == types.end() || view.shape.elements() != count)
    bad_codes(weight, fmt::format("{} is {} of shape {}, and {} numbers are due", name,
                                  dtype_row(view.dtype).name, view.shape.text(), count));
  TensorView flat(view.pointer, view.dtype, Shape{count});
  return {flat, tensor->shard, tensor->offset};
}

// The JSON, from which the matrix has its shape.
StoredTensor CheckpointReader::matrix_of_four_bits(const StoredTensor& weight, const StoredTensor& state,
                                                   const BesideWeights& beside) const {
  const auto size = static_cast<std::size_t>(state.view.shape.elements());
  if (state.view.dtype != DType::kU8 || size > kMostStateBytes)
    bad_codes(state, "is no JSON text in bytes of U8");
  const Lease lease = state_->mapping(state).lease(state.offset, size);
  const Json said = Json::parse(std::string(state.view.as<const char>(), size), shard(state).string());
  const auto text = [&](const char* key) {
    const Json* const value = said.is_object() ? said.find(key) : nullptr;
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  };
  const auto number = [&](const char* key) {
    const Json* const value = said.is_object() ? said.find(key) : nullptr;
    if (value == nullptr || !value->is_integer())
      bad_codes(state, fmt::format("says no whole number as {}", key));
    return value->as_integer();
  };
  auto codes = std::make_shared<StoredTensor::BitsAndBytes>();
  const std::string type = text("dtype"), kind = text("quant_type");
  if (type != "bfloat16" && type != "float16" && type != "float32")
    bad_codes(state, fmt::format("dtype is \"{}\", and not bfloat16, float16 or float32", type));
  if (!state.name.ends_with(kState + kind)) bad_codes(state, fmt::format("quant_type is \"{}\"", kind));
  codes->dtype = type == "bfloat16" ? DType::kBF16 : type == "float16" ? DType::kF16 : DType::kF32;
  codes->block = number("blocksize");
  if (std::find(kBlockSizes.begin(), kBlockSizes.end(), codes->block) == kBlockSizes.end())
    bad_codes(state, fmt::format("blocksize is {}, and not a power of two from 32 to 4096", codes->block));
  const Json* const shape = said.find("shape");
  const bool pair = shape != nullptr && shape->is_array() && shape->items().size() == 2 &&
                    std::all_of(shape->items().begin(), shape->items().end(), [](const Json& side) {
                      return side.is_integer() && side.as_integer() > 0 && side.as_integer() < (1ll << 31);
                    });
  if (!pair) bad_codes(state, "shape is no pair of sizes");
  const std::int64_t rows = shape->items()[0].as_integer(), columns = shape->items()[1].as_integer();
  if (weight.view.dtype != DType::kU8 || columns % 2 != 0 ||
      weight.view.shape.elements() != rows * columns / 2)
    bad_codes(weight,
              fmt::format("is {} of shape {}, and not the pairs of codes of [{}, {}]",
                          dtype_row(weight.view.dtype).name, weight.view.shape.text(), rows, columns));
  const std::int64_t scales = over(rows * columns, codes->block);
  const bool nested = beside.find(weight.name + ".nested_absmax") != nullptr;
  codes->scales =
      part_beside(beside, weight, weight.name + ".absmax", scales, {nested ? DType::kU8 : DType::kF32});
  const auto read_map = [&](const char* name, std::span<float> into) {
    const StoredTensor::Part map =
        part_beside(beside, weight, weight.name + name, std::ssize(into), {DType::kF32});
    const Lease held = state_->mapping(map).lease(map.offset, map.view.bytes());
    to_float32(map.view, into);
  };
  read_map(".quant_map", codes->map);
  if (nested) {
    codes->nested_block = number("nested_blocksize");
    const Json* const offset = said.find("nested_offset");
    if (codes->nested_block < 1 || offset == nullptr || !offset->is_number() ||
        std::abs(offset->as_double()) > std::numeric_limits<float>::max() ||
        text("nested_dtype") != "float32")
      bad_codes(state, "nested_blocksize, nested_offset or nested_dtype is missing or is no such thing");
    codes->offset = static_cast<float>(offset->as_double());
    codes->nested = part_beside(beside, weight, weight.name + ".nested_absmax",
                                over(scales, codes->nested_block), {DType::kF32});
    read_map(".nested_quant_map", codes->nested_map);
  }
  StoredTensor matrix = weight;
  matrix.view = TensorView(weight.view.pointer, DType::kF4, Shape{rows, columns});
  matrix.bits_and_bytes = std::move(codes);
  return matrix;
}

StoredTensor CheckpointReader::matrix_of_bytes(const StoredTensor& weight,
                                               const BesideWeights& beside) const {
  const TensorView& view = weight.view;
  if (view.dtype != DType::kI8 || view.shape.rank() != 2 || view.shape.elements() == 0)
    bad_codes(weight, fmt::format("is {} of shape {} with scales of rows: LLM.int8 has I8 [rows, columns]",
                                  dtype_row(view.dtype).name, view.shape.text()));
  auto codes = std::make_shared<StoredTensor::BitsAndBytes>();
  const std::string module = weight.name.substr(0, weight.name.rfind(".weight"));
  codes->scales = part_beside(beside, weight, module + kRowScales, view.shape[0], {DType::kF32});
  // 1 to 3 are orders of tiles, which older versions stored.
  if (const StoredTensor* const order = beside.find(weight.name + "_format")) {
    const auto refuse = [&] { bad_codes(*order, "is not 0, the order of rows, which alone is read"); };
    if (order->view.dtype != DType::kU8 || order->view.shape.elements() != 1) refuse();
    const Lease lease = state_->mapping(*order).lease(order->offset, order->view.bytes());
    if (*order->view.as<const std::uint8_t>() != 0) refuse();
  }
  StoredTensor matrix = weight;
  matrix.bits_and_bytes = std::move(codes);
  return matrix;
}

void CheckpointReader::join_bitsandbytes() {
  if (!is_of_bitsandbytes(state_->config)) return;
  BesideWeights beside;
  std::map<std::string, std::string> states;  // of weights, by their names
  const auto stands_beside = [&](const std::string& name) {
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    if (const std::size_t at = name.find(kState); at != std::string::npos) states[name.substr(0, at)] = name;
    return name.find(kState) != std::string::npos || ends(".weight.absmax") || ends(".weight.quant_map") ||
           ends(".weight.nested_absmax") || ends(".weight.nested_quant_map") || ends(kRowScales) ||
           ends(".weight_format");
  };
  std::vector<StoredTensor> weights;
  for (StoredTensor& tensor : state_->tensors) {
    if (stands_beside(tensor.name))
      beside.by_name.emplace(tensor.name, std::move(tensor));
    else
      weights.push_back(std::move(tensor));
  }
  for (StoredTensor& weight : weights) {
    if (const auto state = states.find(weight.name); state != states.end())
      weight = matrix_of_four_bits(weight, *beside.find(state->second), beside);
    else if (weight.view.dtype == DType::kI8 && weight.name.ends_with(".weight"))
      weight = matrix_of_bytes(weight, beside);
  }
  state_->tensors = std::move(weights);
}

// Of blocks, or of rows; all of them finite. A block of zeros has the scale 0, and a nested one may be
// rounded to a little less.
std::vector<float> Checkpoint::scales_of_bits_and_bytes(const StoredTensor& tensor) const {
  const StoredTensor::BitsAndBytes& codes = *tensor.bits_and_bytes;
  const auto values = [&](const StoredTensor::Part& part) {
    const Lease lease = state_->mapping(part).lease(part.offset, part.view.bytes());
    std::vector<float> numbers(static_cast<std::size_t>(part.view.shape.elements()));
    to_float32(part.view, numbers);
    return numbers;
  };
  std::vector<float> scales = values(codes.scales);
  const bool nested = codes.nested.view.pointer != nullptr;
  if (nested) {
    const std::vector<float> of_scales = values(codes.nested);
    for (std::size_t j = 0; j < scales.size(); ++j)
      scales[j] = codes.nested_map[static_cast<std::size_t>(scales[j])] *
                      of_scales[j / static_cast<std::size_t>(codes.nested_block)] +
                  codes.offset;
  }
  const auto wrong = std::find_if(scales.begin(), scales.end(), [&](float scale) {
    return !std::isfinite(scale) || (!nested && scale < 0);
  });
  if (wrong == scales.end()) return scales;
  const std::int64_t at = wrong - scales.begin(), first = at * codes.block;
  refuse_scale(*wrong,
               tensor.view.dtype == DType::kI8
                   ? fmt::format("row {} (SCB)", at)
                   : fmt::format("codes {} to {} (absmax)", first,
                                 std::min(first + codes.block, tensor.view.shape.elements()) - 1),
               fmt::format("those of bitsandbytes are finite{}", nested ? "" : " and not below 0"),
               state_->shards[static_cast<std::size_t>(codes.scales.shard)].string(), tensor.name);
}

void Checkpoint::read_bits_and_bytes(const StoredTensor& tensor, std::span<float> into,
                                     ThreadPool& pool) const {
  const StoredTensor::BitsAndBytes& codes = *tensor.bits_and_bytes;
  const std::vector<float> scales = scales_of_bits_and_bytes(tensor);
  const Lease lease = hold(tensor);
  const auto columns = static_cast<std::size_t>(tensor.view.cols());
  const auto* const bytes = tensor.view.as<const std::uint8_t>();
  pool.parallel_for(static_cast<std::size_t>(tensor.view.rows()), [&](std::size_t row, int) {
    for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
      if (tensor.view.dtype == DType::kI8) {
        into[i] = static_cast<float>(static_cast<std::int8_t>(bytes[i])) * scales[row] * kOver127;
      } else {
        const unsigned code = i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15u;
        into[i] =
            stored_float(codes.map[code] * scales[i / static_cast<std::size_t>(codes.block)], codes.dtype);
      }
    }
  });
}

}  // namespace llmq
