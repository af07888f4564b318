// Eight bits to nearest, a scale for each output channel unless groups are asked for. Not fewer: nothing here
// runs images through a tower, so nothing could be calibrated, and what 4 bits cost shows in answers about
// images, which no text evaluation sees.
#include "quant/plan/tower_plan.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json_text.h"
#include "base/pattern.h"
#include "export/formats/packed_formats.h"
#include "model/families/tower.h"
#include "model/packed/unpacked.h"

namespace llmq {
namespace {

constexpr int kTowerBits = 8;

QuantScheme scheme_of_tower(const SchemeRequest& asked, const std::string& source) {
  if (asked.weight_type != WeightType::kInteger || asked.bits != kTowerBits)
    fail(ErrorKind::kUnsupported,
         {fmt::format("a vision tower is rounded to {} bits and to no others: nothing here calibrates it on "
                      "images, and what fewer bits cost shows in answers about images alone",
                      kTowerBits),
          source, "vision", "write w8a16"});
  if (asked.activation_bits != 16)
    fail(ErrorKind::kUnsupported,
         {fmt::format("inputs of {} bits of a vision tower have no calibration here", asked.activation_bits),
          source, "vision", "write w8a16"});
  QuantScheme scheme;
  scheme.bits = kTowerBits;
  scheme.granularity =
      asked.granularity.value_or(asked.group_size ? Granularity::kGroup : Granularity::kChannel);
  if (scheme.granularity != Granularity::kGroup && scheme.granularity != Granularity::kChannel)
    fail(ErrorKind::kUnsupported, {"weights of a vision tower have scales per channel or per group", source,
                                   "vision", "write w8a16 or w8a16_g64"});
  if (asked.group_size) scheme.group_size = *asked.group_size;
  scheme.symmetric = asked.symmetric.value_or(true);
  return scheme;
}

}  // namespace

void plan_tower(const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec, Plan& plan) {
  if (!recipe.vision) return;
  const QuantScheme scheme = scheme_of_tower(*recipe.vision, recipe.source);
  const PackedFormatRow& format = packed_format(recipe.format);
  if (!format.tower_refusal.empty())
    fail(ErrorKind::kUnsupported, {std::string(format.tower_refusal), recipe.source, "vision",
                                   "write format: compressed-tensors, or leave it out"});
  const Tower tower = find_tower(checkpoint, spec);
  if (tower.linears.empty())
    fail(ErrorKind::kUsage, {fmt::format("family {} has no vision tower to round", spec.family),
                             recipe.source, "vision", "leave it out"});
  for (const LinearSpec& linear : tower.linears) {
    for (const std::string& text : recipe.ignore)
      if (text.starts_with("re:") && NamePattern(text).matches(linear.module))
        fail(ErrorKind::kUsage, {fmt::format("{} is to be rounded by vision and left alone by ignore: '{}'",
                                             linear.module, text),
                                 recipe.source, "ignore", "leave out one of the two"});
    PlannedModule& planned = plan.tower.emplace_back();
    planned.module = linear.module;
    planned.scheme = scheme;
    planned.scheme.scale_dtype =
        scale_dtype(format, stored_type(checkpoint, checkpoint.at(linear.weight.tensor)));
    planned.out_features = linear.out_features, planned.in_features = linear.in_features;
    if (linear.in_features % planned.scheme.group_of(linear.in_features) != 0)
      fail(ErrorKind::kUsage, {fmt::format("group_size {} does not divide the {} input features of {}",
                                           scheme.group_size, linear.in_features, linear.module),
                               recipe.source, "vision", "write w8a16, which has a scale for each channel"});
  }
  check_expressible(plan.format, plan.packed());
  const Json* const vision = checkpoint.config().find("vision_config");
  if (!format.dense && vision != nullptr && text_at(*vision, "model_type").starts_with("siglip"))
    plan.warnings.emplace_back(
        "vision: vLLM loads a packed tower of SigLIP; Transformers 5.23 does not, for it asks each linear of "
        "such a tower for a dense weight");
}

}  // namespace llmq
