// Which programs load a checkpoint llmq wrote, by the constraints their sources state; for those that do not,
// the first linear at fault and why.
//
// A row of the table is one kernel of a loader with one format. Sources: GPTQModel 7.7
// nn_modules/qlinear/{marlin,machete,torch,marlin_awq,torch_awq}.py, vLLM's marlin_utils.py,
// machete_utils.py, allspark_utils.py, gptq.py and schemes/compressed_tensors_{w8a8_int8,w8a8_fp8}.py as
// docs/guides/formats.md cites them, compressed-tensors 0.20. Tested against Transformers and GPTQModel
// themselves where CI installs them.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/planned_module.h"

namespace llmq {

struct LoaderVerdict {
  std::string loader;  // "vLLM (Marlin kernels)"
  bool fits = false;
  std::string reason;  // why not: "model.layers.0.self_attn.q_proj has 576 input features, and Marlin wants a
                       // multiple of 128"
  std::string command;  // what to type, with `directory` in it
};

// Every loader known for `format`, in the table's order.
std::vector<LoaderVerdict> loader_verdicts(const std::string& format, std::span<const PlannedModule> modules,
                                           const std::string& directory);
Json to_json(std::span<const LoaderVerdict> verdicts);

}  // namespace llmq
