#include "io/codes/gguf_scales.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "io/checkpoint_reader.h"
#include "io/gguf.h"
#include "io/gguf_rows.h"
#include "tensor/ggml_grids.h"

namespace llmq {

float gguf_scale(const StoredTensor& tensor) {
  return tensor.block_scales ? *tensor.block_scales->scales.as<const float>() : 1.0f;
}

// Of a stack each matrix has its own, by where it lies in it. Names that a model has itself are no scales.
void CheckpointReader::join_gguf_scales(const std::vector<NamedGgufTensor>& named,
                                        const std::vector<GgufTensor>& tensors) {
  constexpr std::string_view kScale = ".scale", kWeight = ".weight";
  std::set<std::size_t> own;
  for (const NamedGgufTensor& one : named) own.insert(one.index);
  std::map<std::string_view, const GgufTensor*> scales;  // by the name before the suffix
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string_view name = tensors[i].name;
    if (name.ends_with(kScale) && tensors[i].dtype == DType::kF32 && own.count(i) == 0)
      scales.emplace(name.substr(0, name.size() - kScale.size()), &tensors[i]);
  }
  for (std::size_t i = 0; i < named.size() && !scales.empty(); ++i) {
    const GgufTensor& weight = tensors[named[i].index];
    const std::string_view name = weight.name;
    StoredTensor& stored = state_->tensors[i];
    if (!name.ends_with(kWeight) || stored.pieces) continue;
    const auto found = scales.find(name.substr(0, name.size() - kWeight.size()));
    if (found == scales.end()) continue;
    const GgufTensor& scale = *found->second;
    const auto count = static_cast<std::uint64_t>(scale.shape.elements());
    const std::uint64_t each = count == 0 ? 0 : weight.bytes / count;
    if (each == 0) continue;
    const std::uint64_t place = std::min(named[i].offset / each, count - 1) * sizeof(float);
    const TensorView number(static_cast<const void*>(copy_of(scale.data + place, sizeof(float))), DType::kF32,
                            Shape{1, 1});
    if (*number.as<const float>() == 1.0f) continue;
    stored.block_scales = {number, scale.part, scale.offset + place, stored.view.rows(), stored.view.cols()};
  }
}

void read_scaled_rows(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) {
  const TensorView& view = tensor.view;
  const std::int64_t rows = view.rows();
  const auto columns = static_cast<std::size_t>(view.cols());
  const std::uint64_t row_bytes = view.bytes() / static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1));
  const float scale = gguf_scale(tensor);
  pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t at, int) {
    const auto row = static_cast<std::int64_t>(at);
    const auto from = static_cast<std::uint64_t>(
        tensor.permuted_heads == 0 ? row : source_row(row, rows, tensor.permuted_heads));
    scaled_values(TensorView(static_cast<const void*>(view.as<const std::byte>() + from * row_bytes),
                             view.dtype, Shape{view.cols()}),
                  scale, into.subspan(at * columns, columns));
  });
}

}  // namespace llmq
