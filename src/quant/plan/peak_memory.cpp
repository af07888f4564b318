#include "quant/plan/peak_memory.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "calibration/input_stats.h"
#include "calibration/row_sample.h"
#include "device/backend_scratch.h"
#include "device/gram_rows.h"
#include "export/formats/packed_formats.h"
#include "export/output/model_writer.h"
#include "model/packed/unpacked.h"
#include "model/row_chunks.h"
#include "quant/methods/gptq/host_rows.h"
#include "quant/methods/gram_loss.h"
#include "quant/pipeline/pipeline.h"
#include "quant/pipeline/upstream_error.h"
#include "quant/plan/replaced_weights.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

// Measured: the resident pages of the program and its libraries, and their data.
constexpr std::uint64_t kProgramBytes = std::uint64_t{29} << 19;
// Of a calibrated run: what lies between the blocks of the heap (measured: 2 to 7 % of them).
constexpr std::uint64_t kHeapGaps = 25, kMostGaps = std::uint64_t{24} << 20;
// Measured on five vocabularies, per token: the tokenizer (140 to 180), and the tree of tokenizer.json while
// it is read (300 to 510).
constexpr std::uint64_t kTokenizerBytes = 160, kTokenizerTreeBytes = 430;
constexpr std::uint64_t kVocabularyBytes = 200;  // of a GGUF: pieces, merges, their bytes

// A chunk's sum on the device: a small one is kept, of a large one what lies above the diagonal is touched.
std::uint64_t kept_square(std::uint64_t k) { return is_recycled(k * k * 4) ? k * k * 4 : 0; }
std::uint64_t chunk_square(std::uint64_t k) { return is_recycled(k * k * 4) ? 0 : k * k * 2; }
// Codes until they are numbers, with a scale in FP32 and a zero for each 16: no group is smaller.
std::uint64_t unpacked_codes(std::uint64_t codes) { return codes + codes / 16 * 5; }
bool is_made_of_codes(const StoredTensor& tensor) {
  const ChangedNumbers* const changed = changed_numbers(tensor);
  return changed != nullptr ? changed->of_codes() : tensor.unpacking != nullptr;
}

}  // namespace

PeakMemory::PeakMemory(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads)
    : spec_(spec),
      format_(plan.format),
      keeps_inputs_(plan.keep_inputs),
      factorizes_(plan.traits->factorizes),
      samples_rows_(plan.traits->samples_rows),
      folds_(plan.traits->folds),
      judges_rows_(samples_rows_ && !plan.smoothquant.alpha),
      clips_(plan.traits->clips && plan.awq.clip),
      measures_by_method_(plan.measures_by_method()),
      in_file_(plan.activations_in_file),
      on_host_(plan.activations_on_host),
      has_own_memory_(plan.device_room.has_value()),
      joining_bytes_(plan.joining_bytes),
      ranks_(positive(plan.ranks)),
      device_scratch_(has_own_memory_ ? plan.device_room->scratch_bytes : 0),
      lanes_(has_own_memory_ ? std::max<std::uint64_t>(1, plan.devices.size()) : 1),
      compute_(plan.compute),
      experts_at_once_(positive(plan.experts_at_once)),
      element_(plan.compute == Compute::kBFloat16 ? 2 : 4),
      threads_(positive(threads)),
      length_(positive(plan.calibration.sequence_length)),
      all_tokens_(positive(plan.calibration.samples) * positive(plan.calibration.sequence_length)),
      tokens_(all_tokens_),
      chunk_(std::min(tokens_, positive(plan.chunk_tokens))) {
  for (const PlannedModule& m : plan.modules) planned_.emplace(m.module, m.scheme);
  for (const PlannedModule& m : plan.tower)
    largest_of_tower_ = std::max(largest_of_tower_, positive(m.out_features) * positive(m.in_features));
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      if (is_planned(linear)) largest_planned_ = std::max(largest_planned_, weights_of(linear));
  const std::set<std::string> replaced = replaced_weights(plan.packed(), spec);
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const std::uint64_t elements = positive(tensor.view.shape.elements());
    if (!tensor.unpacking)
      largest_band_ = std::max(largest_band_, copied_band_bytes(tensor));
    else if (!replaced.contains(tensor.name))  // is copied whole
      largest_band_ = std::max(
          largest_band_, elements * (4 + static_cast<std::uint64_t>(element_bytes(written_dtype(tensor)))));
    const ChangedNumbers* const changed = changed_numbers(tensor);
    if (changed != nullptr) beside_ = std::max(beside_, changed->bytes_beside());
    if ((changed != nullptr || !checkpoint.is_gguf()) && !tensor.in_order() && tensor.view.shape.rank() == 2)
      largest_apart_ =
          std::max(largest_apart_, elements * 4 + (is_made_of_codes(tensor) ? unpacked_codes(elements) : 0));
    slab_ = std::max(slab_, positive(std::min(tensor.view.shape.elements(), Checkpoint::kBandElements)));
  }
  if (plan.ranks > 1) tokens_ = std::min(tokens_, positive(plan.most_chunks()) * chunk_);
  if (!takes_back_upstream(plan)) return;
  const std::uint64_t stride = positive(
      original_stride(plan.calibration.samples, plan.calibration.sequence_length, plan.chunk_tokens));
  original_tokens_ = plan.ranks == 1 ? tokens_ / stride
                                     : std::min(tokens_, (tokens_ / chunk_ + stride - 1) / stride * chunk_);
}

