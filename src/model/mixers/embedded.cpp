// inner = act(gate(x)) * e, with gate a linear of x and e what the block has of an embedding of all blocks.
#include "model/mixers/mixer.h"

namespace llmq {

void run_mixer(const MixerRun& run, const EmbeddedSpec& spec, const TensorView& x, const TensorView& inner) {
  Backend& backend = run.context.backend;
  for_fitting_rows(run.context.chunks, run.context.fitting.get(), x.rows(), spec.row_floats(),
                   [&](std::int64_t first, std::int64_t count) {
                     const Buffer storage =
                         backend.allocate(static_cast<std::size_t>(count * spec.width) * sizeof(float));
                     const TensorView gate = storage.view(DType::kF32, {count, spec.width});
                     const PartOutput output{spec.gate, gate};
                     run_linears(backend, run.weights, x.row_slice(first, count), {&output, 1},
                                 run.adapters().from(first));
                     const TensorView own = run.embedded.row_slice(run.first + first, count);
                     backend.gated_activation(inner.row_slice(first, count), gate, own, spec.activation);
                   });
}

}  // namespace llmq
