#include "model/block_spec.h"

#include <algorithm>

#include "base/error.h"

namespace llmq {
namespace {

template <typename Mixer>
const Mixer* first_mixer(const BlockSpec& block) {
  for (const SublayerSpec& part : block.sublayers) {
    if (const auto* mixer = std::get_if<Mixer>(&part.mixer)) return mixer;
    if (part.beside)
      if (const auto* mixer = std::get_if<Mixer>(&*part.beside)) return mixer;
  }
  return nullptr;
}

}  // namespace

std::vector<LinearId> MixtureSpec::linears() const {
  std::vector<LinearId> ids = {router};
  const auto add = [&](const ExpertSpec& expert) {
    for (const LinearId id : expert.linears()) ids.push_back(id);
  };
  for (const ExpertSpec& expert : experts) add(expert);
  if (shared) add(*shared);
  if (shared_gate) ids.push_back(*shared_gate);
  return ids;
}

std::int64_t inner_width_of(const MixerSpec& mixer) {
  return std::visit([](const auto& kind) { return kind.inner_width(); }, mixer);
}

std::int64_t row_floats_of(const MixerSpec& mixer) {
  return std::visit([](const auto& kind) { return kind.row_floats(); }, mixer);
}

std::optional<LinearId> output_of(const MixerSpec& mixer) {
  if (const auto* attention = std::get_if<AttentionSpec>(&mixer)) return attention->output;
  if (const auto* mlp = std::get_if<MlpSpec>(&mixer)) return mlp->output;
  if (const auto* delta = std::get_if<DeltaSpec>(&mixer)) return delta->output;
  if (const auto* embedded = std::get_if<EmbeddedSpec>(&mixer)) return embedded->output;
  if (const auto* latent = std::get_if<LatentAttentionSpec>(&mixer)) return latent->output;
  return std::nullopt;
}

std::int64_t SublayerSpec::row_floats() const {
  return std::max(row_floats_of(mixer), beside ? row_floats_of(*beside) : 0);
}

std::span<const SiteId> SublayerSpec::sites_between() const {
  if (!output_of(mixer)) return {};
  return std::span(sites).subspan(1, sites.size() - 2);
}

std::vector<LinearId> SublayerSpec::outputs() const {
  std::vector<LinearId> ids;
  if (const auto output = output_of(mixer)) ids.push_back(*output);
  if (beside) ids.push_back(output_of(*beside).value());
  return ids;
}

bool SublayerSpec::is_output(LinearId id) const {
  return output_of(mixer) == id || (beside && output_of(*beside) == id);
}

bool SublayerSpec::reads_before_outputs(const LinearSpec& linear) const {
  return !is_output(linear.id) && std::find(sites.begin(), sites.end(), linear.site) != sites.end();
}

std::size_t BlockSpec::part_of(SiteId site) const {
  for (std::size_t part = 0; part < sublayers.size(); ++part) {
    const std::vector<SiteId>& own = sublayers[part].sites;
    if (std::find(own.begin(), own.end(), site) != own.end()) return part;
  }
  fail(ErrorKind::kInternal, "site {} is in no sublayer of {}", static_cast<int>(site), prefix);
}

bool BlockSpec::writes_pages(std::size_t part) const {
  const SublayerSpec& own = sublayers.at(part);
  return own.joined ? sublayers.at(part - 1).has_pages() : own.has_pages() && !own.joins_next;
}

const AttentionSpec* BlockSpec::attention() const { return first_mixer<AttentionSpec>(*this); }
const MlpSpec* BlockSpec::mlp() const { return first_mixer<MlpSpec>(*this); }
const MixtureSpec* BlockSpec::mixture() const { return first_mixer<MixtureSpec>(*this); }
const DeltaSpec* BlockSpec::delta() const { return first_mixer<DeltaSpec>(*this); }
const EmbeddedSpec* BlockSpec::embedded() const { return first_mixer<EmbeddedSpec>(*this); }
const LatentAttentionSpec* BlockSpec::latent_attention() const {
  return first_mixer<LatentAttentionSpec>(*this);
}

std::optional<AttentionSizes> BlockSpec::attention_sizes() const {
  if (const AttentionSpec* const own = attention())
    return AttentionSizes{own->heads, own->kv_heads, own->head_dim, own->window};
  if (const LatentAttentionSpec* const own = latent_attention())
    return AttentionSizes{own->heads, 1, own->row_dim(), 0};
  return std::nullopt;
}

double BlockSpec::share_read(LinearId id, std::int64_t rows) const {
  const MixtureSpec* const spec = mixture();
  if (spec == nullptr) return 1;
  const bool of_expert =
      std::any_of(spec->experts.begin(), spec->experts.end(), [&](const ExpertSpec& expert) {
        return id == expert.gate.linear || id == expert.up.linear || id == expert.output;
      });
  const auto experts = static_cast<std::int64_t>(spec->experts.size());
  if (!of_expert || rows >= experts) return 1;
  return static_cast<double>(std::min(experts, rows * spec->top_k)) / static_cast<double>(experts);
}

}  // namespace llmq
