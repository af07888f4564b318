#include "quant/plan/disk_reads.h"

#include <algorithm>
#include <set>

#include "base/checked.h"
#include "export/formats/fused_linears.h"
#include "model/packed/unpacked.h"
#include "quant/mixed_precision/sensitivity.h"
#include "quant/pipeline/upstream_error.h"
#include "quant/plan/replaced_weights.h"

namespace llmq {
namespace {

std::uint64_t count(std::int64_t value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

// Rows of the table for so many tokens, all held at once.
std::uint64_t embedding_bytes(const StoredTensor& table, std::uint64_t tokens) {
  const std::uint64_t row = table.view.bytes() / std::max<std::uint64_t>(count(table.view.rows()), 1);
  const bool aligned = row % kIoBlock == 0 && table.offset % kIoBlock == 0;
  return std::min(tokens * (round_up(row, kIoBlock) + (aligned ? 0 : kIoBlock)),
                  Checkpoint::bytes_to_read(table));
}

// What a reading counts that is not the first.
std::uint64_t bytes_again(const StoredTensor& tensor) {
  return Checkpoint::bytes_to_read(tensor) - Checkpoint::bytes_kept(tensor);
}

class Readings {
 public:
  Readings(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec)
      : checkpoint_(checkpoint),
        spec_(spec),
        packed_(replaced_weights(plan.packed(), spec)),
        folded_(plan.traits->folds ? spec.never_quantized() : std::set<std::string>()),
        searches_(plan.traits->searches_by_gram) {}

  // Looked at and copied at once; what folds may change is small, or looked at, used and copied.
  std::uint64_t dense() const {
    std::uint64_t bytes = 0;
    for (const StoredTensor& tensor : checkpoint_.tensors()) {
      if (packed_.count(tensor.name) != 0) continue;
      const bool again =
          tensor.view.shape.rank() < 2 || !tensor.in_order() || folded_.count(tensor.name) != 0;
      bytes += Checkpoint::bytes_to_read(tensor) + (again ? 2 * bytes_again(tensor) : 0);
    }
    return bytes;
  }

  enum class Of : std::uint8_t { kPlanned, kLeftAlone, kAll };
  // Linears of the blocks from `first` up to `last`.
  std::uint64_t linears(Of which, std::int64_t first, std::int64_t last) const {
    std::uint64_t bytes = 0;
    for (std::int64_t b = first; b < last; ++b)
      for (const LinearSpec& linear : spec_.blocks[count(b)].linears) {
        const StoredTensor* tensor = checkpoint_.find(linear.weight.tensor);
        const bool planned = packed_.count(linear.weight.tensor) != 0;
        if (tensor == nullptr || (which == Of::kPlanned && !planned) || (which == Of::kLeftAlone && planned))
          continue;
        bytes += bytes_again(*tensor);
      }
    return bytes;
  }

  // What a search of scales reads of experts' linears before they are quantized, at most: gate and up while
  // rows are sampled, judged, judged again by the stored gain, and lent; outputs while they are sampled and
  // judged (quant/pipeline/experts/mixture_quantizer.h).
  std::uint64_t searched_experts(std::int64_t first, std::int64_t last) const {
    std::uint64_t bytes = 0;
    for (std::int64_t b = first; b < last && searches_; ++b) {
      const BlockSpec& block = spec_.blocks[count(b)];
      const MixtureSpec* const mixture = block.mixture();
      if (mixture == nullptr) continue;
      for (const LinearId id : mixture->linears()) {
        const StoredTensor* tensor = checkpoint_.find(block.at(id).weight.tensor);
        if (tensor == nullptr || packed_.count(tensor->name) == 0) continue;
        bytes += bytes_again(*tensor) * (block.at(id).site == mixture->input ? 4 : 2);
      }
    }
    return bytes;
  }

  // Linears that share the number above their scales with others, once more, to find it before the first of
  // them is rounded (quant/pipeline/rounding/block_rounding.cpp).
  std::uint64_t sharing_scales(std::span<const PlannedModule> modules, std::int64_t first) const {
    std::set<std::string> names, two_level;
    for (const PlannedModule& m : modules) {
      names.insert(m.module);
      if (m.scheme.scale_form() == ScaleForm::kTwoLevel) two_level.insert(m.module);
    }
    std::uint64_t bytes = 0;
    for (std::size_t b = count(first); b < spec_.blocks.size() && !two_level.empty(); ++b)
      for (const LinearSpec& linear : spec_.blocks[b].linears) {
        const StoredTensor* tensor = checkpoint_.find(linear.weight.tensor);
        if (tensor != nullptr && two_level.count(linear.module) != 0 &&
            fused_linear(linear.module, names).parts > 1)
          bytes += bytes_again(*tensor);
      }
    return bytes;
  }

  // Of a tower that is rounded.
  std::uint64_t tower(std::span<const PlannedModule> modules) const {
    std::uint64_t bytes = 0;
    for (const PlannedModule& m : modules)
      bytes += Checkpoint::bytes_to_read(checkpoint_.at(m.module + ".weight"));
    return bytes;
  }

  // Experts' linears once more, for what the experts give beside what the original ones do
  // (quant/pipeline/experts/expert_error.cpp).
  std::uint64_t judged_experts(std::int64_t first, std::int64_t last) const {
    std::uint64_t bytes = 0;
    for (std::int64_t b = first; b < last; ++b) {
      const BlockSpec& block = spec_.blocks[count(b)];
      const MixtureSpec* const mixture = block.mixture();
      if (mixture == nullptr) continue;
      for (const ExpertSpec& expert : mixture->experts)
        for (const LinearId id : expert.linears()) {
          const StoredTensor* tensor = checkpoint_.find(block.at(id).weight.tensor);
          if (tensor != nullptr && packed_.count(tensor->name) != 0) bytes += bytes_again(*tensor);
        }
    }
    return bytes;
  }

  // Planned linears of `first` and later blocks that are small enough to be kept from their first reading on.
  std::uint64_t kept_linears(std::int64_t first) const {
    std::uint64_t bytes = 0;
    for (std::size_t b = count(first); b < spec_.blocks.size(); ++b)
      for (const LinearSpec& linear : spec_.blocks[b].linears)
        if (const StoredTensor* tensor = checkpoint_.find(linear.weight.tensor);
            tensor != nullptr && packed_.count(tensor->name) != 0)
          bytes += Checkpoint::bytes_kept(*tensor);
    return bytes;
  }

  // Of an untied head values are looked at before they are used.
  std::uint64_t head() const {
    const StoredTensor& tensor = checkpoint_.at(spec_.head);
    return bytes_again(tensor) * (spec_.head == spec_.embedding.tensor ? 1 : 2);
  }

 private:
  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  std::set<std::string> packed_, folded_;
  bool searches_;
};

// Which chunks the original model passes too, where upstream error is taken back: every so many; 0: none.
std::int64_t original_chunks(const Plan& plan) {
  if (!takes_back_upstream(plan)) return 0;
  const CalibrationRequest& c = plan.calibration;
  return original_stride(c.samples, c.sequence_length, plan.chunk_tokens);
}

}  // namespace

std::uint64_t embedding_row_reads(const Checkpoint& checkpoint, const ModelSpec& spec,
                                  std::int64_t chunk_tokens, std::int64_t samples, std::int64_t length,
                                  std::int64_t stride) {
  const StoredTensor& table = checkpoint.at(spec.embedding.tensor);
  if (Checkpoint::is_kept(table)) return 0;
  const std::int64_t per_chunk = std::max<std::int64_t>(1, chunk_tokens / length),
                     chunks = (samples + per_chunk - 1) / per_chunk;
  return count((chunks + stride - 1) / stride) *
         embedding_bytes(table, count(std::min(per_chunk, samples) * length));
}

std::vector<ReadPass> read_passes(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                                  const DoneBefore& before) {
  using Of = Readings::Of;
  const Readings readings(plan, checkpoint, spec);
  const auto blocks = static_cast<std::int64_t>(spec.blocks.size());
  const std::int64_t finished = before.blocks;
  const bool measures = plan.target_bits && !before.measured;
  std::vector<ReadPass> passes;
  const auto add = [&](const char* what, std::uint64_t bytes) {
    if (bytes != 0) passes.push_back({what, bytes});
  };
  const CalibrationRequest& c = plan.calibration;
  const std::int64_t stride = original_chunks(plan);
  if (measures) {
    add("mixed precision: every linear's forward pass", readings.linears(Of::kAll, 0, blocks));
    add("mixed precision: every candidate's rounding", readings.linears(Of::kPlanned, 0, blocks));
    add("mixed precision: embedding rows",
        embedding_row_reads(checkpoint, spec, plan.chunk_tokens, std::min(plan.measured_samples, c.samples),
                            c.sequence_length) +
            embedding_row_reads(checkpoint, spec, plan.chunk_tokens, kProbeSamples, kProbeLength));
    add("mixed precision: head", readings.head());
  }
  add("dense tensors, checked and copied", readings.dense());
  if (plan.needs_calibration && finished < blocks) {
    add("embedding rows",
        embedding_row_reads(checkpoint, spec, plan.chunk_tokens, c.samples, c.sequence_length));
    add("linears left alone, of finished blocks", readings.linears(Of::kLeftAlone, 0, finished));
    add("linears left alone", readings.linears(Of::kLeftAlone, finished, blocks));
    if (stride != 0) {
      add("the original model: embedding rows",
          embedding_row_reads(checkpoint, spec, plan.chunk_tokens, c.samples, c.sequence_length, stride));
      add("the original model: every linear's forward pass", readings.linears(Of::kAll, 0, blocks));
    }
  }
  const bool all_are_read = measures || (finished < blocks && stride != 0);
  add("small linears, kept", readings.kept_linears(all_are_read ? 0 : finished));
  if (finished == 0) add("the tower's linears to round", readings.tower(plan.tower));
  add("experts' linears, while scales are searched", readings.searched_experts(finished, blocks));
  add("linears to quantize", readings.linears(Of::kPlanned, finished, blocks));
  if (plan.needs_calibration)
    add("experts' linears, for what they give beside the original ones",
        readings.judged_experts(finished, blocks));
  else
    add("linears to quantize, for the scales that they share",
        readings.sharing_scales(plan.modules, finished));
  return passes;
}

std::uint64_t held_bytes(const Checkpoint& checkpoint, const ModelSpec& spec,
                         const std::set<std::string>& whole, std::int64_t embedded) {
  if (!checkpoint.holds_in_memory()) return 0;
  std::uint64_t kept = 0, largest = embedding_bytes(checkpoint.at(spec.embedding.tensor), count(embedded));
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (tensor.unpacking) {  // what it is made of, one tensor after another
      kept += Checkpoint::bytes_kept(tensor);
      if (const ChangedNumbers* const changed = changed_numbers(tensor)) kept += changed->bytes_kept_beside();
      largest = std::max(largest, tensor.bytes_on_disk());
      continue;
    }
    const std::uint64_t bytes = tensor.stored_bytes(),
                        each = bytes / std::max<std::uint64_t>(count(tensor.view.shape.elements()), 1);
    if (Checkpoint::is_kept(tensor)) kept += round_up(bytes, kIoBlock) + kIoBlock;
    largest = std::max(largest, whole.count(tensor.name) != 0
                                    ? bytes
                                    : std::min(bytes, each * count(Checkpoint::kBandElements)));
  }
  return kept + largest + Checkpoint::kReadAheadBytes;
}

std::uint64_t held_bytes(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec) {
  std::set<std::string> planned, whole;
  for (const PlannedModule& m : plan.modules) planned.insert(m.module);
  // A linear that is not to be quantized is held whole while it is prepared; of all others a band is.
  const bool every_linear = original_chunks(plan) != 0 || plan.target_bits.has_value();
  for (const PlannedModule& m : plan.tower) whole.insert(m.module + ".weight");
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      if (every_linear || (plan.needs_calibration && planned.count(linear.module) == 0))
        whole.insert(linear.weight.tensor);
  if (plan.target_bits) whole.insert(spec.head);
  const std::int64_t chunk = std::max(plan.chunk_tokens, plan.calibration.sequence_length);
  return held_bytes(checkpoint, spec, whole, plan.needs_calibration ? chunk : 0);
}

}  // namespace llmq