std::vector<std::vector<MemoryItem>> PeakMemory::rounded() const {
  std::uint64_t largest = largest_of_tower_;
  for (const BlockSpec& block : spec_.blocks)
    for (const LinearSpec& linear : block.linears) largest = std::max(largest, weights_of(linear));
  const MemoryItem program = {"program while it computes", kComputingBytes};
  return {reading(), with_base({program, {"band of a tensor as it is copied", largest_band_}}),
          with_base({program,
                     {"one linear in FP32, and its codes", std::max(largest * 5, largest_apart_)},
                     written_meanwhile(),
                     {"stacks of a block until they are whole", stacks()}})};
}

std::uint64_t PeakMemory::stacks() const {
  if (!packed_format(format_).stacked) return 0;
  std::uint64_t most = 0;
  for (const BlockSpec& block : spec_.blocks) {
    std::uint64_t weights = 0;
    for (const LinearSpec& linear : block.linears)
      if (is_planned(linear)) weights += weights_of(linear);
    most = std::max(most, weights / 2 + weights / static_cast<std::uint64_t>(kMxfp4Block));
  }
  return most;
}

std::uint64_t PeakMemory::further_device() const {
  std::uint64_t most = 0;
  for (const BlockSpec& block : spec_.blocks)
    for (const SublayerSpec& part : block.sublayers) {
      std::uint64_t prepared = 0;
      for (const LinearSpec& linear : block.linears)
        if (part.reads_before_outputs(linear) || part.is_output(linear.id)) prepared += weights_of(linear);
      for (const LinearId output : part.outputs()) {
        const LinearSpec& reader = block.at(output);
        const std::uint64_t k = std::max(positive(reader.in_features), positive(spec_.hidden_size)),
                            square = k * k * 4;
        most = std::max(most, prepared * element_ + scratch(block) + square + k * k * element_ + one_chunk() +
                                  original_chunk() + (original_tokens_ != 0 ? upstream(reader).chunk() : 0));
      }
    }
  return most;
}

std::vector<std::vector<MemoryItem>> PeakMemory::calibrated() const {
  std::vector<std::vector<MemoryItem>> moments = {reading()};
  for (const BlockSpec& block : spec_.blocks)
    for (const SublayerSpec& part : block.sublayers) add_sublayer(block, part, moments);
  if (largest_of_tower_ != 0)
    moments.push_back(with_base(
        {{"program while it computes", kComputingBytes},
         {"activations of all samples and of one chunk", has_own_memory_ ? held(tokens_) : stream()},
         {"the original model's samples", has_own_memory_ ? held(original_tokens_) : original()},
         {"one linear of the tower in FP32, and its codes", largest_of_tower_ * 5}}));
  for (std::vector<MemoryItem>& moment : moments) {
    moment.push_back(written_meanwhile());
    moment.push_back({"between the heap's blocks", std::min(total_bytes(moment) / kHeapGaps, kMostGaps)});
  }
  return moments;
}

