// What a conversion leaves behind or rounds a second time, said by rank 0.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "export/conversion_steps.h"
#include "export/formats/mlx.h"
#include "export/formats/output_format.h"

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

}  // namespace

void tell(const ConvertRequest& request, const std::string& loss) {
  if (loss.empty() || ranks_of(request.target).rank() != 0) return;
  Log::get().warn(fmt::format("{}: {}", request.source, loss));
}

void tell_of_losses(const ConvertRequest& request, const PackedModules& packed) {
  tell_of_rounded_inputs(request, packed);
}

}  // namespace llmq
