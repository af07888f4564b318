// How much a run of a plan takes: the parts of the peak of memory, bytes read and written, operations; for
// --dry-run and the report, and to be held against limits. Arithmetic on shapes; docs say how far it was off.
//
// Costs are made once, by one function, and handed around as const beside their plan.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "quant/plan/plan.h"

namespace llmq {

// A part of an amount, by the name of what takes it.
struct NamedBytes {
  std::string what;
  std::uint64_t bytes;
};
using MemoryItem = NamedBytes;
using ReadPass = NamedBytes;  // one reading of (a part of) the inputs
std::uint64_t total_bytes(std::span<const NamedBytes> parts);
Json named_bytes_json(std::span<const NamedBytes> parts);  // [{what, bytes}]

struct PlanCosts {
  std::vector<MemoryItem> memory;  // parts of the peak; their sum is peak_bytes
  std::uint64_t peak_bytes = 0, bytes_in = 0, bytes_out = 0;
  std::uint64_t bytes_copied = 0;  // of files beside the tensors
  std::vector<ReadPass> reads;     // of the checkpoint's tensors (quant/plan/disk_reads.h)
  double flops = 0;
  std::vector<MemoryItem> device_memory;  // parts of a device's peak, where devices have memory of their own
  // Their sum; without such memory, of a device beside the first: weights, one chunk, sums, its share of the
  // samples aside.
  std::uint64_t device_bytes = 0;

  std::uint64_t bytes_written() const { return bytes_out + bytes_copied; }
};

// `bytes_copied`: who opens the files beside the tensors says how many.
PlanCosts estimate_costs(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads,
                         std::uint64_t bytes_copied = 0);
// The same costs, with all that a command reads in place of the tensors alone.
PlanCosts with_reads(PlanCosts costs, std::vector<ReadPass> reads);

// The most that a GGUF output of the model needs at once, where importance is collected over the plan's
// samples if it needs calibration: for the forward pass, for the file's vocabulary, and for rows on their
// way, beside which lies what was `gathered` of other ranks; `held` is beside each of them.
std::vector<MemoryItem> gguf_memory(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                                    std::uint64_t held, std::uint64_t gathered);
// Of the forward pass of one block over the plan's samples, times blocks.
double forward_flops(const Plan& plan, const ModelSpec& spec);

}  // namespace llmq