std::vector<std::vector<MemoryItem>> PeakMemory::gguf_file(bool calibrated, std::uint64_t gathered) const {
  const std::uint64_t vocabulary = positive(spec_.vocab_size),
                      chunk = samples({0, chunk_, chunk_, chunk_, 0});
  return {reading(),
          with_base({{"tokenizer.json again, for the file's vocabulary",
                      vocabulary * (kTokenizerBytes + kTokenizerTreeBytes + kVocabularyBytes)}}),
          with_base({{"the file's vocabulary", vocabulary * kVocabularyBytes},
                     {"stage and chunk buffers", calibrated ? stages() + chunk : 0},
                     {"a linear that is not stored as rows of numbers, in FP32", largest_apart_},
                     {"rows in FP32, as stored and rounded", slab_ * (4 + 2 + 2) + gathered}})};
}

MemoryItem PeakMemory::program() const {
  return {joining_bytes_ == 0 ? "program" : "program, and what joins its ranks",
          kProgramBytes + joining_bytes_};
}

std::vector<MemoryItem> PeakMemory::reading() const {
  return {program(), {"tokenizer.json while it is read", positive(spec_.vocab_size) * kTokenizerTreeBytes}};
}

std::vector<MemoryItem> PeakMemory::with_base(const std::vector<MemoryItem>& more) const {
  std::vector<MemoryItem> items = {program(), {"tokenizer", positive(spec_.vocab_size) * kTokenizerBytes}};
  if (beside_ != 0) items.push_back({"the adapter's matrices of a linear, while they are added", beside_});
  items.insert(items.end(), more.begin(), more.end());
  return items;
}

MemoryItem PeakMemory::written_meanwhile() const {
  return {"codes of the linear before, while it is packed",
          largest_planned_ * (1 + packed_format(format_).packing_bytes)};
}

std::uint64_t PeakMemory::wide() const { return positive(spec_.widest_inner()); }

std::uint64_t PeakMemory::samples(const DeviceSamples::Tokens& tokens) const {
  return DeviceSamples::bytes(spec_, compute_, tokens);
}

std::uint64_t PeakMemory::stream() const {
  return samples({in_file_ ? chunk_ : tokens_, chunk_, chunk_, keeps_inputs_ ? tokens_ : chunk_, tokens_});
}

std::uint64_t PeakMemory::held(std::uint64_t tokens) const {
  if (tokens == 0 || !(on_host_ || in_file_)) return 0;
  return samples({(in_file_ ? 0 : tokens) + chunk_, 0, 0, 0, 0});
}

std::uint64_t PeakMemory::one_chunk() const {
  return samples({in_file_ ? chunk_ : 0, chunk_, chunk_, chunk_, 0});
}

std::uint64_t PeakMemory::original() const {
  if (original_tokens_ == 0) return 0;
  return samples({in_file_ ? chunk_ : original_tokens_, chunk_, chunk_, chunk_, original_tokens_});
}

UpstreamSizes PeakMemory::upstream(const LinearSpec& last) const {
  return {positive(last.out_features), positive(last.in_features), chunk_, element_};
}

std::uint64_t PeakMemory::stage(std::uint64_t width) const {
  return std::min(positive(rows_at_once(row_chunks(device_scratch_), static_cast<std::int64_t>(width))),
                  chunk_) *
         width * 4;
}

