#include "export/output/job_difference.h"

#include <fmt/format.h>

#include <vector>

namespace llmq {
namespace {

constexpr std::size_t kLongest = 48;  // of a value that is shown
constexpr std::size_t kMost = 4;      // differences named

std::string sentence(const std::string& place, const Json* before, const Json* now) {
  if (before == nullptr) return place + " is new";
  if (now == nullptr) return place + " is gone";
  const std::string was = before->dump(), is = now->dump();
  if (was.size() > kLongest || is.size() > kLongest) return place + " has changed";
  return fmt::format("{} was {} and is {}", place, was, is);
}

void compare(const std::string& place, const Json& before, const Json& now, std::vector<std::string>& found) {
  if (!before.is_object() || !now.is_object()) {
    if (before.dump() != now.dump())
      found.push_back(sentence(place.empty() ? "the job" : place, &before, &now));
    return;
  }
  const auto inside = [&](const std::string& name) { return place.empty() ? name : place + "." + name; };
  for (const Json::Member& member : before.members()) {
    if (const Json* other = now.find(member.first))
      compare(inside(member.first), member.second, *other, found);
    else
      found.push_back(sentence(inside(member.first), &member.second, nullptr));
  }
  for (const Json::Member& member : now.members())
    if (before.find(member.first) == nullptr)
      found.push_back(sentence(inside(member.first), nullptr, &member.second));
}

}  // namespace

std::string job_difference(const Json& before, const Json& now) {
  std::vector<std::string> found;
  compare({}, before, now, found);
  std::string text;
  for (std::size_t i = 0; i < found.size() && i < kMost; ++i) text += (i == 0 ? "" : "; ") + found[i];
  if (found.size() > kMost) text += fmt::format("; and {} more", found.size() - kMost);
  return text;
}

}  // namespace llmq
