#include "model/open_checkpoint.h"

#include "model/gguf/gguf_model.h"

namespace llmq {

Checkpoint open_checkpoint(Io& io, const std::string& model) {
  return Checkpoint::open(io, model, read_gguf_model);
}

}  // namespace llmq
