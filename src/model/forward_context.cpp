#include "model/forward_context.h"

#include "device/own_memory.h"

namespace llmq {
namespace {

Buffer upload_floats(Backend& backend, std::span<const float> values) {
  Buffer buffer = backend.allocate(values.size_bytes());
  backend.upload(buffer.view(DType::kF32, {static_cast<std::int64_t>(values.size())}), values.data());
  return buffer;
}

}  // namespace

ForwardContext make_forward_context(const ModelSpec& spec, Backend& backend, Compute compute,
                                    std::int64_t positions) {
  const auto* const own = dynamic_cast<const OwnMemory*>(&backend);
  ForwardContext context{spec, backend, compute, {}, {}};
  context.positions = positions;
  context.chunks = row_chunks(own == nullptr ? 0 : own->scratch_bytes());
  if (spec.rope.dims == 0) return context;
  const RopeTable table = make_rope_table(spec, positions);
  context.cosines = upload_floats(backend, table.cosines);
  context.sines = upload_floats(backend, table.sines);
  return context;
}

}  // namespace llmq
