// What is held while the experts of a mixture are calibrated: the sums of as many as go at once, then their
// Gram matrices while one expert after another is rounded (quant/pipeline/experts/mixture_quantizer.h). Where
// scales are searched, gate and up of as many lie on the device before they are rounded: all of them do then.
#include "calibration/row_sample.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/methods/gptq/device_rows.h"
#include "quant/methods/gram_loss.h"
#include "quant/plan/peak_memory.h"

namespace llmq {
namespace {

// The inputs that the linears of a mixture have, and of how many of them sums are collected at once.
struct ExpertInputs {
  std::uint64_t channels = 0, rows = 0, linears = 0, at_once = 0;
};

std::vector<ExpertInputs> inputs_of(const MixtureSpec& mixture, std::uint64_t at_once) {
  const auto hidden = static_cast<std::uint64_t>(mixture.hidden),
             width = static_cast<std::uint64_t>(mixture.width),
             shared = static_cast<std::uint64_t>(mixture.shared_width);
  std::vector<ExpertInputs> inputs = {{hidden, width, 2, at_once}, {width, hidden, 1, at_once}};
  if (shared != 0) {
    inputs.push_back({hidden, shared, 2, 1});
    inputs.push_back({shared, hidden, 1, 1});
  }
  return inputs;
}

// Rows of gate and up of all experts that the search of the scale at their input judges at once.
std::uint64_t sampled_rows(const MixtureSpec& mixture) {
  const std::int64_t rows = 2 * (static_cast<std::int64_t>(mixture.experts.size()) * mixture.width +
                                 mixture.shared_width),
                     smallest =
                         mixture.shared ? std::min(mixture.width, mixture.shared_width) : mixture.width;
  return static_cast<std::uint64_t>(rows / scale_sample_stride(rows, smallest) + 1);
}

}  // namespace

std::uint64_t PeakMemory::expert_rows(const MixtureSpec& mixture) const {
  const std::uint64_t width = positive(std::max(mixture.width, mixture.shared_width)),
                      read = 4 + element_ + (mixture.weighs_input ? 4 : 0);
  return chunk_ *
         (positive(mixture.hidden) * read + width * (4 + 4 + element_) + mixture.experts.size() * (4 + 4));
}

// Of as many experts as go at once, as prepared.
std::uint64_t PeakMemory::originals(const MixtureSpec& mixture) const {
  return experts_at_once_ * 3 * positive(mixture.hidden) * positive(mixture.width) * element_;
}

void PeakMemory::add_mixture(const BlockSpec& block, const MixtureSpec& mixture, std::uint64_t joined,
                             std::vector<std::vector<MemoryItem>>& moments) const {
  bool rounds_inputs = false;
  std::uint64_t prepared = joined * element_, planned = 0, scaled = 0, largest = 0;
  for (const LinearId id : mixture.linears()) {
    const LinearSpec& linear = block.at(id);
    prepared += weights_of(linear) * element_;
    planned += is_planned(linear) ? 1 : 0;
    rounds_inputs = rounds_inputs || (is_planned(linear) &&
                                      planned_.at(linear.module).activation_scale != ActivationScale::kNone);
    largest = std::max(largest, weights_of(linear));
    if (searches() && !linear.quantizable) scaled += weights_of(linear) * 4;
  }
  if (searches()) scaled += (mixture.experts.size() * positive(mixture.width) + positive(mixture.hidden)) * 4;
  const std::uint64_t h = positive(mixture.hidden),
                      sampled = rounds_inputs ? positive(RowSample::kWanted) * 4 : 0;  // of each channel
  const auto add = [&](const char* what, std::uint64_t bytes, std::uint64_t grams, std::uint64_t rows) {
    moments.push_back(with_base(
        {{"program while it computes", kComputingBytes},
         {"activations of all samples and of one chunk", has_own_memory_ ? held(tokens_) : stream()},
         {"the original model's samples", has_own_memory_ ? held(original_tokens_) : original()},
         {"experts as prepared", unless_on_device(prepared * (original_tokens_ != 0 ? 2 : 1))},
         {"stage and search buffers",
          has_own_memory_ ? 2 * static_cast<std::uint64_t>(GramLoss::kHostBytes) : scratch(block)},
         {"one expert's rows of a chunk", unless_on_device(expert_rows(mixture))},
         {"Gram triangles of experts and of all rows (FP64)", grams},
         {"routers that a fold scaled, until they are written, and experts' scales (FP32)", scaled},
         {"sampled rows of experts and of all rows (FP32)", rows},
         {what, bytes}}));
  };
  add("nothing beside what the samples pass", 0, 0, 0);
  if (planned == 0) return;
  if (searches())
    add("a Gram square, prepared, a sample of the experts' rows and one linear",
        4 * h * h + unless_on_device(element_ * h * h) + sampled_rows(mixture) * h * 4 + largest * 4,
        h * h * 4, sampled * h);
  add("the original experts of a pass beside the rounded ones, and what both give",
      unless_on_device(originals(mixture)) + 3 * h * positive(mixture.width) * 4 + 2 * chunk_ * h * 4, 0, 0);
  for (const ExpertInputs& input : inputs_of(mixture, experts_at_once_)) {
    const std::uint64_t k = input.channels, n = k * input.rows,
                        grams = input.at_once * summed_triangle(k) + summed_triangle(h),
                        rows = sampled * (input.at_once * k + h);
    add("the sum of an expert's rows of a chunk (FP32)", unless_on_device(k * k * 4) + bands(k * (k + 1) / 2),
        grams, rows);
    // The square beside its triangle; then linears in FP32, as they were and scaled, codes, twice where two
    // are compared, and what is dequantized and prepared again, or factors.
    const std::uint64_t linears = input.linears * n * (searches() ? 8 : 4);
    add("a Gram square, prepared, and an expert that is rounded",
        4 * k * k + unless_on_device(element_ * k * k) + linears + n +
            std::max(n + factors(k), n * (4 + element_)),
        grams, rows);
  }
}

std::vector<std::vector<MemoryItem>> PeakMemory::device_mixture(const BlockSpec& block,
                                                                const MixtureSpec& mixture,
                                                                std::uint64_t joined) const {
  std::uint64_t prepared = joined * element_, clipping = 0;
  for (const LinearId id : mixture.linears()) {
    prepared += weights_of(block.at(id)) * element_;
    if (is_planned(block.at(id))) clipping = std::max(clipping, clip_search(block.at(id)));
  }
  std::vector<std::vector<MemoryItem>> moments;
  const auto add = [&](const char* what, std::uint64_t bytes) {
    moments.push_back(
        {{"activations of the samples and of one chunk", device_samples(tokens_, keeps_inputs_)},
         {"the original model's samples", device_samples(original_tokens_, false)},
         {"experts as prepared", prepared * (original_tokens_ != 0 ? 2 : 1)},
         {"stage buffers and one expert's rows of a chunk", stages() + attention() + expert_rows(mixture)},
         {what, bytes}});
  };
  const std::uint64_t h = positive(mixture.hidden);
  const auto judged = [&](std::uint64_t k, std::uint64_t rows) {
    return element_ * k * k +
           (k * 4 + k * 4 + k * 2) *
               std::min(positive(GramLoss::rows_at_once(static_cast<std::int64_t>(k), device_scratch_)),
                        rows);
  };
  add("the original experts of a pass beside the rounded ones", originals(mixture));
  if (searches())
    add("a prepared Gram square and rows that a search judges", judged(h, sampled_rows(mixture)));
  for (const ExpertInputs& input : inputs_of(mixture, experts_at_once_)) {
    const std::uint64_t k = input.channels, n = k * input.rows;
    // The sum of a chunk in FP32, one after another, and those of all chunks in FP64.
    add("experts' sums", input.at_once * summed_triangle(k) + k * k * 4);
    add("a prepared Gram square, and a rounded linear or what rounds it",
        judged(k, input.rows) +
            std::max({2 * n * element_, gptq_factor_device_bytes(k, lanes_ == 1), clipping,
                      gptq_device_bytes(static_cast<std::int64_t>(input.rows), static_cast<std::int64_t>(k),
                                        device_scratch_)}));
  }
  return moments;
}

}  // namespace llmq
