// A tensor of a checkpoint that is changed whenever it is read, and then rounded once to the type that its
// numbers are written in (written_dtype()); numbers of a packed linear stay FP32.
//
// Whoever quantizes it, writes it as it is or lets it run sees the same numbers. Cost of a reading: the
// tensor's own, and the change.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/packed/unpacked.h"

namespace llmq {

class ChangedTensor : public ChangedNumbers {
 public:
  // `named`: what a warning calls it, a linear's module.
  ChangedTensor(Checkpoint beneath, StoredTensor tensor, std::string named);

  void read_ahead() const override;
  void release() const override { beneath_.release(tensor_); }
  std::uint64_t bytes_to_read() const override { return Checkpoint::bytes_to_read(tensor_); }
  std::uint64_t bytes_kept() const override { return Checkpoint::bytes_kept(tensor_); }
  std::uint64_t bytes_on_disk() const override { return tensor_.bytes_on_disk(); }
  std::vector<std::string> told() const override;
  std::optional<DType> rounded_to() const override { return dtype_; }
  bool of_codes() const override;
  std::uint64_t bytes_beside() const override;
  std::uint64_t bytes_kept_beside() const override;

 protected:
  const Checkpoint& beneath() const { return beneath_; }
  const StoredTensor& tensor() const { return tensor_; }
  DType dtype() const { return dtype_.value_or(DType::kF32); }

 private:
  Checkpoint beneath_;
  StoredTensor tensor_;
  std::string named_;
  std::optional<DType> dtype_;
};

// The checkpoint with these in the place of its own, by their names; nothing is read here.
using ChangedTensors = std::map<std::string, std::shared_ptr<const ChangedTensor>>;
Checkpoint with_changed(const Checkpoint& checkpoint, const ChangedTensors& changed);

}  // namespace llmq
