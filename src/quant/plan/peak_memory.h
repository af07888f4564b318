// What a run holds at the moments that can be its peak: in the host's memory, and in that of a device which
// has memory of its own.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "calibration/joined_sums.h"
#include "io/checkpoint.h"
#include "quant/pipeline/device_samples.h"
#include "quant/pipeline/upstream_error.h"
#include "quant/plan/plan_costs.h"
#include "tensor/exact_sums.h"

namespace llmq {

// The moments of one run; each term is called by the name of what holds it, and owners say what that is.
// Elements of the activations and of prepared weights take `element` bytes.
class PeakMemory {
 public:
  PeakMemory(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads);

  // The moments of a run without calibration.
  std::vector<std::vector<MemoryItem>> rounded() const;

  // Of a device beside the first, but for its share of the samples: the larger half of a block as prepared,
  // stage and chunk buffers, a chunk's sum, the prepared square and what is missing of a chunk's output.
  std::uint64_t further_device() const;

  // In a device's memory of its own, of a calibrated run (quant/plan/device_memory.cpp).
  std::vector<std::vector<MemoryItem>> on_device() const;

  std::vector<std::vector<MemoryItem>> calibrated() const;

  // Sums of squares of every input, for a GGUF: while a block is read, and while a chunk is squared.
  std::vector<std::vector<MemoryItem>> importance() const;

  // Of a GGUF: its tokenizer's tree beside two tokenizers and the lists made of it; then a slab of rows,
  // beside what the backend keeps of the forward pass, and what was gathered of other ranks.
  std::vector<std::vector<MemoryItem>> gguf_file(bool calibrated, std::uint64_t gathered) const;

  // The pass of mixed precision that goes before (quant/mixed_precision/sensitivity.cpp): the largest block,
  // then the head.
  std::vector<std::vector<MemoryItem>> measuring(std::int64_t measured) const;

 private:
  std::vector<std::uint64_t> forked_weights(const BlockSpec& block) const;
  // Measured: what a run that rounds or computes the model touches of the program besides.
  static constexpr std::uint64_t kComputingBytes = std::uint64_t{1} << 20;
  // Whether scales are searched by the losses of rows, on the device where there is one.
  bool searches() const { return folds_ && !samples_rows_; }
  // Nothing of the host's where it lies on a device.
  std::uint64_t unless_on_device(std::uint64_t bytes) const { return has_own_memory_ ? 0 : bytes; }
  std::vector<std::vector<MemoryItem>> device_sublayer(const BlockSpec& block,
                                                       const SublayerSpec& part) const;
  std::vector<std::vector<MemoryItem>> device_output(const BlockSpec& block, const SublayerSpec& part,
                                                     const LinearSpec& reader) const;
  std::uint64_t device_samples(std::uint64_t tokens, bool keeps_inputs) const;
  std::uint64_t attention() const;
  std::uint64_t judged_numbers(const BlockSpec& block, SiteId site) const;
  std::uint64_t judge_on_device(const BlockSpec& block, SiteId site) const;
  std::uint64_t sampled_rows_on_device(const BlockSpec& block, SiteId site) const;
  std::uint64_t clip_search(const LinearSpec& linear) const;

  MemoryItem program() const;

  std::vector<MemoryItem> reading() const;

  std::vector<MemoryItem> with_base(const std::vector<MemoryItem>& more) const;

  // Of a stacked format (export/output/stack_assembly.h).
  std::uint64_t stacks() const;

  // The linear before the one that is worked on (quant/pipeline/background_writer.h).
  MemoryItem written_meanwhile() const;

  static std::uint64_t positive(std::int64_t value) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
  }
  static std::uint64_t weights_of(const LinearSpec& linear) {
    return positive(linear.out_features) * positive(linear.in_features);
  }
  // Of a sum of so many places, while ranks join it.
  std::uint64_t bands(std::uint64_t places) const { return joining_bytes(places, ranks_); }
  bool is_planned(const LinearSpec& linear) const { return planned_.count(linear.module) != 0; }

  std::uint64_t wide() const;
  std::uint64_t samples(const DeviceSamples::Tokens& tokens) const;

  // Residual stream and KV pages of one chunk; inputs of o and down of all samples, or of one chunk.
  std::uint64_t stream() const;

  // Of a residual stream whose device has not room for it.
  std::uint64_t held(std::uint64_t tokens) const;

