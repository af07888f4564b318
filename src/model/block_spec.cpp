#include "model/block_spec.h"

#include <algorithm>

#include "base/error.h"

namespace llmq {
namespace {

template <typename Mixer>
const Mixer* first_mixer(const BlockSpec& block) {
  for (const SublayerSpec& part : block.sublayers)
    if (const auto* mixer = std::get_if<Mixer>(&part.mixer)) return mixer;
  return nullptr;
}

}  // namespace

std::size_t BlockSpec::part_of(SiteId site) const {
  for (std::size_t part = 0; part < sublayers.size(); ++part) {
    const std::vector<SiteId>& own = sublayers[part].sites;
    if (std::find(own.begin(), own.end(), site) != own.end()) return part;
  }
  fail(ErrorKind::kInternal, "site {} is in no sublayer of {}", static_cast<int>(site), prefix);
}

const AttentionSpec* BlockSpec::attention() const { return first_mixer<AttentionSpec>(*this); }
const MlpSpec* BlockSpec::mlp() const { return first_mixer<MlpSpec>(*this); }

}  // namespace llmq
