#include "model/divided_block.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/block_builder.h"

namespace llmq {
namespace {

using Divided = std::pair<const char*, std::int64_t>;

// A sum over all heads would be cut: nobody has them all.
bool sums_over_heads(const BlockSpec& block, const AttentionSpec& attention) {
  const auto wide = [&](std::optional<NormId> norm) {
    return norm && block.at(*norm).width != attention.head_dim;
  };
  return wide(attention.query_norm) || wide(attention.key_norm);
}

void add_divided(const BlockSpec& block, const AttentionSpec& attention, std::vector<Divided>& all) {
  if (sums_over_heads(block, attention)) all.emplace_back("norm of q and k over all heads", 1);
  if (attention.gated) all.emplace_back("gate beside each query", 1);
  all.emplace_back("attention heads", attention.heads);
  all.emplace_back("KV heads", attention.kv_heads);
}
void add_divided(const BlockSpec&, const MlpSpec& mlp, std::vector<Divided>& all) {
  all.emplace_back("rows of gate and up", mlp.width);
}

// A member with some of the experts would add to some of the rows.
void add_divided(const BlockSpec&, const MixtureSpec&, std::vector<Divided>& all) {
  all.emplace_back("mixture of experts", 1);
}

// All heads look at the same latents.
void add_divided(const BlockSpec&, const LatentAttentionSpec&, std::vector<Divided>& all) {
  all.emplace_back("attention over latents", 1);
}

void add_divided(const BlockSpec&, const DeltaSpec&, std::vector<Divided>& all) {
  all.emplace_back("gated delta net", 1);
}

void add_divided(const BlockSpec&, const EmbeddedSpec&, std::vector<Divided>& all) {
  all.emplace_back("embedding of each block", 1);
}

void divide(AttentionSpec& attention, std::int64_t members) {
  attention.heads /= static_cast<int>(members);
  attention.kv_heads /= static_cast<int>(members);
}
void divide(MlpSpec& mlp, std::int64_t members) { mlp.width /= members; }
void divide(MixtureSpec&, std::int64_t) {}
void divide(DeltaSpec&, std::int64_t) {}
void divide(EmbeddedSpec&, std::int64_t) {}
void divide(LatentAttentionSpec&, std::int64_t) {}

std::vector<Divided> divided_parts(const ModelSpec& spec) {
  std::vector<Divided> all;
  for (const BlockSpec& block : spec.blocks)
    for (const SublayerSpec& part : block.sublayers) {
      const auto add = [&](const auto& mixer) { add_divided(block, mixer, all); };
      std::visit(add, part.mixer);
      if (part.beside) std::visit(add, *part.beside);
      if (part.joined) all.emplace_back("sum of two mixers", 1);
    }
  all.emplace_back("rows of o and down", spec.hidden_size);
  return all;
}

}  // namespace

ModelSpec member_spec(const ModelSpec& spec, std::int64_t members) {
  const std::vector<Divided> divided = divided_parts(spec);
  std::int64_t common = 0;
  for (const Divided& part : divided) common = std::gcd(common, part.second);
  for (const Divided& part : divided) {
    if (members >= 1 && part.second % members == 0) continue;
    std::string numbers;
    for (std::int64_t n = 1; n <= common; ++n)
      if (common % n == 0) numbers += (numbers.empty() ? "" : ", ") + std::to_string(n);
    fail(ErrorKind::kUsage, {fmt::format("the model's {} {} cannot be divided over {} devices", part.second,
                                         part.first, members),
                             {},
                             "--tensor-parallel-size",
                             "for this model use one of " + numbers});
  }
  ModelSpec share = spec;
  for (BlockSpec& block : share.blocks) {
    for (SublayerSpec& part : block.sublayers) {
      const auto by_members = [&](auto& mixer) { divide(mixer, members); };
      std::visit(by_members, part.mixer);
      if (part.beside) std::visit(by_members, *part.beside);
    }
    if (const AttentionSpec* const attention = block.attention()) block.pages = pages_of(*attention);
    for (NormSpec& norm : block.norms) norm.heads /= members;
    for (MixerTensor& tensor : block.tensors)
      if (tensor.by_heads) tensor.shape = {tensor.shape[0] / members};
    for (LinearSpec& linear : block.linears) {
      linear.out_features /= members;
      for (std::int64_t& rows : linear.parts) rows /= members;
    }
  }
  return share;
}

}  // namespace llmq
