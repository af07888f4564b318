// What a conversion leaves behind or rounds a second time, said by rank 0.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "export/conversion_steps.h"
#include "export/formats/mlx.h"
#include "export/formats/nf4.h"
#include "export/formats/output_format.h"
#include "export/formats/packed_formats.h"
#include "model/linear_source.h"
#include "model/packed/quantization_config.h"

namespace llmq {
namespace {

void tell_of_rounded_inputs(const ConvertRequest& request, const PackedModules& packed) {
  const bool weights_alone =
      is_one_file(request.to) || request.to == "safetensors" || request.to == kMlxFormat;
  const auto rounds = [](const PlannedModule& module) { return module.scheme.rounds_inputs(); };
  const auto first = std::find_if(packed.modules.begin(), packed.modules.end(), rounds);
  if (!weights_alone || first == packed.modules.end()) return;
  tell(request,
       fmt::format("{} linears round their inputs ({}); --to {} writes their weights alone, which "
                   "meet inputs as they are",
                   std::count_if(first, packed.modules.end(), rounds), first->scheme.text(), request.to));
}

// A packed format that has no place for them refuses the checkpoint.
void tell_of_kv_scales(const ConvertRequest& request, const Checkpoint& checkpoint,
                       const PackedModules& packed) {
  const bool of_numbers = is_one_file(request.to) || request.to == "safetensors" ||
                          request.to == kNf4Format || packed.modules.empty();
  if (!of_numbers && LinearSource::open(checkpoint).kv_cache()) return;
  const auto scales = std::count_if(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                                    [](const StoredTensor& tensor) { return is_kv_scale(tensor.name); });
  if (scales == 0) return;
  tell(request, fmt::format("{} scales of its KV cache are left out, for which --to {} has no place", scales,
                            request.to));
}

// manifest.json keeps it (job/recorded_job.h).
void tell_of_transforms(const ConvertRequest& request, const Checkpoint& checkpoint) {
  const auto has_words = [&](const PackedFormatRow* row) {
    return row->name == request.to && row->transform_config != nullptr;
  };
  const auto formats = packed_formats();
  if (told_transforms(checkpoint.config()) == nullptr ||
      std::any_of(formats.begin(), formats.end(), has_words))
    return;
  tell(request, fmt::format("its weights are rotated (transform_config), for which --to {} has no words; an "
                            "adapter of the model that was rotated does not fit them",
                            request.to));
}

}  // namespace

void tell(const ConvertRequest& request, const std::string& loss) {
  if (loss.empty() || ranks_of(request.target).rank() != 0) return;
  Log::get().warn(fmt::format("{}: {}", request.source, loss));
}

void tell_of_losses(const ConvertRequest& request, const Checkpoint& checkpoint,
                    const PackedModules& packed) {
  tell_of_rounded_inputs(request, packed);
  tell_of_kv_scales(request, checkpoint, packed);
  tell_of_transforms(request, checkpoint);
}

}  // namespace llmq
