// The moments of a device that has memory of its own: what lies there beside a half of a block, one thing
// after another.
#include "quant/plan/peak_memory.h"

#include "calibration/row_sample.h"
#include "device/backend_scratch.h"
#include "quant/methods/awq/clip_search.h"
#include "quant/methods/gptq/device_rows.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/smoothquant/device_rows.h"

namespace llmq {

// As DeviceSamples has them; of the chunks of the device that has most.
std::uint64_t PeakMemory::device_samples(std::uint64_t tokens, bool keeps_inputs) const {
  if (tokens == 0) return 0;
  const std::uint64_t chunks = (tokens + chunk_ - 1) / chunk_,
                      held_tokens = std::min(tokens, (chunks + lanes_ - 1) / lanes_ * chunk_);
  const std::uint64_t paged =
      chunk_ / length_ * positive(sample_pages(static_cast<std::int64_t>(length_)) * kPageTokens);
  return samples({in_file_ || on_host_ ? chunk_ : held_tokens, chunk_, paged,
                  keeps_inputs ? held_tokens : chunk_, held_tokens});
}

// Partial results, of the block that has most in a row; BF16 alone has them.
std::uint64_t PeakMemory::attention() const {
  if (compute_ == Compute::kFloat32) return 0;
  std::uint64_t row = 1;
  for (const BlockSpec& block : spec_.blocks)
    if (const auto attention = block.attention_sizes())
      row = std::max(row, attention_row_bytes(attention->heads, attention->head_dim,
                                              static_cast<std::int64_t>(length_)));
  return row * std::min(std::max<std::uint64_t>(chunk_, 1), attention_rows_at_once(row, device_scratch_));
}

// Differences in one call, of an input: a search judges all its readers' rows, a loss those of one.
std::uint64_t PeakMemory::judged_numbers(const BlockSpec& block, SiteId site) const {
  std::uint64_t k = 1, all = 0, largest = 0;
  for (const LinearSpec& linear : block.linears) {
    if (linear.site != site || !is_planned(linear)) continue;
    k = std::max(k, positive(linear.in_features));
    all += positive(linear.out_features);
    largest = std::max(largest, positive(linear.out_features));
  }
  return std::min(positive(GramLoss::rows_at_once(static_cast<std::int64_t>(k), device_scratch_)),
                  searches() ? all : largest) *
         k;
}

// A prepared Gram square, the differences and, for a search, the weights that they are made of.
std::uint64_t PeakMemory::judge_on_device(const BlockSpec& block, SiteId site) const {
  std::uint64_t k = 0;
  for (const LinearSpec& linear : block.linears)
    if (linear.site == site) k = std::max(k, positive(linear.in_features));
  return element_ * k * k + judged_numbers(block, site) * (searches() ? 4 + 4 : 4);
}

// What SmoothQuant's search judges: sampled rows of an input and of its readers.
std::uint64_t PeakMemory::sampled_rows_on_device(const BlockSpec& block, SiteId site) const {
  SmoothSizes sizes{std::min(tokens_, positive(RowSample::kWanted)), 0, 0, 1};
  std::uint64_t all = 0;
  for (const LinearSpec& linear : block.linears) {
    if (linear.site != site || !is_planned(linear)) continue;
    all += positive(linear.out_features);
    sizes.channels = positive(linear.in_features);
    if (planned_.at(linear.module).activation_scale == ActivationScale::kTokenGroup)
      sizes.groups = positive(planned_.at(linear.module).groups_of(linear.in_features));
  }
  sizes.weights = (all + sampled_stride(all) - 1) / sampled_stride(all);
  return device_smooth_bytes(sizes);
}

std::uint64_t PeakMemory::clip_search(const LinearSpec& linear) const {
  if (!clips_) return 0;
  const QuantScheme& scheme = planned_.at(linear.module);
  return clip_search_device_bytes(linear.out_features,
                                  std::min(scheme.group_of(linear.in_features), linear.in_features),
                                  scheme.symmetric, element_, device_scratch_);
}

std::vector<std::vector<MemoryItem>> PeakMemory::device_sublayer(const BlockSpec& block,
                                                                 const SublayerSpec& part) const {
  if (const auto* const mixture = std::get_if<MixtureSpec>(&part.mixer))
    return device_mixture(block, *mixture, joined(block, part));
  std::vector<std::vector<MemoryItem>> moments;
  for (const LinearId output : part.outputs()) {
    const auto own = device_output(block, part, block.at(output));
    moments.insert(moments.end(), own.begin(), own.end());
  }
  return moments;
}

std::vector<std::vector<MemoryItem>> PeakMemory::device_output(const BlockSpec& block,
                                                               const SublayerSpec& part,
                                                               const LinearSpec& reader) const {
  const SiteId outer = part.sites.front();
  std::vector<const LinearSpec*> linears = {&reader};
  for (const LinearId other : part.outputs())
    if (other != reader.id) linears.push_back(&block.at(other));
  for (const LinearSpec& linear : block.linears)
    if (part.reads_before_outputs(linear)) linears.push_back(&linear);
  std::uint64_t prepared = joined(block, part) * element_, largest = 0;
  for (const LinearSpec* const linear : linears) {
    prepared += weights_of(*linear) * element_;
    largest = std::max(largest, weights_of(*linear) * element_);
  }
  std::vector<std::vector<MemoryItem>> moments;
  const auto add = [&](const char* what, std::uint64_t bytes, std::uint64_t weights) {
    moments.push_back(
        {{"activations of the samples and of one chunk", device_samples(tokens_, keeps_inputs_)},
         {"the original model's samples", device_samples(original_tokens_, false)},
         {"half a block as prepared", weights},
         {what, bytes}});
  };
  // The new one is there before the old one goes; in BF16 its numbers, too, until they are in the order of
  // the matrix units.
  const std::uint64_t exchanged = prepared + largest * (compute_ == Compute::kBFloat16 ? 2 : 1);
  const std::uint64_t h = positive(spec_.hidden_size),
                      outside = searches() ? judge_on_device(block, outer) : 0;
  // The sum of a chunk in FP32, and of all of the device's in FP64.
  const std::uint64_t widest = std::max(h, positive(reader.in_features));
  add("stage buffers, a chunk's Gram sum and that of all",
      outside + stages() + attention() + widest * widest * 4 + summed_triangle(widest), prepared);
  if (judges_rows_)
    for (const SiteId site : {outer, reader.site})
      add("a prepared Gram square and rows that a search judges",
          judge_on_device(block, outer) + sampled_rows_on_device(block, site), prepared);
  for (const LinearSpec* const linear : linears) {
    if (!is_planned(*linear)) continue;
    const std::uint64_t k = positive(linear->in_features),
                        beside = (linear == &reader ? outside : 0) + judge_on_device(block, linear->site);
    // While the square itself is prepared, or when a rounded linear is.
    const std::uint64_t products = judged_numbers(block, linear->site) * (4 + 2),
                        packing = compute_ == Compute::kBFloat16 ? k * k * 2 : 0;
    add("a prepared Gram square and rows that are judged",
        beside + std::max({products, clip_search(*linear), packing}), prepared);
    add("a prepared Gram square, while a rounded linear is prepared", beside, exchanged);
    if (!factorizes_) continue;
    add("a prepared Gram square and what is factorized (FP64)",
        beside + gptq_factor_device_bytes(k, lanes_ == 1), prepared);
    add("a prepared Gram square, GPTQ's panels and rows",
        beside + gptq_device_bytes(positive(linear->out_features), k, device_scratch_) + products, prepared);
  }
  if (original_tokens_ == 0) return moments;
  const UpstreamSizes sizes = upstream(reader);
  add("what the output lacks and its products", judge_on_device(block, reader.site) + sizes.chunk_on_device(),
      prepared);
  add("what solves for what the output lacks (FP64)",
      judge_on_device(block, reader.site) + sizes.solving_on_device(device_scratch_), prepared);
  add("the original's weights and stage buffers", stages() + attention(), 2 * prepared + largest);
  return moments;
}

std::vector<std::vector<MemoryItem>> PeakMemory::on_device() const {
  std::vector<std::vector<MemoryItem>> moments;
  for (const BlockSpec& block : spec_.blocks)
    for (const SublayerSpec& part : block.sublayers) {
      const auto own = device_sublayer(block, part);
      moments.insert(moments.end(), own.begin(), own.end());
    }
  return moments;
}

}  // namespace llmq