std::uint64_t PeakMemory::stages() const {
  std::uint64_t most = 0;
  for (const BlockSpec& block : spec_.blocks) {
    std::uint64_t sum = 0;
    if (const DeltaSpec* const delta = block.delta()) sum += delta->state_bytes();
    for (const SublayerSpec& part : block.sublayers) {
      sum += stage(positive(part.row_floats()));
      if (!part.beside) continue;
      // Such a sublayer is run again as a whole: what both mixers read, and what they give.
      const std::int64_t inner = inner_width_of(part.mixer) + inner_width_of(*part.beside);
      sum += chunk_ * positive(spec_.hidden_size + inner) * element_;
    }
    most = std::max(most, sum);
  }
  // What a block has of its embedding is made from the residual stream before the first one.
  if (spec_.block_embedding)
    most +=
        chunk_ * (positive(spec_.hidden_size) * (4 + element_) + positive(spec_.block_embedding->width) * 8) +
        spec_.blocks.size() * positive(spec_.block_embedding->width) * positive(spec_.hidden_size) * 4;
  return most + stage(positive(spec_.hidden_size));
}

std::uint64_t PeakMemory::scratch(const BlockSpec& block) const {
  const std::uint64_t k = widest(block);
  return stages() + GramLoss::buffer_bytes(k, device_scratch_) + gram_packed_bytes(chunk_, k, element_) +
         threads_ * quadratic_form_bytes(k, element_) + kept_square(positive(spec_.hidden_size));
}

std::uint64_t PeakMemory::factors(std::uint64_t k) const {
  return factorizes_ ? gptq_host_bytes(k, threads_) : 0;
}

std::uint64_t PeakMemory::judge(std::uint64_t k) const {
  return 4 * k * k + unless_on_device(element_ * k * k);
}  // triangle and prepared

std::uint64_t PeakMemory::seen(std::uint64_t k) const {
  return std::max(summed_triangle(k) + std::max(unless_on_device(chunk_square(k)), bands(k * (k + 1) / 2)),
                  judge(k) + 4 * k * k);
}

std::uint64_t PeakMemory::widest(const BlockSpec& block) const {
  std::uint64_t k = 0;
  for (const LinearSpec& linear : block.linears)
    if (is_planned(linear)) k = std::max(k, positive(linear.in_features));
  return k;
}

const LinearSpec* PeakMemory::feeding(const BlockSpec& block, const LinearSpec& linear) {
  const auto* const made = std::get_if<LinearRows>(&block.at(linear.site).producer);
  return made == nullptr ? nullptr : &block.at(made->rows.linear);
}

std::uint64_t PeakMemory::waiting(const BlockSpec& block, const SublayerSpec& part, LinearId output) const {
  std::uint64_t sum = 0;
  bool behind = false;
  for (const LinearId other : part.outputs()) {
    const LinearSpec* const feeds = feeding(block, block.at(other));
    if (behind && feeds != nullptr && is_planned(*feeds)) sum += weights_of(*feeds);
    behind = behind || other == output;
  }
  return sum;
}

std::uint64_t PeakMemory::joined(const BlockSpec& block, const SublayerSpec& part) {
  if (!part.joined) return 0;
  const auto before = std::prev(std::find_if(block.sublayers.begin(), block.sublayers.end(),
                                             [&](const SublayerSpec& own) { return &own == &part; }));
  std::uint64_t sum = 0;
  for (const SiteId site : before->sites)
    for (const LinearId reader : block.at(site).readers) sum += weights_of(block.at(reader));
  return sum;
}

void PeakMemory::add_sublayer(const BlockSpec& block, const SublayerSpec& part,
                              std::vector<std::vector<MemoryItem>>& moments) const {
  if (const auto* const mixture = std::get_if<MixtureSpec>(&part.mixer))
    return add_mixture(block, *mixture, joined(block, part), moments);
  for (const LinearId output : part.outputs()) add_output(block, part, output, moments);
}

