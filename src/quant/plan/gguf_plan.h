// A recipe whose format is GGUF: what each tensor gets, and whether calibration is needed. All errors of
// intent appear here. As a Plan, it is made once.
//
//   method rtn      no importance, ggml's search: the file of llama-quantize
//   method imatrix  importance of the calibration text or of a file; the wider search
//
// Types follow llama.cpp's mixes (export/gguf/type_mix.h), and `overrides` name others for single tensors
// (export/gguf/asked_types.h). `ignore` and `targets` have no place here: what is not named follows the mix.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "export/gguf/gguf_file.h"
#include "quant/plan/plan_costs.h"

namespace llmq {

struct GgufPlan {
  struct Tensor {
    std::string name;
    DType dtype;
    Shape shape;
    std::uint64_t bytes_read;  // what reading it counts, at most
    std::uint64_t bytes_out() const;
  };
  std::string method;  // "rtn" or "imatrix"
  const GgufFileType* file_type = nullptr;
  std::map<std::string, DType> asked_types;  // of tensors that overrides name
  std::string importance;                    // "none", "calibration" or a path
  BlockSearch search = BlockSearch::kGgml;
  std::string imatrix_out;  // empty: nowhere
  Compute compute = Compute::kBFloat16;
  CalibrationRequest calibration;
  std::int64_t chunk_tokens = 0;
  bool keep_inputs = true;          // inputs of o and down stay in memory instead of being computed again
  int ranks = 1;                    // that share the samples, and round a slab of rows each at a time
  std::uint64_t joining_bytes = 0;  // of each of several ranks (Ranks::joining_bytes())
  std::vector<Tensor> tensors;
  std::vector<std::string> warnings;

  Plan forward() const;  // as the plan of a run that quantizes no linear: what passes over samples cost
  std::string asked_text() const;  // "Q8_0 of 1 tensor, Q6_K of 2 tensors"
  bool needs_calibration() const { return importance == "calibration"; }
  std::uint64_t bytes_out() const;       // of all tensors, as they are written
  double bits_per_weight() const;        // over all tensors
  std::uint64_t gathered_bytes() const;  // of the slabs that several ranks rounded, at rank 0
};

// flops: of the forward pass for importance.
PlanCosts estimate_costs(const GgufPlan& plan, const Checkpoint& checkpoint, const ModelSpec& spec);

// What a plan reads of the checkpoint, pass by pass, in whole blocks of the disk as the Io layer counts it:
// every tensor once for the file, and every linear once for the importance of a calibration text. Of a run
// that goes on behind an interrupted one: whether that collected the importance, and the tensors it wrote.
std::vector<ReadPass> gguf_read_passes(const GgufPlan& plan, const Checkpoint& checkpoint,
                                       const ModelSpec& spec, bool has_importance = false,
                                       const std::set<std::string>& written = {});

// Of `shared` its ranks count, and what joined them.
GgufPlan make_gguf_plan(Io& io, const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec,
                        Compute compute, std::uint64_t memory_limit, const PlannedDevices& shared = {});

}  // namespace llmq
