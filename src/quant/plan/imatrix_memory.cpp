// The moments of passes that round nothing. One collects the importance of inputs (`method: imatrix`): a
// block as it is, and the sums of the experts' own rows where it has experts. The other measures candidates
// of mixed precision.
#include <algorithm>

#include "quant/mixed_precision/perturbed_streams.h"
#include "quant/mixed_precision/sensitivity.h"
#include "quant/plan/peak_memory.h"

namespace llmq {

// The largest of the groups that are one rank's in a block, where they are dealt in turn.
std::vector<std::uint64_t> PeakMemory::forked_weights(const BlockSpec& block) const {
  std::vector<std::uint64_t> groups = group_weights(block);
  std::sort(groups.begin(), groups.end(), std::greater<>());
  groups.resize((groups.size() + ranks_ - 1) / ranks_);
  return groups;
}

std::vector<std::vector<MemoryItem>> PeakMemory::importance() const {
  std::vector<std::vector<MemoryItem>> moments;
  for (const BlockSpec& block : spec_.blocks) {
    std::uint64_t weights = 0, largest = 0;
    for (const LinearSpec& linear : block.linears) {
      weights += weights_of(linear);
      largest = std::max(largest, weights_of(linear));
    }
    const MixtureSpec* const mixture = block.mixture();
    const std::uint64_t routed =
        mixture == nullptr ? 0
                           : expert_rows(*mixture) + mixture->experts.size() *
                                                         positive(std::max(mixture->hidden, mixture->width)) *
                                                         sizeof(double);
    const std::vector<MemoryItem> always = {{"program while it computes", kComputingBytes},
                                            {"activations of all samples and of one chunk", stream()},
                                            {"a block as prepared", weights * element_},
                                            {"stage buffers, and rows of experts", stages() + routed}};
    for (const MemoryItem& item :
         {MemoryItem{"one linear in FP32", std::max(largest * 4, largest_apart_)},
          MemoryItem{"one chunk of inputs, to be squared", chunk_ * wide() * element_}}) {
      moments.push_back(with_base(always));
      moments.back().push_back(item);
    }
  }
  return moments;
}

// While candidates are measured: the numbers of the linears that read what `linear` reads, beside its own,
// where a scale is looked for that all of them share.
std::uint64_t PeakMemory::read_together(const BlockSpec& block, const LinearSpec& linear) const {
  if (!measures_by_method_ || !searches() || !is_planned(linear) ||
      std::holds_alternative<MixtureSpec>(block.sublayer_of(linear.site).mixer))
    return 0;
  std::uint64_t bytes = 0;
  for (const LinearId reader : block.at(linear.site).readers)
    if (reader != linear.id && is_planned(block.at(reader))) bytes += weights_of(block.at(reader)) * 4;
  return bytes;
}

std::vector<std::vector<MemoryItem>> PeakMemory::measuring(std::int64_t measured) const {
  // Of several ranks this one has some of the chunks, and carries some of the forks.
  const std::uint64_t of_all = std::min(positive(measured) * length_, all_tokens_),
                      tokens = ranks_ < 2 ? of_all
                                          : std::min(of_all, ((of_all + chunk_ - 1) / chunk_ + ranks_ - 1) /
                                                                 ranks_ * chunk_),
                      few = std::min(tokens, chunk_), hidden = positive(spec_.hidden_size);
  const std::int64_t probe = kProbeSamples * std::min(kProbeLength, static_cast<std::int64_t>(length_));
  const MemoryItem measured_samples{"activations of the measured samples",
                                    samples({tokens, few, few, tokens, 0})},
      probes{"a stream of probes for each group of linears",
             ProbeStreams::bytes(spec_, compute_, probe,
                                 probe_streams(groups_of(spec_), static_cast<std::int64_t>(ranks_)))};
  std::uint64_t buffers = 0;
  std::vector<std::vector<MemoryItem>> moments;
  for (const BlockSpec& block : spec_.blocks) {
    std::uint64_t weights = 0, rounded = 0, worked_on = 0;
    for (const std::uint64_t n : forked_weights(block)) rounded += n;
    for (const LinearSpec& linear : block.linears) {
      const std::uint64_t n = weights_of(linear), k = positive(linear.in_features);
      weights += n;
      const std::uint64_t by_method = measures_by_method_ ? factors(k) + n : 0;
      worked_on = std::max(
          {worked_on, seen(k), judge(k) + read_together(block, linear) + n * (4 + 1 + 4) + by_method});
    }
    // The sums of as many experts as go at once lie beside what is worked on.
    std::uint64_t experts = 0;
    if (const MixtureSpec* const mixture = block.mixture(); mixture != nullptr)
      for (const std::int64_t channels : {mixture->hidden, mixture->width})
        experts = std::max(experts,
                           experts_at_once_ * summed_triangle(positive(channels)) +
                               std::max(positive(channels) * positive(channels) * 4 + expert_rows(*mixture),
                                        bands(positive(channels) * positive(channels + 1) / 2)));
    buffers = std::max(buffers, scratch(block));
    moments.push_back(with_base(
        {{"program while it computes", kComputingBytes},
         measured_samples,
         probes,
         {"stage buffers", scratch(block)},
         {"a block as prepared, and rounded", (weights + rounded) * element_},
         {"Gram triangles of experts, the sum of a chunk and one expert's rows", experts},
         {"Gram triangle, its square; or a linear, its codes, dequantized; and factors", worked_on}}));
  }
  const std::uint64_t vocabulary = positive(spec_.vocab_size);
  moments.push_back(with_base(
      {{"program while it computes", kComputingBytes},
       measured_samples,
       probes,
       {"stage buffers", buffers},
       {"the head, stored and prepared", vocabulary * hidden * (2 + element_)},
       {"logits, and those of the original", ProbeStreams::scoring_bytes(spec_, compute_, probe)}}));
  return moments;
}

}  // namespace llmq
