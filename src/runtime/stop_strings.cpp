#include "runtime/stop_strings.h"

#include <algorithm>
#include <utility>

namespace llmq {
namespace {

// Length of the longest suffix of `text` that a stop string begins with.
std::size_t unsettled_suffix(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops)
    for (std::size_t length = std::min(stop.size() - 1, text.size()); length > longest; --length)
      if (std::string_view(stop).substr(0, length) == text.substr(text.size() - length)) longest = length;
  return longest;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopStrings::push(std::string_view piece, bool may_stop) {
  if (stopped_) return {};
  held_ += piece;
  if (!may_stop) early_ = held_.size();
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_)
    first = std::min(first, held_.find(stop, early_ < stop.size() ? 0 : early_ - stop.size() + 1));
  stopped_ = first != std::string::npos;
  const std::size_t settled = stopped_ ? first : held_.size() - unsettled_suffix(held_, stops_);
  std::string text = held_.substr(0, settled);
  held_.erase(0, stopped_ ? held_.size() : settled);
  early_ -= std::min(early_, settled);
  return text;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace llmq
