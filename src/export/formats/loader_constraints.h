// Which programs load a checkpoint llmq wrote, by the constraints their sources state; for those that do not,
// the first linear at fault and why.
//
// A row of the table is one kernel of a loader with one format, and a verdict names the version it speaks of.
// vLLM is not run: tests/interop/make_loader_cases.py asks the Python files of its wheel, and its answers are
// tests/unit/export/loader_cases.json, which the table is held against (what a compiled kernel wants of its
// own, AWQ's group and outputs, stands in the wheel's library). On one NVIDIA GPU, from Turing on where no
// label says otherwise. GPTQModel 7.7: nn_modules/qlinear/{torch,marlin_awq,torch_awq}.py; it and
// Transformers with compressed-tensors are run in tests/interop.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "export/formats/fused_scales.h"
#include "tensor/planned_module.h"

namespace llmq {

struct LoaderVerdict {
  std::string loader;  // "vLLM 0.33 (INT8 kernels)"
  bool fits = false;
  // Says why not: "model.layers.0.self_attn.q_proj has group size 48, and Marlin wants one of -1, 32, 64,
  // 128".
  std::string reason;
  std::string command;  // what to type, with `directory` in it
  std::string note;     // of one that fits: what is slower or otherwise there; empty: nothing
};

// What else of a checkpoint a verdict depends on, beside its quantized linears.
struct BesidePacked {
  std::span<const std::string> dense = {};  // linears of the model that are not quantized
  FusedScales scales = {};
};

// Every loader known for `format`, in the table's order.
std::vector<LoaderVerdict> loader_verdicts(const std::string& format, std::span<const PlannedModule> modules,
                                           const std::string& directory, const BesidePacked& beside = {});
Json to_json(std::span<const LoaderVerdict> verdicts);

}  // namespace llmq
