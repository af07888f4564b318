// Before anything is run: what each scheme would take and how fast it could be, from shapes and rates alone.
//
//   weights           bytes of every tensor as `llmq quantize` writes it (headers of files apart); of a
//                     wrapper its tower, too, which no step reads and llmq's own runtime does not load
//   KV cache          2 * layers * kv_heads * bytes of a head (KvLayout) * batch * positions; a layer with a
//                     sliding window keeps no more positions than that
//   time of a step    the longer of bytes / bandwidth and operations / rate (the roofline), plus the calls'
//                     own cost
//   decoding          one token of every sequence: all weights but the embedding once, and the whole cache
//   prefill           one sequence: 2 operations a weight and token, causal attention 2 T^2 heads head_dim a
//                     layer
//
// A named machine's figures are upper bounds, for a runtime that computes from the packed weights. Those of
// the machine at hand are what llmq's own runtime does: it holds 16-bit-input schemes dequantized in the
// compute type.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "device/known_machines.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "tensor/kv_type.h"

namespace llmq {

// How a cache holds the keys, or the values, of one position and head.
struct KvLayout {
  const char* name;
  KvType type;
  const char* words;
};
// f32, bf16, fp16 (as large as bf16), int8, int4, fp8, fp8_e5m2. Error(kUsage) naming them for another word.
const KvLayout& kv_layout(const std::string& name);
const KvLayout& kv_layout(const KvType& type);  // one of these

struct EstimateRequest {
  std::vector<std::string> schemes;             // of the recipe, or GGUF types; empty: the usual ones
  std::vector<std::int64_t> contexts, batches;  // empty: 2048, 8192, 32768 as far as the model goes; 1, 8, 32
  std::string kv_cache;      // a KvLayout; empty: the type that the checkpoint asks for, else bf16
  std::uint64_t budget = 0;  // 0: the machine's memory
  Compute compute = Compute::kBFloat16;
};

struct EstimatedCell {
  std::int64_t batch = 0, context = 0;
  std::uint64_t kv_bytes = 0, bytes = 0;  // bytes: with the weights
  bool fits = false;
  double decode_tokens_per_second = 0;         // of all sequences together, at a full cache
  double step_bytes = 0, step_operations = 0;  // of one token of each
};

struct SchemeEstimate {
  std::string scheme, format;
  std::string refusal;         // why the model cannot have it; nothing else is known then
  double bits_per_weight = 0;  // over the whole model
  std::uint64_t weight_bytes = 0;
  double prefill_tokens_per_second = 0;  // of one sequence of the smallest context
  std::vector<EstimatedCell> cells;      // batch by batch
  bool fits() const;                     // every cell
};

struct Estimate {
  std::string model;
  MachineRates machine;
  KvLayout kv_cache{};
  std::string kv_reason;  // why that one
  std::uint64_t budget = 0, kv_bytes_per_token = 0;
  std::uint64_t carried_bytes = 0;  // of the weights: a tower that stays as it is, 0 of a decoder alone
  std::vector<SchemeEstimate> schemes;
  std::string recommended, reason;  // empty and why, when nothing fits
  Json to_json() const;             // schema llmq.estimate/1
};

// Error(kUsage) for a scheme that is no scheme, and for a context beyond the model's positions.
Estimate estimate(Io& io, const std::string& model, const EstimateRequest& request,
                  const MachineRates& machine);

}  // namespace llmq
