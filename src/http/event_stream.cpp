#include "http/event_stream.h"

#include <utility>

#include "base/error.h"

namespace llmq {

void EventStream::feed(std::string_view piece, const std::function<void(const std::string& data)>& on_data) {
  for (const char c : piece) {
    const bool second_half = c == '\n' && after_return_;  // of one end of a line
    after_return_ = c == '\r';
    if (second_half) continue;
    if (c == '\n' || c == '\r') {
      line(on_data);
    } else {
      if (line_.size() + data_.size() >= max_event_)
        fail(ErrorKind::kBadInput, "an event of the stream has more than {} bytes", max_event_);
      line_ += c;
    }
  }
}

void EventStream::line(const std::function<void(const std::string& data)>& on_data) {
  const std::string line = std::exchange(line_, {});
  if (line.empty()) {
    if (std::exchange(has_data_, false)) on_data(std::exchange(data_, {}));
    return;
  }
  const std::size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;
  std::string_view value =
      colon == std::string::npos ? std::string_view() : std::string_view(line).substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (std::exchange(has_data_, true)) data_ += '\n';
  data_ += value;
}

}  // namespace llmq
