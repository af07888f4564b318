#include "quant/plan/uncalibrated_blocks.h"

#include <fmt/format.h>

#include "base/error.h"

namespace llmq {

void refuse_uncalibrated_blocks(const Recipe& recipe, const ModelSpec& spec, const Plan& plan) {
  const char* const asked = plan.target_bits        ? "budget of bits"
                            : !plan.devices.empty() ? "run on several devices"
                                                    : nullptr;
  if (asked == nullptr || (!spec.shares_pages() && !spec.block_embedding)) return;
  fail(ErrorKind::kUnsupported,
       {fmt::format("blocks of this {} {}, and for such ones this version has no {}", spec.family,
                    spec.shares_pages() ? "read the pages of others" : "have an embedding", asked),
        recipe.source,
        {},
        "leave it out"});
}

}  // namespace llmq
