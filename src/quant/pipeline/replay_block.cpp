#include "quant/pipeline/replay_block.h"

#include "quant/pipeline/block_weights.h"

namespace llmq {

void run_finished_block(QuantizeRun& run, const LinearSource& written, const std::set<std::string>& changed,
                        int block, ActivationStream& stream) {
  const std::vector<BlockWeights> weights = load_finished_block(run, written, changed, block);
  stream.finish_attention(block, weights);
  stream.finish_mlp(weights);
  if (run.original != nullptr) {
    OriginalStream& original = *run.original;
    original.weights = load_on_devices(run, block, kAllRoles);
    original.stream.finish_attention(block, original.weights);
    original.stream.finish_mlp(original.weights);
    original.weights.clear();
  }
  run.clock.charge("finished blocks");
}

}  // namespace llmq