  // Buffers of one chunk; of what has room for all samples on the first device, one has a share.
  std::uint64_t one_chunk() const;
  std::uint64_t original_chunk() const { return original_tokens_ == 0 ? 0 : one_chunk(); }

  // The original model's residual stream and chunk buffers, where upstream error is taken back.
  std::uint64_t original() const;

  // Where upstream error is taken back by a sublayer's output.
  UpstreamSizes upstream(const LinearSpec& last) const;

  // `width` FP32 values for each row of a stage, for as many rows as go at once.
  std::uint64_t stage(std::uint64_t width) const;

  std::uint64_t stages() const;

  // Buffers of the stages and of whoever judges rows; the backend keeps them for the next time, so that all
  // of them are held.
  std::uint64_t scratch(const BlockSpec& block) const;

  // What GPTQ holds beside a linear; nothing for other methods.
  std::uint64_t factors(std::uint64_t k) const;

  // The triangle of a Gram matrix, and the square that rows are judged by as it is prepared.
  std::uint64_t judge(std::uint64_t k) const;
  // FP64 sums, and a list of what they lack.
  static std::uint64_t summed_triangle(std::uint64_t k) {
    return 4 * k * (k + 1) + ExactSums::residue_bytes(k * (k + 1) / 2);
  }
  // The triangle while it is summed, or while the square is prepared from it.
  std::uint64_t seen(std::uint64_t k) const;
  std::uint64_t read_together(const BlockSpec& block, const LinearSpec& linear) const;

  // Channels of the widest input of which statistics are taken.
  std::uint64_t widest(const BlockSpec& block) const;

  // Linears in FP32 while they are worked on.
  struct LinearsInWork {
    std::uint64_t same = 0;    // weights as the checkpoint has them
    std::uint64_t scaled = 0;  // weights that are held scaled, and as the checkpoint has them
    std::uint64_t made = 0;    // weights of a linear that is being rounded
  };

  // One half of a block: the readers of its outer input, a producer among them, then an output linear, which
  // reads what the producer feeds (quant/pipeline/block_quantizer.cpp); and so for each output that there is.
  void add_sublayer(const BlockSpec& block, const SublayerSpec& part,
                    std::vector<std::vector<MemoryItem>>& moments) const;
  // What is held while the experts of a mixture are calibrated (quant/plan/mixture_memory.cpp).
  // `joined`: weights of a sublayer that runs within it.
  void add_mixture(const BlockSpec& block, const MixtureSpec& mixture, std::uint64_t joined,
                   std::vector<std::vector<MemoryItem>>& moments) const;
  std::vector<std::vector<MemoryItem>> device_mixture(const BlockSpec& block, const MixtureSpec& mixture,
                                                      std::uint64_t joined) const;
  // Weights of the sublayer before `part` that joins it; 0: none does.
  static std::uint64_t joined(const BlockSpec& block, const SublayerSpec& part);
  // Rows of one expert and what it makes of them, of one chunk.
  std::uint64_t expert_rows(const MixtureSpec& mixture) const;
  std::uint64_t originals(const MixtureSpec& mixture) const;
  void add_output(const BlockSpec& block, const SublayerSpec& part, LinearId output,
                  std::vector<std::vector<MemoryItem>>& moments) const;
  // The linear whose rows take part in the fold of this linear's input; null where nothing does.
  static const LinearSpec* feeding(const BlockSpec& block, const LinearSpec& linear);
  // Weights of planned linears whose rows wait until the outputs behind `output` are at work.
  std::uint64_t waiting(const BlockSpec& block, const SublayerSpec& part, LinearId output) const;

  const ModelSpec& spec_;
  const std::string& format_;
  bool keeps_inputs_, factorizes_, samples_rows_, folds_, judges_rows_, clips_, measures_by_method_, in_file_,
      on_host_, has_own_memory_;
  std::uint64_t joining_bytes_, ranks_, device_scratch_, lanes_;  // lanes: devices that share the samples
  Compute compute_;
  std::uint64_t experts_at_once_;
  std::uint64_t element_, threads_, length_, all_tokens_, tokens_ /* of this rank */, chunk_,
      original_tokens_ = 0, largest_band_ = 0, slab_ = 0, largest_planned_ = 0, largest_of_tower_ = 0,
      largest_apart_ = 0, beside_ = 0;
  std::map<std::string, QuantScheme> planned_;
};

}  // namespace llmq
