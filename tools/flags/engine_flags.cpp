#include "tools/flags/engine_flags.h"

#include "base/amount_text.h"
#include "base/error.h"
#include "device/known_machines.h"
#include "job/kv_cache_choice.h"

namespace llmq::tools {

std::uint64_t swap_bytes(const EngineFlags& flags) {
  const std::uint64_t asked = parse_bytes(flags.swap_space, "--swap-space");
  if (const std::uint64_t memory = host_memory_bytes(); memory != 0 && asked > memory)
    fail(ErrorKind::kUsage,
         {fmt::format("{} are more than the {} of memory here", bytes_text(asked), bytes_text(memory)),
          {},
          "--swap-space",
          "lower it"});
  return asked;
}

void add_engine_flags(CLI::App& command, EngineFlags& o) {
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000});
  command
      .add_option("--served-model-name", o.served_name,
                  "Name in requests and answers; by default the directory's")
      ->type_name("NAME");
  command.add_option("--max-model-len", o.max_model_len, "Tokens of a prompt and its answer together")
      ->type_name("N")
      ->check(CLI::Range(kShortestContext, std::int64_t{1'000'000'000}));
  command.add_option("--max-num-seqs", o.limits.max_num_seqs, "Answers that run at once")
      ->type_name("N")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--max-num-batched-tokens", o.limits.max_num_batched_tokens, "Tokens of one step")
      ->type_name("N")
      ->capture_default_str()
      ->check(positive);
  command.add_option("--block-size", o.block_size, "Tokens of one block of the KV cache")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::IsMember({8, 16, 32}));
  command
      .add_option("--kv-memory", o.kv_memory,
                  "Size of the KV cache, on each device where there are several; by default what is needed, "
                  "at most 2GiB")
      ->type_name("SIZE");
  command
      .add_option(
          "--state-memory", o.state_memory,
          "Memory for copies of recurrent states, by which such a model finds prefixes; taken as it is "
          "needed")
      ->type_name("SIZE")
      ->capture_default_str();
  command
      .add_option("--swap-space", o.swap_space,
                  "Host memory where the KV cache of answers that had to wait is kept, if that beats "
                  "computing it again")
      ->type_name("SIZE");
  command.add_flag("--no-prefix-caching", o.no_prefix_caching, "Compute every prompt anew");
  add_draft_options(command, o.draft);
}

void check_engine_flags(const EngineFlags& flags, Compute compute) {
  kv_type_of(flags.kv_cache_dtype, compute);
  swap_bytes(flags);
  parse_bytes(flags.state_memory, "--state-memory");
  if (flags.limits.max_num_batched_tokens < flags.limits.max_num_seqs)
    fail(ErrorKind::kUsage, {fmt::format("a step of {} tokens has no room for one of each of {} answers",
                                         flags.limits.max_num_batched_tokens, flags.limits.max_num_seqs),
                             {},
                             "--max-num-batched-tokens",
                             "raise it, or lower --max-num-seqs"});
  check_draft(flags.draft);
}

}  // namespace llmq::tools
