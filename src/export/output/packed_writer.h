// The ModelWriter of the packed formats, with every choice spelled out; open_writer() is its plain form,
// convert uses it with tensors of another type.
#pragma once
#include <functional>

#include "export/formats/packed_formats.h"
#include "export/output/model_directory.h"
#include "export/output/model_writer.h"

namespace llmq {

// The dense tensors of an output: every tensor of the checkpoint that is neither the weight of one of
// `modules` nor a scale of the KV cache, in the order of written_order().
std::vector<TensorDeclaration> dense_tensors(const Checkpoint& checkpoint,
                                             std::span<const PlannedModule> modules,
                                             const std::function<DType(const StoredTensor&)>& dtype);

// The same as they go out: a stack in the place of its parts where none of them is of `modules`, and nothing
// of one whose parts all are.
std::vector<TensorDeclaration> written_dense_tensors(const Checkpoint& checkpoint,
                                                     std::span<const PlannedModule> modules,
                                                     const std::function<DType(const StoredTensor&)>& dtype);

// What they take, of the types that are written.
std::uint64_t dense_bytes(const Checkpoint& checkpoint, std::span<const PlannedModule> modules);

// Files beside the weights: the checkpoint's own, byte for byte; for a .gguf the tokenizer files made from
// its metadata.
void add_companions(Io& io, const Checkpoint& checkpoint, DirectoryContents& contents);

// Sorts by name with numbers compared as numbers, so that layer 2 comes before layer 10.
void written_order(std::vector<TensorDeclaration>& tensors);

// `config` with `torch_dtype` and `dtype` set where the config has them (both where it has neither).
void set_dtype(Json& config, DType dtype);
// "bfloat16"
std::string_view torch_dtype_name(DType dtype);

}  // namespace llmq
