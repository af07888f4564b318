#include "tools/serving_room.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "device/known_machines.h"
#include "job/kv_cache_choice.h"
#include "model/divided_block.h"
#include "runtime/swap_rates.h"

namespace llmq::tools {
namespace {

constexpr std::uint64_t kUsualKvMemory = std::uint64_t{2} << 30;

}  // namespace

Room room_for(const EngineFlags& options, const GlobalOptions& globals, const ModelSpec& spec,
              Compute compute) {
  if (options.max_model_len > spec.max_position)
    fail(ErrorKind::kUsage, {fmt::format("{} tokens are more than the {} positions of the model",
                                         options.max_model_len, spec.max_position),
                             {},
                             "--max-model-len",
                             "lower it"});
  const std::int64_t members = options.placement.members;  // each of which has the memory that was asked for
  const std::uint64_t per_token =
                          member_spec(spec, members).kv_bytes(kv_type_of(options.kv_cache_dtype, compute)),
                      asked = parse_bytes(options.kv_memory, "--kv-memory");
  if (const std::uint64_t memory = host_memory_bytes();
      memory != 0 && asked > memory / static_cast<std::uint64_t>(members) &&
      chosen_device(globals).rfind("cuda", 0) != 0)
    fail(ErrorKind::kUsage,
         {fmt::format("{} of {} is more than the {} of memory here",
                      members == 1 ? "a KV cache" : fmt::format("a KV cache on each of {} devices", members),
                      bytes_text(asked), bytes_text(memory)),
          {},
          "--kv-memory",
          "lower it"});
  const auto affordable = static_cast<std::int64_t>((asked ? asked : kUsualKvMemory) / per_token /
                                                    static_cast<std::uint64_t>(options.block_size)) *
                          options.block_size;
  const std::optional<int> early = options.placement.gpu_layers;
  const PageGroups groups =
      page_groups(spec, !early || *early == 0 || static_cast<std::size_t>(*early) >= spec.blocks.size());
  // Of one context: less than its length where a sliding window passes.
  const auto positions_of = [&](std::int64_t context) {
    return kv_positions(groups, options.block_size, context, options.limits.max_num_batched_tokens);
  };
  Room room;
  room.context = options.max_model_len ? options.max_model_len
                 : positions_of(spec.max_position) <= affordable
                     ? spec.max_position
                     : std::max(kShortestContext, std::min(affordable, spec.max_position));
  const std::int64_t longest = positions_of(room.context);
  if (affordable < longest)
    fail(ErrorKind::kUsage,
         {fmt::format("a KV cache of {} holds {} tokens, and one context of {} takes {}",
                      bytes_text(asked ? asked : kUsualKvMemory), affordable, room.context, longest),
          {},
          "--kv-memory",
          fmt::format("give at least {}, or lower --max-model-len",
                      bytes_text(per_token * static_cast<std::uint64_t>(longest)))});
  // all answers at their longest
  const std::int64_t most = (longest + options.block_size) * options.limits.max_num_seqs;
  room.kv_tokens = asked ? affordable : std::min(affordable, most);
  return room;
}

std::int32_t swap_pages(const EngineFlags& flags, Engine& engine) {
  const std::uint64_t asked = swap_bytes(flags), page = engine.cache().page_bytes();
  if (asked == 0) return 0;
  if (engine.spec().state_bytes() > 0) {
    Log::get().note(
        "the model has recurrent states, which stay on the device: what is pushed out is computed again, and "
        "nothing of it is kept on the host (--swap-space)");
    return 0;
  }
  if (asked < page)
    fail(ErrorKind::kUsage, {fmt::format("{} holds no block of the KV cache, one of which has {}",
                                         bytes_text(asked), bytes_text(page)),
                             {},
                             "--swap-space",
                             "raise it, as in 4GiB"});
  if (KvBlocks& blocks = engine.cache().blocks(); blocks.has_windows()) {
    Log::get().note(
        blocks.groups() == 1
            ? "the model looks back through a window only: what is pushed out is little, and "
              "computed again (--swap-space)"
            : "some layers look back through a window only: what is pushed out is computed again, "
              "and nothing of it is kept on the host (--swap-space)");
    return 0;
  }
  const auto pages = static_cast<std::int32_t>(std::min<std::uint64_t>(asked / page, INT32_MAX));
  engine.cache().give_swap_space(pages);
  const SwapRates rates = measure_swap(engine);
  Log::get().note(fmt::format(
      "answers that must wait have their KV cache {}: a position takes {:.0f} us to compute, {:.0f} us to "
      "the host and back",
      rates.pays() ? fmt::format("kept in {} of host memory", bytes_text(pages * page)) : "computed again",
      rates.computed_seconds * 1e6, rates.swapped_seconds * 1e6));
  return rates.pays() ? pages : 0;
}

}  // namespace llmq::tools
