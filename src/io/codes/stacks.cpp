// Stacks of safetensors (io/checkpoint.h, FindSlabs): a tensor that holds the matrices of all experts becomes
// those that are stacked in it, each a view of its part. Of MXFP4 the exponents lie in a stack of their own.
//
// Nothing is read. Cost: what is known of a tensor, for each part, of which there are at most kMostStacked.
#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "io/checkpoint_reader.h"
#include "io/damaged_file.h"

namespace llmq {
namespace {

// How the matrices of a stack lie: `each` of `rows` and `columns` together in a slab. A vector is a column.
struct SlabLayout {
  bool turned = false, alternating = false, vectors = false;
  std::int64_t each = 1, rows = 0, columns = 1;
  std::uint64_t slab_bytes = 0;
};

SlabLayout layout_of(const TensorView& stack, const SlabNames& names) {
  SlabLayout layout;
  layout.vectors = names.vectors, layout.alternating = names.alternating;
  layout.turned = names.transposed || (names.columns > 0 && stack.shape.back() != names.columns);
  layout.each = 1 + static_cast<std::int64_t>(names.further.size());
  layout.rows = stack.shape[layout.turned ? 2 : 1];
  if (!layout.vectors) layout.columns = stack.shape[layout.turned ? 1 : 2];
  layout.slab_bytes = stack.bytes() / static_cast<std::uint64_t>(stack.shape[0]);
  return layout;
}

std::string name_in_slab(const SlabNames& names, std::int64_t slab, std::int64_t behind) {
  return names.before + std::to_string(slab) +
         (behind == 0 ? names.after : names.further[static_cast<std::size_t>(behind) - 1]);
}

// `part` is the whole stack, and then the matrix that is number `behind` of a slab.
void take_matrix(const SlabLayout& layout, std::int64_t slab, std::int64_t behind, StoredTensor& part) {
  std::uint64_t from = static_cast<std::uint64_t>(slab) * layout.slab_bytes;
  part.transposed = layout.turned;
  if (layout.turned || layout.alternating) {
    part.side_by_side = static_cast<int>(layout.each), part.place = static_cast<int>(behind);
    part.alternating = layout.alternating && layout.each > 1;
  } else {
    from +=
        static_cast<std::uint64_t>(behind) * (layout.slab_bytes / static_cast<std::uint64_t>(layout.each));
  }
  part.offset += from;
  const std::int64_t rows = layout.rows / layout.each;
  part.view = TensorView(static_cast<const void*>(part.view.as<const std::byte>() + from), part.view.dtype,
                         layout.vectors ? Shape{rows} : Shape{rows, layout.columns});
}

}  // namespace

// A slab may be a byte, and what is known of its matrix is half a kilobyte.
void CheckpointReader::refuse_many(const StoredTensor& stack, std::int64_t parts) {
  parts_ += static_cast<std::size_t>(parts);
  if (parts_ > kMostStacked)
    refuse_damaged(
        shard(stack).string(), stack.name,
        fmt::format("holds {} matrices, and with those before it more than {}", parts, kMostStacked));
}

// Slabs of codes [rows of all, columns / 32, 16], rows of one or of several in turn, and their exponents.
void CheckpointReader::part_mxfp4(const StoredTensor& tensor, const StoredTensor& exponents,
                                  const SlabNames& names, std::vector<StoredTensor>& parted) {
  const Shape &stack = tensor.view.shape, &scales = exponents.view.shape;
  const auto each = static_cast<std::int64_t>(1 + names.further.size());
  const bool bytes = tensor.view.dtype == DType::kU8 && exponents.view.dtype == DType::kU8;
  if (!bytes || stack.rank() != 4 || stack.back() != 16 || stack.elements() == 0 || stack[0] > kMostExperts ||
      stack[1] % each != 0 || !(scales == Shape{stack[0], stack[1], stack[2]}))
    refuse_damaged(
        shard(tensor).string(), tensor.name,
        fmt::format("is {} of shape {} with {} of shape {}: MXFP4 is U8 [matrices, rows, blocks, 16] with U8 "
                    "[matrices, rows, blocks]",
                    dtype_row(tensor.view.dtype).name, stack.text(), exponents.name, scales.text()));
  const std::uint64_t scales_each = exponents.view.bytes() / static_cast<std::uint64_t>(stack[0]);
  const SlabLayout layout{.alternating = true,
                          .each = each,
                          .rows = stack[1],
                          .columns = stack[2] * 32,
                          .slab_bytes = tensor.view.bytes() / static_cast<std::uint64_t>(stack[0])};
  refuse_many(tensor, stack[0] * each);
  StoredTensor whole = tensor;
  whole.view = TensorView(tensor.view.pointer, DType::kF4, Shape{stack[0], stack[1], stack[2] * 32});
  for (std::int64_t slab = 0; slab < stack[0]; ++slab)
    for (std::int64_t turn = 0; turn < each; ++turn) {
      StoredTensor& part = parted.emplace_back(whole);
      part.name = name_in_slab(names, slab, turn);
      take_matrix(layout, slab, turn, part);
      const std::uint64_t before = static_cast<std::uint64_t>(slab) * scales_each;
      part.exponents = {exponents.view.as<const std::uint8_t>() + before, exponents.shard,
                        exponents.offset + before};
    }
}

void CheckpointReader::keep_whole(const SlabNames& names, std::vector<StoredTensor> stored,
                                  std::span<StoredTensor> parts) {
  if (names.whole.empty()) return;
  StoredStack stack{names.whole, std::move(stored), {}, std::ssize(names.further) + 1};
  for (StoredTensor& part : parts) {
    part.stack = static_cast<int>(state_->stacks.size());
    stack.parts.push_back(part.name);
  }
  state_->stacks.push_back(std::move(stack));
}

void CheckpointReader::part_stacks(FindSlabs find) {
  std::vector<StoredTensor> parted;
  std::map<std::string, StoredTensor> exponents;  // of MXFP4, by their names
  std::unordered_map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : state_->tensors) by_name.emplace(tensor.name, &tensor);
  for (const StoredTensor& tensor : state_->tensors)
    if (const auto names = find(state_->config, tensor.name); names && !names->exponents.empty()) {
      const auto found = by_name.find(names->exponents);
      if (found == by_name.end())
        refuse_damaged(shard(tensor).string(), tensor.name,
                       fmt::format("has no exponents beside it: {} is missing", names->exponents));
      exponents.emplace(names->exponents, *found->second);
    }
  for (StoredTensor& tensor : state_->tensors) {
    if (exponents.contains(tensor.name)) continue;
    const std::optional<SlabNames> names = find(state_->config, tensor.name);
    if (!names) {
      parted.push_back(std::move(tensor));
      continue;
    }
    const std::size_t first = parted.size();
    parted_.emplace_back(tensor.name, *names);
    if (!names->exponents.empty()) {
      part_mxfp4(tensor, exponents.at(names->exponents), *names, parted);
      keep_whole(*names, {tensor, exponents.at(names->exponents)}, std::span(parted).subspan(first));
      continue;
    }
    const TensorView& stack = tensor.view;
    if (stack.shape.rank() != (names->vectors ? 2 : 3) || stack.shape.elements() == 0 ||
        stack.shape[0] > kMostExperts || dtype_row(stack.dtype).block_elements > 1 ||
        (names->vectors && tensor.is_scaled()))
      refuse_damaged(shard(tensor).string(), tensor.name,
                     fmt::format("is {} of shape {}, and this family stacks {}", dtype_row(stack.dtype).name,
                                 stack.shape.text(),
                                 names->vectors ? "vectors there: [vectors, elements]"
                                                : "matrices there: [matrices, rows, columns]"));
    const SlabLayout layout = layout_of(stack, *names);
    if (layout.rows % layout.each != 0)
      refuse_damaged(
          shard(tensor).string(), tensor.name,
          fmt::format("has {} rows a matrix, and holds {} of equally many", layout.rows, layout.each));
    refuse_many(tensor, stack.shape[0] * layout.each);
    for (std::int64_t place = 0; place < stack.shape[0] * layout.each; ++place) {
      StoredTensor& part = parted.emplace_back(tensor);
      part.name = name_in_slab(*names, place / layout.each, place % layout.each);
      take_matrix(layout, place / layout.each, place % layout.each, part);
    }
    keep_whole(*names, {tensor}, std::span(parted).subspan(first));
  }
  state_->tensors = std::move(parted);
}

}  // namespace llmq
