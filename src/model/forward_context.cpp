#include "model/forward_context.h"

#include "base/error.h"
#include "device/upload_values.h"

namespace llmq {
namespace {

// Every block turns as many channels as its table has angles for, twice.
void check_rope_uses(const ModelSpec& spec) {
  const auto check = [&](const BlockSpec& block, const RopeUse& use, std::size_t of_queries) {
    for (const std::size_t table : {use.table, of_queries})
      if (table >= spec.ropes.size() || spec.ropes[table].dims != use.dims)
        fail(ErrorKind::kInternal, "{} turns {} channels by rope table {}, which is none of {} such tables",
             block.prefix, use.dims, table, spec.ropes.size());
  };
  for (const BlockSpec& block : spec.blocks) {
    const AttentionSpec* const attention = block.attention();
    if (attention != nullptr && attention->rope.dims != 0)
      check(block, attention->rope, attention->query_table.value_or(attention->rope.table));
    if (const LatentAttentionSpec* const latent = block.latent_attention())
      check(block, latent->rope, latent->rope.table);
  }
}

}  // namespace

ForwardContext make_forward_context(const ModelSpec& spec, Backend& backend, Compute compute,
                                    std::int64_t positions) {
  ForwardContext context{spec, backend, compute, {}};
  context.positions = positions;
  context.chunks = row_chunks(backend.scratch_bytes());
  check_rope_uses(spec);
  for (const RopeSpec& rope : spec.ropes) {
    const RopeTable table = make_rope_table(rope, spec.max_position, positions);
    context.ropes.push_back({upload_values(backend, table.cosines), upload_values(backend, table.sines)});
  }
  return context;
}

}  // namespace llmq
