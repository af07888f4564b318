// A LoRA adapter folded into the tensors that it changes: W + scale B A, in FP32.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "export/output/model_writer.h"
#include "model/adapters/lora_adapter.h"
#include "model/linear_source.h"

namespace llmq {

class AdapterFold {
 public:
  // Error(kUnsupported) where the checkpoint is quantized.
  AdapterFold(Io& io, const std::string& adapter, const Checkpoint& checkpoint, int threads);
  std::size_t size() const { return places_.size(); }
  // Writes the tensor where the adapter changes it; false where it does not.
  bool write(const TensorDeclaration& declared, ModelWriter& writer);

 private:
  struct Place {
    std::size_t block = 0;
    const LinearSpec* linear = nullptr;
  };

  void check_dense(const Checkpoint& checkpoint, const StoredTensor& tensor) const;
  void fold(const LoraPair& pair, std::int64_t first, std::span<float> rows,
            const TensorDeclaration& declared, ModelWriter& writer);

  ModelSpec spec_;
  LoraAdapter adapter_;
  LinearSource source_;
  ThreadPool pool_;
  std::map<std::string, Place> places_;
  std::vector<std::byte> bytes_;
};

}  // namespace llmq
