// FP8 in blocks, as DeepSeek V3 is published (and others since): "NAME.weight" is E4M3 [rows, columns], and
// "NAME.weight_scale_inv" a number for each block of weight_block_size, by which it is multiplied.
//
// The two are joined where a checkpoint is opened, so that everybody who reads, copies, counts or writes a
// tensor by its name sees a matrix of numbers; written anew it is BF16. No value is looked at here.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "io/checkpoint_reader.h"

namespace llmq {
namespace {

constexpr const char* kScales = "_scale_inv";
constexpr std::int64_t kMostOfABlock = 1 << 20;

struct BlockSize {
  std::int64_t rows = 0, columns = 0;  // 0: the checkpoint has none
};

// What model/packed/quantization_config.h refuses where it is something else.
BlockSize block_size_of(const Json& config) {
  const Json* const quantization = config.find("quantization_config");
  if (quantization == nullptr || !quantization->is_object()) return {};
  const Json *const method = quantization->find("quant_method"), *const size =
                                                                     quantization->find("weight_block_size");
  if (method == nullptr || !(*method == Json("fp8")) || size == nullptr || !size->is_array()) return {};
  const Json::Array& sides = size->items();
  const bool whole =
      sides.size() == 2 && std::all_of(sides.begin(), sides.end(), [](const Json& side) {
        return side.is_integer() && side.as_integer() >= 1 && side.as_integer() <= kMostOfABlock;
      });
  return whole ? BlockSize{sides[0].as_integer(), sides[1].as_integer()} : BlockSize{};
}

std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

}  // namespace

void CheckpointReader::join_float8_blocks() {
  const BlockSize block = block_size_of(state_->config);
  if (block.rows == 0) return;
  std::map<std::string, StoredTensor> scales;  // by the name of what they scale
  std::vector<StoredTensor> others;
  for (StoredTensor& tensor : state_->tensors)
    if (tensor.name.ends_with(kScales))
      scales.emplace(tensor.name.substr(0, tensor.name.rfind(kScales)), std::move(tensor));
    else
      others.push_back(std::move(tensor));
  state_->tensors = std::move(others);
  for (StoredTensor& tensor : state_->tensors) {
    const auto found = scales.find(tensor.name);
    if (found == scales.end() && tensor.view.dtype == DType::kF8E4M3)
      fail(ErrorKind::kBadInput,
           {fmt::format("is FP8, and its scales are missing: no {}{}", tensor.name, kScales),
            shard(tensor).string(), tensor.name, "is the download complete?"});
    if (found == scales.end()) continue;
    const TensorView &view = tensor.view, &own = found->second.view;
    const bool matrix = view.dtype == DType::kF8E4M3 && view.shape.rank() == 2 && view.shape.elements() > 0;
    if (!matrix || !is_float(own.dtype) || is_block_type(own.dtype) ||
        !(own.shape == Shape{blocks_of(view.shape[0], block.rows), blocks_of(view.shape[1], block.columns)}))
      fail(ErrorKind::kBadInput,
           {fmt::format("is {} of shape {} with scales {} of shape {}: FP8 in blocks of {} x {} has E4M3 "
                        "[rows, columns] and a number for each block",
                        dtype_row(view.dtype).name, view.shape.text(), dtype_row(own.dtype).name,
                        own.shape.text(), block.rows, block.columns),
            shard(tensor).string(),
            tensor.name,
            {}});
    tensor.block_scales = {own, found->second.shard, found->second.offset, block.rows, block.columns};
    scales.erase(found);
  }
  if (scales.empty()) return;
  const auto& [name, left] = *scales.begin();
  fail(ErrorKind::kBadInput, {fmt::format("has scales in {}{}, and is not there", name, kScales),
                              shard(left).string(), name, "is the download complete?"});
}

void Checkpoint::read_float8_rows(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const {
  const StoredTensor::BlockScales& blocks = *tensor.block_scales;
  const std::int64_t rows = tensor.view.rows(), columns = tensor.view.cols(), across = blocks.scales.cols();
  const Lease codes = hold(tensor),
              numbers = state_->mapping(blocks).lease(blocks.offset, blocks.scales.bytes());
  std::vector<float> scales(static_cast<std::size_t>(blocks.scales.shape.elements()));
  to_float32(blocks.scales, scales);
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
