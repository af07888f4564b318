#include "quant/pipeline/replay_block.h"

#include "quant/pipeline/block_weights.h"

namespace llmq {

void replay_block(QuantizeRun& run, const LinearSource& written, const std::set<std::string>& changed,
                  int block, ActivationStream& stream) {
  const std::vector<BlockWeights> weights = load_written_block(run, written, changed, block);
  const std::size_t parts = run.spec.blocks[static_cast<std::size_t>(block)].sublayers.size();
  for (std::size_t part = 0; part < parts; ++part) stream.finish(part, block, weights);
  if (run.original != nullptr) {
    OriginalStream& original = *run.original;
    original.weights = load_on_devices(run, block);
    for (std::size_t part = 0; part < parts; ++part) original.stream.finish(part, block, original.weights);
    original.weights.clear();
  }
  run.clock.charge("finished blocks");
}

}  // namespace llmq
