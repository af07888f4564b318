// Any bytes as what a server streams: the same events however they are cut, and each a part or an Error;
// words of an error that can be shown.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/utf8_sequence.h"
#include "evaluate/completion_stream.h"
#include "http/client.h"
#include "http/event_stream.h"

namespace {

// The events of `text` in pieces of `cut` bytes; "too long" ends them.
std::vector<std::string> events(std::string_view text, std::size_t cut) {
  llmq::EventStream stream(256);
  std::vector<std::string> found;
  try {
    for (std::size_t at = 0; at < text.size(); at += cut)
      stream.feed(text.substr(at, cut), [&](const std::string& data) { found.push_back(data); });
  } catch (const llmq::Error&) {
    found.emplace_back("too long");
  }
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  const std::vector<std::string> whole = events(text, size + 1);
  if (events(text, 1) != whole || events(text, 7) != whole) std::abort();
  for (const std::string& event : whole) try {
      const llmq::StreamPart part = llmq::read_stream_event(event);
      if (part.usage && (part.usage->prompt_tokens < 0 || part.usage->completion_tokens < 0)) std::abort();
    } catch (const llmq::Error& error) {
      if (error.detail().message.size() > 400 || !llmq::is_utf8(error.detail().message)) std::abort();
    }
  const std::string words = llmq::error_words(text);
  if (words.size() > 400 || !llmq::is_utf8(words)) std::abort();
  try {
    const llmq::HttpTarget target = llmq::parse_http_url("http://" + text, "--endpoint");
    if (target.host.empty() || target.port < 1 || target.port > 65535 ||
        target.path.find_first_of("\r\n ") != std::string::npos)
      std::abort();
  } catch (const llmq::Error&) {
  }
  return 0;
}
