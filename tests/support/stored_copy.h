// A model directory with the tensors that a checkpoint shows, each in the type that it is written in.
#pragma once
#include "export/output/model_writer.h"
#include "tensor/stored_float.h"

namespace llmq::testing {

inline void store_copy(const Checkpoint& shown, const Path& into) {
  std::vector<TensorDeclaration> tensors;
  for (const StoredTensor& tensor : shown.tensors())
    tensors.push_back({tensor.name, written_dtype(tensor), tensor.view.shape});
  const auto writer = open_dense_writer(system_io(), {into}, shown, tensors, shown.config());
  for (const TensorDeclaration& tensor : tensors)
    writer->add_dense(tensor.name, tensor.dtype, tensor.shape,
                      stored_floats(shown.read_float32(shown.at(tensor.name)), tensor.dtype));
  writer->finish({});
}

}  // namespace llmq::testing
