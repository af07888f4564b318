#include "model/forward_context.h"

#include "device/upload_values.h"

namespace llmq {
ForwardContext make_forward_context(const ModelSpec& spec, Backend& backend, Compute compute,
                                    std::int64_t positions) {
  ForwardContext context{spec, backend, compute, {}, {}};
  context.positions = positions;
  context.chunks = row_chunks(backend.scratch_bytes());
  if (spec.rope.dims == 0) return context;
  const RopeTable table = make_rope_table(spec, positions);
  context.cosines = upload_values(backend, table.cosines);
  context.sines = upload_values(backend, table.sines);
  return context;
}

}  // namespace llmq
