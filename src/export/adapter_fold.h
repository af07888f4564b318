// A LoRA adapter folded into the linears that it changes: W + scale B A, in FP32, rounded once to the type
// that the linear's numbers are written in (written_dtype()); numbers of a packed linear stay FP32.
//
// `llmq merge` writes them (FoldWriter); a recipe's `adapter` has the linears read so (folded()), and what
// is quantized is what a merge would have written, to the bit. Both refuse the same.
//
// Cost of a reading: the linear's own, its matrices in FP32, and rank multiplications for each weight.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/threads.h"
#include "export/output/model_writer.h"
#include "model/adapters/lora_adapter.h"
#include "model/linear_source.h"

namespace llmq {

class AdapterFold {
 public:
  // Error(kUnsupported) where the checkpoint has ggml's block types, or the adapter changes what is a part of
  // a stack.
  AdapterFold(LoraAdapter adapter, const Checkpoint& checkpoint, const ModelSpec& spec);

  struct Place {
    std::size_t block = 0;
    LinearSpec linear;
  };
  const std::map<std::string, Place>& places() const { return places_; }  // by the names of tensors
  const LoraAdapter& adapter() const { return adapter_; }
  const LinearSource& source() const { return source_; }
  LoraPair pair(const Place& place) const { return adapter_.pair(place.block, place.linear.id); }

  // Rows from `first` on of a tensor, as they are without the adapter, become what they are with it, rounded
  // to `dtype`. What is not finite before stays so. Error(kBadInput, kUnsupported) naming the adapter's file
  // where a number leaves the range of FP32 or of F16.
  void fold(const LoraPair& pair, std::int64_t first, std::span<float> rows, DType dtype,
            const std::string& tensor, ThreadPool& pool) const;

 private:
  LoraAdapter adapter_;
  LinearSource source_;
  std::map<std::string, Place> places_;
};

// The checkpoint with these linears, of which nothing is read here.
Checkpoint folded(const std::shared_ptr<const AdapterFold>& fold);

class FoldWriter {
 public:
  // Errors as LoraAdapter::open() and AdapterFold.
  FoldWriter(Io& io, const std::string& adapter, const Checkpoint& checkpoint, int threads);
  std::size_t size() const { return fold_.places().size(); }
  // Writes the tensor where the adapter changes it, in bands where it lies in order; false where it does not.
  bool write(const TensorDeclaration& declared, ModelWriter& writer);

 private:
  ModelSpec spec_;
  AdapterFold fold_;
  ThreadPool pool_;
};

}  // namespace llmq
