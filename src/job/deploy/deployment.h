// What `llmq deploy` knows of a checkpoint and of the servers that shall serve it: the document that the
// templates of export/deploy are filled with.
//
// Memory is that of `llmq estimate` (quant/plan/capacity_estimate.h): the weights as they are stored and a
// full KV cache of kDeployedSequences sequences; llmq's own runtime is given the weights as it holds them, in
// BF16. GPUs are the fewest of 1, 2, 4 and 8 of one kind in nine tenths of whose memory that fits. Only
// headers are read, and nothing is written.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/io.h"
#include "base/json.h"
#include "device/known_machines.h"

namespace llmq {

inline constexpr std::int64_t kDeployedSequences = 8, kLongestDeployedContext = 32768;

struct Disaggregation {
  std::int64_t prefill = 0, decode = 0;  // servers
};

struct DeploymentRequest {
  std::string model, target;    // one of deploy_targets()
  std::string engine = "vllm";  // or llmq
  std::int64_t replicas = 1;
  std::string draft;              // a model, "ngram", or empty for none
  std::string kv_cache = "auto";  // by llmq's words
  std::optional<Disaggregation> disaggregation;
  MachineRates machine;      // whose GPUs vLLM gets
  std::string llmq_version;  // of the image
};

// The document, schema llmq.deploy/1, with `manifest`, the YAML. Error(kUsage) for what the target or the
// engine cannot do, Error(kBadInput) for a checkpoint that vLLM does not load.
Json deployment(Io& io, const DeploymentRequest& request);

}  // namespace llmq
