#include "export/changed_tensor.h"

#include <utility>

#include "export/output/model_writer.h"
#include "io/codes/first_rounding.h"

namespace llmq {

ChangedTensor::ChangedTensor(Checkpoint beneath, StoredTensor tensor, std::string named)
    : beneath_(std::move(beneath)), tensor_(std::move(tensor)), named_(std::move(named)) {
  if (tensor_.unpacking == nullptr)
    dtype_ = written_dtype(tensor_);
  else if (const ChangedNumbers* const before = changed_numbers(tensor_))
    dtype_ = before->rounded_to();
}

void ChangedTensor::read_ahead() const {
  if (!Checkpoint::is_kept(tensor_)) beneath_.read_ahead(tensor_);
}

std::vector<std::string> ChangedTensor::told() const {
  if (tensor_.unpacking) return tensor_.unpacking->told();
  const std::string form = first_rounding(tensor_);
  return form.empty() ? std::vector<std::string>()
                      : std::vector<std::string>{told_of_second_rounding(named_, form)};
}

// What lies beneath may be changed itself.
bool ChangedTensor::of_codes() const {
  const ChangedNumbers* const before = changed_numbers(tensor_);
  return before != nullptr ? before->of_codes() : tensor_.unpacking != nullptr;
}

std::uint64_t ChangedTensor::bytes_beside() const {
  const ChangedNumbers* const before = changed_numbers(tensor_);
  return before != nullptr ? before->bytes_beside() : 0;
}

std::uint64_t ChangedTensor::bytes_kept_beside() const {
  const ChangedNumbers* const before = changed_numbers(tensor_);
  return before != nullptr ? before->bytes_kept_beside() : 0;
}

Checkpoint with_changed(const Checkpoint& checkpoint, const ChangedTensors& changed) {
  std::vector<StoredTensor> tensors;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const auto found = changed.find(tensor.name);
    if (found == changed.end()) {
      tensors.push_back(tensor);
      continue;
    }
    StoredTensor& shown = tensors.emplace_back();
    shown.name = tensor.name;
    shown.view = TensorView(static_cast<const void*>(nullptr),
                            found->second->rounded_to().value_or(DType::kF32), tensor.view.shape);
    shown.unpacking = found->second;
  }
  return checkpoint.showing(std::move(tensors), checkpoint.config());
}

}  // namespace llmq
