// What the ways of a conversion have in common (export/convert.cpp); for the files that go one of them.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "export/convert.h"
#include "export/formats/packed_modules.h"
#include "export/output/model_writer.h"
#include "io/safetensors.h"

namespace llmq {

class AdapterFold;

// bf16, f16 or f32; Error(kUnsupported) for other words.
std::optional<DType> requested_dtype(const std::optional<std::string>& name);
void before(const ConvertRequest& request, const std::string& tensor);
void copy_dense(const Checkpoint& checkpoint, std::span<const TensorDeclaration> tensors,
                const ConvertRequest& request, ModelWriter& writer, AdapterFold* fold = nullptr);
// Directories start again after a kill: a journal would hash every byte that is copied.
OutputTarget without_journal(OutputTarget target);
void finish(const ConvertRequest& request, ModelWriter& writer, ConvertReport& report);

// Codes into another container.
void convert_to_packed(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
                       const PackedModules& packed, ConvertReport& report);
// Of a dense checkpoint, rounded as another program does (export/convert_rounded.cpp).
void convert_to_nf4(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
                    const PackedModules& packed, ConvertReport& report);
void convert_to_mlx(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
                    const PackedModules& packed, ConvertReport& report);

}  // namespace llmq
