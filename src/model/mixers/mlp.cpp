// inner = act(gate) * up, or act(up) without a gate, with gate and up linears of x.
#include "model/mixers/mixer.h"

namespace llmq {

void run_mixer(const MixerRun& run, const MlpSpec& spec, const TensorView& x, const TensorView& inner) {
  const ForwardContext& context = run.context;
  Backend& backend = context.backend;
  const std::int64_t width = spec.width;
  for_fitting_rows(context.chunks, context.fitting.get(), x.rows(), spec.row_floats(),
                   [&](std::int64_t first, std::int64_t count) {
                     const std::size_t bytes = static_cast<std::size_t>(count * width) * sizeof(float);
                     const Buffer gate_out = spec.gate ? backend.allocate(bytes) : Buffer(),
                                  up_out = backend.allocate(bytes);
                     const TensorView up = up_out.view(DType::kF32, {count, width}),
                                      part = x.row_slice(first, count), out = inner.row_slice(first, count);
                     const RowAdapters adapters = run.adapters().from(first);
                     if (!spec.gate) {
                       const PartOutput output{spec.up, up};
                       run_linears(backend, run.weights, part, {&output, 1}, adapters);
                       backend.activate(out, up, spec.activation);
                       return;
                     }
                     const TensorView gate = gate_out.view(DType::kF32, {count, width});
                     const PartOutput outputs[] = {{*spec.gate, gate}, {spec.up, up}};
                     run_linears(backend, run.weights, part, outputs, adapters);
                     backend.gated_activation(out, gate, up, spec.activation);
                   });
}

}  // namespace llmq
