#include "model/block_builder.h"

#include <numeric>

namespace llmq {

PagesSpec pages_of(const AttentionSpec& attention) {
  if (attention.shared_pages) return {};
  return {attention.kv_heads, attention.head_dim, attention.window, attention.chunks};
}

PagesSpec pages_of(const LatentAttentionSpec& attention) {
  return {1, static_cast<int>(attention.row_dim()), 0};
}

LinearRows rows_of_values(const AttentionSpec& attention) {
  const std::int64_t skipped = attention.grouped ? attention.group_rows() - attention.head_dim : 0;
  return {attention.value, attention.queries_of_group(), attention.head_dim, skipped};
}

NormId BlockBuilder::norm(const std::string& name, NormSpec like, std::int64_t width, bool bias) {
  like.gain = {block_.prefix + "." + name + ".weight"};
  if (bias && like.kind == NormSpec::Kind::kLayer) like.bias = {block_.prefix + "." + name + ".bias"};
  like.width = width;
  block_.norms.push_back(std::move(like));
  return static_cast<NormId>(block_.norms.size() - 1);
}

NormId BlockBuilder::norm_of(TensorPlace gain, NormSpec like, std::int64_t width) {
  like.gain = std::move(gain);
  like.width = width;
  block_.norms.push_back(std::move(like));
  return static_cast<NormId>(block_.norms.size() - 1);
}

TensorId BlockBuilder::tensor(const std::string& name, Shape shape, bool transposed) {
  block_.tensors.push_back({{block_.prefix + "." + name}, shape, transposed});
  return static_cast<TensorId>(block_.tensors.size() - 1);
}

TensorId BlockBuilder::host_tensor(const std::string& name, Shape shape) {
  const TensorId id = tensor(name, shape);
  block_.tensors.back().on_host = true;
  return id;
}

TensorId BlockBuilder::tensor_of_heads(const std::string& name, std::int64_t heads) {
  const TensorId id = tensor(name, {heads});
  block_.tensors.back().by_heads = true;
  return id;
}

SiteId BlockBuilder::site(std::string name, std::int64_t channels) {
  block_.sites.push_back({std::move(name), channels, {}, {}});
  return static_cast<SiteId>(block_.sites.size() - 1);
}

LinearId BlockBuilder::linear(const std::string& name, SiteId site, std::vector<std::int64_t> parts,
                              bool bias) {
  LinearSpec& linear = block_.linears.emplace_back();
  linear.id = static_cast<LinearId>(block_.linears.size() - 1);
  linear.module = block_.prefix + "." + name;
  linear.weight = {linear.module + ".weight"};
  if (bias) linear.bias = {linear.module + ".bias"};
  linear.parts = std::move(parts);
  linear.out_features = std::accumulate(linear.parts.begin(), linear.parts.end(), std::int64_t{0});
  linear.in_features = at(site).channels;
  linear.site = site;
  at(site).readers.push_back(linear.id);
  return linear.id;
}

LinearId BlockBuilder::absorbed(const std::string& name, SiteId site, int heads, std::int64_t plain,
                                std::int64_t value_dim) {
  std::vector<std::int64_t> parts;
  for (int head = 0; head < heads; ++head) parts.insert(parts.end(), {plain, value_dim});
  const LinearId id = linear(name, site, std::move(parts), false);
  at(id).absorbed = true;
  return id;
}

void BlockBuilder::attention(std::optional<NormId> before, AttentionSpec mixer, std::optional<NormId> after) {
  if (before) producer(mixer.input, NormGain{*before});
  if (!mixer.value_norm && !mixer.shared_pages) producer(mixer.inner, rows_of_values(mixer));
  block_.pages = pages_of(mixer);
  block_.sublayers.push_back({before, mixer, {}, after, {mixer.input, mixer.inner}});
}

// Rows of `up` may be divided where nothing but a product stands between them and the inner site, and where
// act(s u) = s act(u) for s > 0. A clamp and a sum stand between them in the clamped SwiGLU.
namespace {
bool passes_scales(bool gated, Activation activation) {
  return gated ? activation != Activation::kClampedSwiglu : activation == Activation::kRelu;
}
}  // namespace

void BlockBuilder::mlp(std::optional<NormId> before, MlpSpec mixer, std::optional<NormId> after) {
  if (before) producer(mixer.input, NormGain{*before});
  if (passes_scales(mixer.gate.has_value(), mixer.activation)) producer(mixer.inner, LinearRows{mixer.up});
  block_.sublayers.push_back({before, mixer, {}, after, {mixer.input, mixer.inner}});
}

void BlockBuilder::side_by_side(NormId before, AttentionSpec attention, MlpSpec mlp) {
  this->attention(before, attention);
  this->mlp(before, mlp);
  block_.sublayers.pop_back();
  SublayerSpec& both = block_.sublayers.back();
  both.beside = std::move(mlp);
  both.sites.push_back(std::get<MlpSpec>(*both.beside).inner);
}

// Of its inner site a factor is looked up, and what the gate gives passes a curve.
void BlockBuilder::embedded(EmbeddedSpec mixer, std::optional<NormId> after) {
  block_.sublayers.push_back({{}, mixer, {}, after, {mixer.input, mixer.inner}});
}

// Nothing makes its inner site that could be divided: the gain of the norm before it is one for all heads.
void BlockBuilder::delta(NormId before, DeltaSpec mixer) {
  producer(mixer.input, NormGain{before});
  block_.sublayers.push_back({before, mixer, {}, {}, {mixer.input, mixer.inner}});
}

// Rows of values go through a sum over positions, channel by channel.
void BlockBuilder::latent_attention(NormId before, LatentAttentionSpec mixer) {
  producer(mixer.input, NormGain{before});
  if (mixer.queries) producer(*mixer.queries, NormGain{*mixer.query_norm});
  producer(mixer.latent, NormGain{mixer.latent_norm});
  producer(mixer.inner, LinearRows{Part{mixer.expand}, 1, mixer.value_dim, mixer.plain});
  block_.pages = pages_of(mixer);
  SublayerSpec part{before, {}, {}, {}, {mixer.input}};
  if (mixer.queries) part.sites.push_back(*mixer.queries);
  part.sites.insert(part.sites.end(), {mixer.latent, mixer.inner});
  part.mixer = mixer;
  block_.sublayers.push_back(std::move(part));
}

// SmoothQuant's scales cost mixtures more than they give (docs/adr/0026-calibrating-experts.md).
void BlockBuilder::mixture(std::optional<NormId> before, MixtureSpec mixer, std::optional<NormId> after) {
  if (before) producer(mixer.input, NormGain{*before});
  at(mixer.input).smoothed = false;
  SublayerSpec part{before, {}, {}, after, {mixer.input}};
  if (mixer.router_norm) part.sites.push_back(at(mixer.router).site);
  const auto add = [&](const ExpertSpec& expert) {
    if (passes_scales(true, mixer.activation)) producer(expert.inner, LinearRows{expert.up});
    at(expert.inner).smoothed = false;
    part.sites.push_back(expert.inner);
  };
  for (const ExpertSpec& expert : mixer.experts) add(expert);
  if (mixer.shared) add(*mixer.shared);
  part.mixer = std::move(mixer);
  block_.sublayers.push_back(std::move(part));
}

void BlockBuilder::join_last_two(std::optional<NormId> norm) {
  block_.sublayers.rbegin()[1].joins_next = true;
  block_.sublayers.back().joined = true;
  block_.sublayers.back().joint = norm;
}

}  // namespace llmq
