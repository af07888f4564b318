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
  const ModelSpec share = member_spec(spec, members);
  const KvType type = kv_type_of(options.kv_cache_dtype, compute);
  const std::uint64_t per_token = share.kv_bytes(type), asked = parse_bytes(options.kv_memory, "--kv-memory");
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
  const std::optional<int> early = options.placement.gpu_layers;
  const PageGroups groups =
      page_groups(spec, !early || *early == 0 || static_cast<std::size_t>(*early) >= spec.blocks.size());
  // Positions of layers with pages of their own size that a window passes never are more than these.
  const auto most_seen = static_cast<std::uint64_t>(kv_window_positions(
      groups, options.block_size, options.limits.max_num_seqs, options.limits.max_num_batched_tokens));
  const std::uint64_t seen = kv_window_bytes(groups, share, type);
  const auto bytes_of = [&](std::uint64_t positions) {
    return positions * (per_token - seen) + std::min(positions, most_seen) * seen;
  };
  const auto positions_in = [&](std::uint64_t bytes) {
    const std::uint64_t all = bytes / per_token;
    const std::uint64_t many =
        all <= most_seen || per_token == seen ? all : (bytes - most_seen * seen) / (per_token - seen);
    return static_cast<std::int64_t>(many / static_cast<std::uint64_t>(options.block_size)) *
           options.block_size;
  };
  const std::int64_t affordable = positions_in(asked ? asked : kUsualKvMemory);
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
                      bytes_text(bytes_of(static_cast<std::uint64_t>(longest))))});
  // all answers at their longest
  const std::int64_t most = (longest + options.block_size) * options.limits.max_num_seqs;
  room.kv_tokens = asked ? affordable : std::min(affordable, most);
  room.kv_window_tokens = static_cast<std::int64_t>(most_seen);
  return room;
}

void give_swap_space(const EngineFlags& flags, Engine& engine, SchedulerLimits& limits) {
  KvCache& cache = engine.cache();
  const std::uint64_t asked = swap_bytes(flags), page = cache.page_bytes(),
                      state = engine.spec().state_bytes();
  if (asked == 0) return;
  const std::int32_t of_state = cache.pages_of(state);
  if (const std::uint64_t least = page * static_cast<std::uint64_t>(1 + of_state); asked < least)
    fail(ErrorKind::kUsage,
         {of_state == 0 ? fmt::format("{} holds no block of the KV cache, one of which has {}",
                                      bytes_text(asked), bytes_text(page))
                        : fmt::format("{} holds no answer, of which a block and a recurrent state have {}",
                                      bytes_text(asked), bytes_text(least)),
          {},
          "--swap-space",
          "raise it, as in 4GiB"});
  const auto pages = static_cast<std::int32_t>(std::min<std::uint64_t>(asked / page, INT32_MAX));
  cache.give_swap_space(pages);
  const SwapRates rates = measure_swap(engine);
  Log::get().note(fmt::format(
      "answers that must wait have their KV cache {}: a position takes {:.0f} us to compute, {:.0f} us to "
      "the host and back{}",
      rates.pays() ? fmt::format("kept in {} of host memory", bytes_text(pages * page)) : "computed again",
      rates.computed_seconds * 1e6, rates.swapped_seconds * 1e6,
      of_state == 0 ? "" : fmt::format(", and the recurrent state {:.0f} us", rates.state_seconds * 1e6)));
  if (!rates.pays()) return;
  limits.swap_pages = pages;
  limits.swap_pages_of_state = of_state;
  limits.fewest_swapped = of_state == 0 ? 0 : rates.fewest_positions();
}

}  // namespace llmq::tools
