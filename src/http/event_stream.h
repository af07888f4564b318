// Server-sent events, as they come in pieces: the data of each, whole.
//
// Lines end in \n, \r\n or \r; comments and fields other than data are skipped; several data lines of an
// event are joined by \n, as the standard (WHATWG HTML, 9.2) says. Only what an unfinished event has so far
// is kept.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace llmq {

class EventStream {
 public:
  explicit EventStream(std::size_t max_event = 1u << 20) : max_event_(max_event) {}
  // Calls `on_data` for each event that `piece` ends. Error(kBadInput) for an event of more than max_event
  // bytes.
  void feed(std::string_view piece, const std::function<void(const std::string& data)>& on_data);

 private:
  void line(const std::function<void(const std::string& data)>& on_data);

  std::size_t max_event_;
  std::string line_, data_;
  bool has_data_ = false, after_return_ = false;
};

}  // namespace llmq
