#include "serve/requests/answer_options.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdint>

#include "runtime/scheduler.h"
#include "serve/requests/constraint_fields.h"

namespace llmq {
namespace {

constexpr std::size_t kStops = 16, kStopBytes = 1024, kStopIds = 256, kBiases = 1024;

std::vector<std::string> read_stop(RequestFields& fields) {
  const Json* stop = fields.take("stop");
  if (!stop) return {};
  std::vector<std::string> found;
  const auto add = [&](const Json& one, const std::string& name) {
    if (!one.is_string())
      refuse_field(name, fmt::format("expected a string, found {}", one.kind()), "invalid_type");
    if (one.as_string().empty()) refuse_field(name, "is empty, which would stop before every text");
    if (one.as_string().size() > kStopBytes)
      refuse_field(name, fmt::format("has more than {} bytes", kStopBytes));
    found.push_back(one.as_string());
  };
  if (!stop->is_array()) {
    add(*stop, "stop");
    return found;
  }
  if (stop->items().size() > kStops) refuse_field("stop", fmt::format("has more than {} strings", kStops));
  for (std::size_t i = 0; i < stop->items().size(); ++i) add(stop->items()[i], fmt::format("stop[{}]", i));
  return found;
}

std::vector<std::pair<std::int32_t, float>> read_logit_bias(RequestFields& fields,
                                                            const RequestLimits& limits) {
  const Json* bias = fields.object("logit_bias");
  if (!bias) return {};
  if (bias->members().size() > kBiases)
    refuse_field("logit_bias", fmt::format("has more than {} tokens", kBiases));
  std::vector<std::pair<std::int32_t, float>> found;
  for (const Json::Member& member : bias->members()) {
    std::int32_t id = -1;
    const char *begin = member.first.data(), *end = begin + member.first.size();
    const auto result = std::from_chars(begin, end, id);
    if (result.ec != std::errc() || result.ptr != end || id < 0 || id >= limits.vocabulary_size)
      refuse_field("logit_bias", fmt::format("its keys are token ids below {}", limits.vocabulary_size));
    if (!member.second.is_number() ||
        !(member.second.as_double() >= -100 && member.second.as_double() <= 100))
      refuse_field("logit_bias",
                   fmt::format("the bias of token {} is not a number between -100 and 100", id));
    found.emplace_back(id, static_cast<float>(member.second.as_double()));
  }
  return found;
}

void read_stream_options(RequestFields& fields, AnswerOptions& options) {
  const Json* stream_options = fields.object("stream_options");
  if (!stream_options) return;
  if (!options.stream) refuse_field("stream_options", "is only allowed when 'stream' is true");
  RequestFields inner(*stream_options, "stream_options");
  options.include_usage = inner.boolean("include_usage").value_or(false);
  options.continuous_usage = inner.boolean("continuous_usage_stats").value_or(false);
  inner.ignore("include_obfuscation");
  inner.finish();
}

// Sent along by clients for OpenAI's own accounting.
void ignore_accounting(RequestFields& fields) {
  for (const char* key : {"user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"})
    fields.ignore(key);
  fields.unsupported("store", Json(false));
}

// A router that reads a request and writes it anew sends every field it knows at its default (vllm-router
// 0.1.17); answers of this server are made so, and in no other way.
void hold_defaults_of_routers(RequestFields& fields) {
  for (const char* key : {"no_stop_trim", "return_hidden_states", "continue_final_message"})
    fields.unsupported(key, Json(false));
  for (const char* key :
       {"skip_special_tokens", "separate_reasoning", "stream_reasoning", "include_reasoning"})
    fields.unsupported(key, Json(true));
}

}  // namespace

TokenIds read_token_ids(const Json::Array& list, const std::string& name, const RequestLimits& limits) {
  TokenIds ids;
  ids.reserve(list.size());
  for (const Json& one : list) {
    if (!one.is_integer() || one.as_integer() < 0 || one.as_integer() >= limits.vocabulary_size)
      refuse_field(name, fmt::format("expected token ids below {}, found {}", limits.vocabulary_size,
                                     one.is_integer() ? std::to_string(one.as_integer()) : one.kind()));
    ids.push_back(static_cast<std::int32_t>(one.as_integer()));
  }
  return ids;
}

AnswerOptions read_answer_options(RequestFields& fields, const RequestLimits& limits,
                                  std::int64_t least_tokens) {
  AnswerOptions options;
  options.model = fields.string("model").value_or("");
  options.max_tokens = fields.integer("max_tokens", least_tokens, limits.max_tokens);
  options.min_tokens = fields.integer("min_tokens", 0, limits.max_tokens).value_or(0);
  SamplingOptions& sampling = options.sampling;
  sampling.temperature = fields.number("temperature", 0, 2).value_or(1);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  if (sampling.top_p == 0) refuse_field("top_p", "0 would leave no token; 1 leaves all");
  sampling.min_p = fields.number("min_p", 0, 1).value_or(0);
  sampling.top_k = fields.integer("top_k", -1, limits.vocabulary_size).value_or(0);
  if (sampling.top_k == -1) sampling.top_k = 0;  // "all" in vLLM's words
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0.01, 100).value_or(1);
  sampling.logit_bias = read_logit_bias(fields, limits);
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX))
    options.seed = static_cast<std::uint64_t>(*seed);
  options.constraint = read_constraint(fields);
  options.stop = read_stop(fields);
  if (const Json::Array* ids = fields.array("stop_token_ids")) {
    if (ids->size() > kStopIds) refuse_field("stop_token_ids", fmt::format("has more than {} ids", kStopIds));
    options.stop_token_ids = read_token_ids(*ids, "stop_token_ids", limits);
  }
  options.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  options.n = static_cast<int>(fields.integer("n", 1, limits.max_samples).value_or(1));
  options.priority = static_cast<int>(
      fields.integer("priority", -Scheduler::kPriorities, Scheduler::kPriorities).value_or(0));
  options.stream = fields.boolean("stream").value_or(false);
  read_stream_options(fields, options);
  ignore_accounting(fields);
  hold_defaults_of_routers(fields);
  return options;
}

}  // namespace llmq
