// How a family fills a BlockSpec: norms and sites first, then the linears that read them, then what joins
// them to sublayers. Ids are handed out in the order of the calls, which is the order of all lists: of
// reports, plans and the tensors of a GGUF.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "model/block_spec.h"

namespace llmq {

// What the attention of a block leaves for the positions behind.
PagesSpec pages_of(const AttentionSpec& attention);
PagesSpec pages_of(const LatentAttentionSpec& attention);
// Which rows the channels of its inner site come from.
LinearRows rows_of_values(const AttentionSpec& attention);

class BlockBuilder {
 public:
  explicit BlockBuilder(std::string prefix) { block_.prefix = std::move(prefix); }

  // `name` below the block's prefix: tensors "<prefix>.<name>.weight" and, with `bias`, ".bias" (of a norm:
  // where its kind has one).
  NormId norm(const std::string& name, NormSpec like, std::int64_t width, bool bias = true);
  NormId norm_of(TensorPlace gain, NormSpec like,
                 std::int64_t width);  // without a bias; perhaps without a gain
  TensorId tensor(const std::string& name, Shape shape, bool transposed = false);  // "<prefix>.<name>"
  TensorId host_tensor(const std::string& name, Shape shape);
  TensorId tensor_of_heads(const std::string& name, std::int64_t heads);
  SiteId site(std::string name, std::int64_t channels);
  // A tensor of that name, without an ending.
  TensorPlace vector(const std::string& name) const { return {block_.prefix + "." + name}; }
  void producer(SiteId site, Producer producer) { at(site).producer = producer; }
  // A linear that reads `site`; `parts`: rows of each where several are stored as one.
  LinearId linear(const std::string& name, SiteId site, std::vector<std::int64_t> parts, bool bias);
  // One that attention over latents absorbs: of each head `plain` rows that queries are multiplied by, and
  // `value_dim` that give values.
  LinearId absorbed(const std::string& name, SiteId site, int heads, std::int64_t plain,
                    std::int64_t value_dim);
  void turned_by_rope(LinearId linear, int heads) { at(linear).rope_heads = heads; }

  // Sublayers in the order in which they run, with the norms around their mixers. What makes their sites is
  // said here, too: without a norm before nothing does, as the residual stream has other readers.
  void attention(std::optional<NormId> before, AttentionSpec mixer, std::optional<NormId> after = {});
  void mlp(std::optional<NormId> before, MlpSpec mixer, std::optional<NormId> after = {});
  void delta(NormId before, DeltaSpec mixer);
  void latent_attention(NormId before, LatentAttentionSpec mixer);
  void embedded(EmbeddedSpec mixer, std::optional<NormId> after);  // of the residual stream as it is
  void mixture(std::optional<NormId> before, MixtureSpec mixer, std::optional<NormId> after = {});
  // What the last two sublayers give is added up, and h grows by `norm` of the sum, or by the sum.
  void join_last_two(std::optional<NormId> norm = {});
  // h is multiplied by one number behind the last sublayer.
  void scale_stream(TensorId factor) { block_.sublayers.back().factor = factor; }
  // Both read before(h), one site, and h grows by what each of them gives.
  void side_by_side(NormId before, AttentionSpec attention, MlpSpec mlp);
  // Whatever a recipe says, it stays dense.
  void never_quantized(LinearId linear) { at(linear).quantizable = false; }

  BlockSpec block() && { return std::move(block_); }

 private:
  LinearSpec& at(LinearId id) { return block_.linears.at(static_cast<std::size_t>(id)); }
  SiteSpec& at(SiteId id) { return block_.sites.at(static_cast<std::size_t>(id)); }

  BlockSpec block_;
};

}  // namespace llmq
