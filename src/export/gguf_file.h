// A whole model as one .gguf file: metadata, types chosen, every tensor rounded a few rows at a time.
//
// Without importance and with BlockSearch::kGgml the bytes of every tensor are those of llama.cpp's converter (F32, F16, BF16, Q8_0) and of
// llama-quantize (all others) for the same model. The file has its name only when it is whole.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/threads.h"
#include "export/gguf_mix.h"
#include "io/checkpoint.h"
#include "io/imatrix.h"
#include "model/model_spec.h"
#include "tensor/ggml_quantize.h"

namespace llmq {

struct GgufRequest {
  Path destination;
  bool overwrite = false;  // of another .gguf file; anything else is refused always
  std::string name;        // the model as the user named it
  const GgufFileType* file_type = nullptr;
  const Imatrix* importance = nullptr;  // null: none
  BlockSearch search = BlockSearch::kGgml;
  std::function<void(const std::string& tensor)> on_tensor;  // before each; may throw to stop
};

struct GgufWritten {
  struct Tensor {
    std::string name;
    DType dtype;
    Shape shape;
    bool weighted = false;  // rounded with importance
  };
  std::vector<Tensor> tensors;
  std::uint64_t bytes = 0;         // of the file
  std::string sha256;              // of the file
  std::string digest;              // "sha256:..." of the line `sha256sum` prints for it
  double bits_per_weight() const;  // over all tensors
};

// Error(kUsage) where the destination may not be written: no .gguf in its name, or something there that may not be replaced.
void check_gguf_destination(Io& io, const Path& destination, bool overwrite, const Path& source);

// What choose_gguf_types() looks at.
GgufMixModel gguf_mix_model(const ModelSpec& spec);

GgufWritten write_gguf(Io& io, const Checkpoint& checkpoint, const ModelSpec& spec,
                       const GgufRequest& request, ThreadPool& pool);

}  // namespace llmq
