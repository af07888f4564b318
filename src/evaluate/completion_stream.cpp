#include "evaluate/completion_stream.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8_sequence.h"

namespace llmq {
namespace {

constexpr JsonLimits kChunkLimits{1u << 20, 32};
constexpr std::size_t kShown = 200;

const Json* as_object(const Json* json) { return json && json->is_object() ? json : nullptr; }

// One line that a terminal shows as it is.
std::string one_line(std::string text) {
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  if (!is_utf8(text))
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) > 126; }, '?');
  return text;
}

std::int64_t count_in(const Json& usage, const char* key) {
  const Json* value = usage.find(key);
  if (!value || !value->is_integer() || value->as_integer() < 0 || value->as_integer() > 1'000'000'000)
    fail(ErrorKind::kBadInput, "the stream's usage has no sound {}", key);
  return value->as_integer();
}

std::string words_in(const Json& json) {
  for (const char* key : {"message", "detail"})
    if (const Json* words = json.find(key); words && words->is_string()) return words->as_string();
  return json.is_string() ? json.as_string() : json.dump();
}

bool has_text(const Json& choice) {
  const Json* text = choice.find("text");
  return text && text->is_string() && !text->as_string().empty();
}

}  // namespace

StreamPart read_stream_event(const std::string& data) {
  StreamPart part;
  if (data == "[DONE]") {
    part.ends = true;
    return part;
  }
  Json chunk;
  try {
    chunk = Json::parse(data, "stream", kChunkLimits);
  } catch (const Error&) {
    fail(ErrorKind::kBadInput, "an event of the stream is no JSON: {}", one_line(data));
  }
  if (!chunk.is_object())
    fail(ErrorKind::kBadInput, "an event of the stream is no chunk: {}", one_line(data));
  if (const Json* error = chunk.find("error"); error && !error->is_null())
    fail(ErrorKind::kBadInput, "the server says: {}", one_line(words_in(*error)));
  if (const Json* usage = as_object(chunk.find("usage")))
    part.usage = StreamUsage{count_in(*usage, "prompt_tokens"), count_in(*usage, "completion_tokens")};
  const Json* choices = chunk.find("choices");
  if (!choices || !choices->is_array())
    fail(ErrorKind::kBadInput, "an event of the stream has no choices: {}", one_line(data));
  for (const Json& choice : choices->items()) {
    const Json* reason = choice.find("finish_reason");
    const bool last = reason && !reason->is_null();
    part.ends = part.ends || last;
    part.delivers = part.delivers || has_text(choice) || !last;
  }
  return part;
}

std::string error_words(const std::string& body) {
  try {
    const Json json = Json::parse(body, "answer", kChunkLimits);
    if (const Json* error = json.find("error"); error && !error->is_null()) return one_line(words_in(*error));
    if (json.is_object()) return one_line(words_in(json));
  } catch (const Error&) {  // not JSON: its first line will do
  }
  return one_line(body.substr(0, body.find('\n')));
}

}  // namespace llmq
