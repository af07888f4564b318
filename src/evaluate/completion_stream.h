// What a client reads of a streamed completion of any OpenAI-compatible server.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace llmq {

struct StreamUsage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
};

struct StreamPart {
  // one token or more: text, or a choice that is not just the end (a token may give no text yet)
  bool delivers = false;
  bool ends = false;  // [DONE], or a finish_reason
  std::optional<StreamUsage> usage;
};

// One event's data: "[DONE]" or a chunk. Error(kBadInput) for what is neither, and with the server's words
// for an error in its place.
StreamPart read_stream_event(const std::string& data);

// The words of an answer that is an error: OpenAI's object, others' forms of it, or the first line, cut to a
// length that can be shown.
std::string error_words(const std::string& body);

}  // namespace llmq
