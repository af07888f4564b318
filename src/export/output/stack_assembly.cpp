#include "export/output/stack_assembly.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace llmq {

bool is_carried(const StoredStack& stack, const std::set<std::string>& weights, const std::string& file) {
  const auto packed = [&](const std::string& part) { return weights.contains(part); };
  const auto left = std::find_if_not(stack.parts.begin(), stack.parts.end(), packed);
  if (left == stack.parts.end()) return false;
  if (std::none_of(stack.parts.begin(), stack.parts.end(), packed)) return true;
  fail(ErrorKind::kUnsupported,
       {fmt::format("stays as it is, and others of {} do not: loaders read them as one tensor of one type",
                    stack.name),
        file, *left, "quantize all of them, or leave all out"});
}

StackAssembly::StackAssembly(const Checkpoint& checkpoint, const PackedFormatRow& format,
                             std::span<const PlannedModule> modules) {
  std::map<std::string, Place> known;
  for (const StoredStack& stack : checkpoint.stacks()) {
    for (std::size_t part = 0; part < stack.parts.size(); ++part)
      known[stack.parts[part]] = {stacks_.size(), part};
    stacks_.push_back({{}, {}, stack.parts.size(), 0, static_cast<std::size_t>(stack.each)});
  }
  for (const PlannedModule& module : modules) {
    const auto found = known.find(module.module + ".weight");
    if (found == known.end())
      fail(ErrorKind::kUnsupported,
           {fmt::format("is no part of a stack of this checkpoint, and format {} stores stacks", format.name),
            checkpoint.path().string(), module.module,
            "format mxfp4 is written of a gpt-oss as Transformers stores it"});
    places_[module.module] = found->second;
    Stack& stack = stacks_[found->second.stack];
    if (!stack.tensors.empty()) continue;
    for (const TensorDeclaration& own : format.declare(module)) {
      std::vector<std::int64_t> extents = {static_cast<std::int64_t>(stack.parts / stack.each),
                                           own.shape[0] * static_cast<std::int64_t>(stack.each)};
      for (int axis = 1; axis < own.shape.rank(); ++axis) extents.push_back(own.shape[axis]);
      stack.tensors.push_back(
          {checkpoint.stacks()[found->second.stack].name + "_" + own.name.substr(module.module.size() + 1),
           own.dtype, Shape(std::span<const std::int64_t>(extents))});
    }
  }
}

std::vector<TensorDeclaration> StackAssembly::declarations() const {
  std::vector<TensorDeclaration> all;
  for (const Stack& stack : stacks_) all.insert(all.end(), stack.tensors.begin(), stack.tensors.end());
  return all;
}

std::vector<TensorDeclaration> StackAssembly::declarations_of(const std::string& module) const {
  return stacks_[places_.at(module).stack].tensors;
}

std::vector<PackedTensor> StackAssembly::add(const std::string& module,
                                             std::span<const PackedTensor> packed) {
  const Place place = places_.at(module);
  Stack& stack = stacks_[place.stack];
  stack.bytes.resize(packed.size());
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const std::vector<std::byte>& own = packed[i].bytes;
    const auto rows = static_cast<std::size_t>(packed[i].declaration.shape[0]);
    const std::size_t row_bytes = own.size() / rows, slab = place.part / stack.each,
                      turn = place.part % stack.each;
    stack.bytes[i].resize(own.size() * stack.parts);
    for (std::size_t r = 0; r < rows; ++r)
      std::memcpy(stack.bytes[i].data() + ((slab * rows + r) * stack.each + turn) * row_bytes,
                  own.data() + r * row_bytes, row_bytes);
  }
  if (++stack.given < stack.parts) return {};
  std::vector<PackedTensor> whole;
  for (std::size_t i = 0; i < stack.tensors.size(); ++i)
    whole.push_back({stack.tensors[i], std::move(stack.bytes[i])});
  stack.bytes.clear();
  return whole;
}

}  // namespace llmq