void PeakMemory::add_output(const BlockSpec& block, const SublayerSpec& part, LinearId output,
                            std::vector<std::vector<MemoryItem>>& moments) const {
  const SiteId outer = part.sites.front();
  const LinearSpec& reader = block.at(output);
  const LinearSpec* const feeds = feeding(block, reader);
  const std::uint64_t waits = waiting(block, part, output);
  const bool folds_behind = folds_ && feeds != nullptr;
  std::uint64_t prepared = joined(block, part) * element_, readers = 0, largest = 0,
                h = positive(block.at(outer).channels);
  for (const LinearSpec& linear : block.linears) {
    if (!part.reads_before_outputs(linear)) continue;
    h = std::max(h, positive(linear.in_features));
    prepared += weights_of(linear) * element_;
    if (!is_planned(linear)) continue;
    readers += weights_of(linear);
    largest = std::max(largest, weights_of(linear));
  }
  std::uint64_t scaled_dense = 0;
  for (const LinearSpec& linear : block.linears)
    if (folds_ && !linear.quantizable) scaled_dense += weights_of(linear) * 4;
  const std::uint64_t behind = is_planned(reader) ? weights_of(reader) : 0;
  if (behind == 0) prepared += weights_of(reader) * element_;
  for (const LinearId other : part.outputs())
    if (other != output) prepared += weights_of(block.at(other)) * element_;
  const std::uint64_t k = positive(reader.in_features);
  // Rows to be judged, on their way to each device.
  const std::uint64_t staged = (judged_numbers(block, outer) + judged_numbers(block, reader.site)) * 4;
  const std::uint64_t sampled = samples_rows_ ? positive(RowSample::kWanted) * std::max(h, k) * 4 : 0;
  const auto add = [&](LinearsInWork work, std::uint64_t gram, std::uint64_t factors) {
    // Codes, twice where two are compared; then dequantized and prepared again, when the factors are gone.
    const std::uint64_t rounded = work.made + std::max(work.made + factors, work.made * (4 + element_));
    moments.push_back(with_base(
        {{"program while it computes", kComputingBytes},
         {"activations of all samples and of one chunk", has_own_memory_ ? held(tokens_) : stream()},
         {"the original model's samples", has_own_memory_ ? held(original_tokens_) : original()},
         {"half a block as prepared", unless_on_device(prepared)},
         {"stage and search buffers",
          has_own_memory_ ? std::max(2 * static_cast<std::uint64_t>(GramLoss::kHostBytes), lanes_ * staged)
                          : scratch(block)},
         {"rows on their way to and from a device", has_own_memory_ && factorizes_ ? 2 * device_scratch_ : 0},
         {"linears worked on, as they were and scaled (FP32)", work.same * 4 + work.scaled * 8},
         {"codes, then dequantized and prepared again; or the rounding's factors", rounded},
         {"Gram triangles (FP64), their squares (FP32) and prepared", gram},
         {"sampled rows of one input (FP32)", sampled}}));
    if (scaled_dense != 0)
      moments.back().push_back(
          {"dense linears that folds scaled, until they are written (FP32)", scaled_dense});
  };
  if (readers != 0) {
    add({readers, 0, 0}, seen(h), 0);
    add({folds_ ? 0 : readers, folds_ ? readers : 0, largest}, judge(h), factors(h));
  }
  if (behind == 0) return;  // nobody asks for its input
  if (folds_behind) {
    const std::uint64_t before = is_planned(*feeds) ? weights_of(*feeds) : 0,
                        outside = readers == 0 ? 0 : judge(h);
    add({behind, before + waits, 0}, outside + seen(k), 0);
    add({0, before + behind + waits, 0}, outside + judge(k), 0);
  }
  const bool scaled = folds_behind || original_tokens_ != 0;
  const std::uint64_t kept = waits == 0 ? 0 : judge(h);  // with the linears that wait
  add({folds_behind ? 0 : behind, (folds_behind ? behind : 0) + waits, 0}, kept + seen(k), 0);
  add({scaled ? 0 : behind, (scaled ? behind : 0) + waits, behind}, kept + judge(k), factors(k));
  if (original_tokens_ == 0) return;
  add({0, behind, 0}, judge(k), 0);
  const UpstreamSizes upstream_sizes = upstream(reader);
  moments.back().push_back(
      {"what the output lacks, its products, or what solves them",
       upstream_sizes.sums() + std::max({upstream_sizes.chunk(), upstream_sizes.solving(),
                                         bands(upstream_sizes.out * upstream_sizes.channels)})});
}

}  // namespace llmq
