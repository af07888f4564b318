#include "tools/bench/load_options.h"

#include <cstdlib>
#include <limits>

#include "base/error.h"

namespace llmq::tools {
namespace {

constexpr std::int64_t kMostClients = 4096;

}  // namespace

double parse_rate(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  char* end = nullptr;
  const double rate = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(rate >= 1e-3 && rate <= 1e6))
    fail(ErrorKind::kUsage, {"'" + text + "' is no number of requests per second",
                             {},
                             "--rate",
                             "give 0.001 .. 1000000, or inf"});
  return rate;
}

void check_load(const ServeBench& options) {
  const auto refuse = [](const std::string& what, const char* flag, const std::string& hint) {
    fail(ErrorKind::kUsage, {what, {}, flag, hint});
  };
  for (const std::int64_t clients : options.clients)
    if (clients < 1 || clients > kMostClients)
      refuse(fmt::format("{} clients", clients), "--clients", fmt::format("give 1 .. {}", kMostClients));
  for (const std::string& rate : options.rates) parse_rate(rate);
  if (options.requests && (*options.requests < 1 || *options.requests > kMostRequests))
    refuse(fmt::format("{} requests", *options.requests), "--requests",
           fmt::format("give 1 .. {}", kMostRequests));
  if (options.prompt_tokens && (*options.prompt_tokens < 2 || *options.prompt_tokens > 1'000'000))
    refuse("prompts of that length", "--prompt-tokens", "give 2 .. 1000000");
  if (options.new_tokens && (*options.new_tokens < 2 || *options.new_tokens > 1'000'000))
    refuse("answers of that length", "--new-tokens", "give 2 .. 1000000");
  if (options.shared_prefix && !(*options.shared_prefix >= 0 && *options.shared_prefix <= 1))
    refuse("a share outside of 0 .. 1", "--shared-prefix", "give 0.25 for every fourth request");
  if (options.answer_lengths != "uniform" && options.answer_lengths != "long-tail")
    refuse("'" + options.answer_lengths + "' is not known", "--answer-lengths", "use uniform or long-tail");
  for (const std::string& batching : options.batching) {
    if (batching != "continuous" && batching != "static")
      refuse("'" + batching + "' is not known", "--batching", "use continuous, static or both");
    if (batching == "static" && options.rates != std::vector<std::string>{"inf"})
      refuse("a static batch begins when the one before has ended, not at a rate", "--rate", "leave it out");
  }
}

LoadMix mix_of(const ServeBench& options) {
  LoadMix mix;
  mix.prompt_words = options.prompt_tokens.value_or(mix.prompt_words);
  mix.new_tokens = options.new_tokens.value_or(mix.new_tokens);
  mix.long_tail = options.answer_lengths == "long-tail";
  mix.seed = options.seed;
  return mix;
}

std::vector<const CLI::Option*> add_load_flags(CLI::App& command, ServeBench& o) {
  const std::size_t before = command.get_options().size();
  command.add_option("--clients", o.clients, "Requests under way at a time")
      ->delimiter(',')
      ->type_name("N,...")
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      .add_option("--rate", o.rates,
                  "Requests that arrive per second, at random; inf: as fast as the clients take them")
      ->delimiter(',')
      ->type_name("R,...")
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      .add_option("--requests", o.requests,
                  "Requests of each row; eight for each client when left out, for matrix four")
      ->type_name("N");
  command
      .add_option("--batching", o.batching,
                  "continuous: a client sends its next request when it has its answer; static: all clients "
                  "send together and wait for the longest answer; or both")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      .add_option("--answer-lengths", o.answer_lengths,
                  "uniform about --new-tokens, or long-tail: exponential with that mean, as chats have")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option(
          "--shared-prefix", o.shared_prefix,
          "Share of requests that begin with the same words; 0.25 for serve, 0.5 for matrix when left out")
      ->type_name("X");
  command
      .add_option("--seed", o.seed, "Another load; a server that was driven before has its prompts cached")
      ->type_name("N")
      ->capture_default_str();
  command.add_option("--api-key-file", o.api_key_file, "With --endpoint: the first key of this file is sent")
      ->type_name("FILE");
  command.add_flag("--allow-eos", o.may_end,
                   "Answers may end early; ignore_eos, which not every server knows, is not sent");
  add_engine_flags(command, o.engine);
  std::vector<const CLI::Option*> added;
  const std::vector<CLI::Option*> all = command.get_options();
  for (std::size_t i = before; i < all.size(); ++i) {
    all[i]->group("Suites serve and matrix");
    added.push_back(all[i]);
  }
  return added;
}

}  // namespace llmq::tools
