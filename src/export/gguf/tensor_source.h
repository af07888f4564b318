// The tensors of a model as GGUF names, orders and shapes them, read a few rows at a time.
//
// From a Hugging Face checkpoint: names and the order of llama.cpp; the rows of q and k reordered within each
// head where a family's rope turns neighbours there (io/gguf_rows.h); packed linears dequantized exactly,
// but for NVFP4 and MXFP4 that keep their codes; factors of rope scaling made. From a GGUF: its tensors as
// they lie.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "export/gguf/type_mix.h"
#include "io/checkpoint.h"
#include "model/gguf/gguf_family.h"
#include "model/model_spec.h"

namespace llmq {

class GgufTensorSource {
 public:
  virtual ~GgufTensorSource() = default;
  // Sorted by gguf_tensor_before(). `stored` is the type a tensor has where it is not rounded: F32 unless the
  // source is a GGUF, or has MXFP4 or NVFP4.
  const std::vector<GgufMixTensor>& tensors() const { return tensors_; }
  // Rows [first, first + count) of tensor `index` as FP32.
  virtual std::vector<float> rows(std::size_t index, std::int64_t first, std::int64_t count) = 0;
  // The same as a GGUF stores them, where `stored` is no plain type.
  virtual std::vector<std::byte> stored_rows(std::size_t index, std::int64_t first, std::int64_t count) = 0;
  // What rounded its numbers (io/codes/first_rounding.h), or the scheme of a packed linear; empty: nothing.
  virtual std::string first_rounding(std::size_t index) const = 0;
  // All rows of it will be asked for soon.
  virtual void read_ahead(std::size_t) {}
  // No row of it will be asked for any more.
  virtual void release(std::size_t index) = 0;
  // What reading all rows of it once counts, in slabs of Checkpoint::kBandElements values; at most.
  virtual std::uint64_t bytes_to_read(std::size_t index) const = 0;

 protected:
  std::vector<GgufMixTensor> tensors_;
};

// `checkpoint` and `spec` must outlive it. `keeps_codes`: the file's type leaves codes as they are
// (is_of_converter()), so that NVFP4 has its scales beside it (export/gguf/float_places.h).
std::unique_ptr<GgufTensorSource> open_gguf_tensors(Io& io, const Checkpoint& checkpoint,
                                                    const ModelSpec& spec, bool keeps_codes);

}  // namespace llmq
