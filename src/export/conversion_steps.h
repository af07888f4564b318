// What the ways of a conversion have in common (export/convert.cpp); for the files that go one of them.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "export/convert.h"
#include "export/formats/packed_modules.h"
#include "export/output/model_writer.h"
#include "io/safetensors.h"

namespace llmq {

class FoldWriter;

// bf16, f16 or f32; Error(kUnsupported) for other words.
std::optional<DType> requested_dtype(const std::optional<std::string>& name);
void before(const ConvertRequest& request, const std::string& tensor);
void copy_dense(const Checkpoint& checkpoint, std::span<const TensorDeclaration> tensors,
                const ConvertRequest& request, ModelWriter& writer, FoldWriter* fold = nullptr);
// A warning of rank 0, behind the source's name; none where `loss` is empty.
void tell(const ConvertRequest& request, const std::string& loss);
// What the source has and the output will not: rounding of inputs, scales of a KV cache.
void tell_of_losses(const ConvertRequest& request, const Checkpoint& checkpoint, const PackedModules& packed);
// Where it goes, without a journal.
OutputTarget target_of(const ConvertRequest& request);

// A conversion up to the point where nothing is written yet, and what follows.
struct Making {
  std::function<std::unique_ptr<ModelWriter>()> open;
  std::function<void(ModelWriter&)> fill;
};

// Codes into another container.
Making to_packed(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
                 const PackedModules& packed, ConvertReport& report);
// Of a dense checkpoint, rounded as another program does (export/convert_rounded.cpp).
Making to_nf4(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
              const PackedModules& packed, ConvertReport& report);
Making to_mlx(Io& io, const ConvertRequest& request, const Checkpoint& checkpoint,
              const PackedModules& packed, ConvertReport& report);

}  // namespace llmq
