#include "http/request_id.h"

#include <fmt/core.h>

#include <cstdint>
#include <mutex>
#include <random>

namespace llmq {
namespace {

constexpr std::size_t kLongestId = 128;
constexpr std::string_view kIdCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=@~";
constexpr std::string_view kHex = "0123456789abcdef";

}  // namespace

std::string unique_name(const std::string& prefix) {
  static std::mutex mutex;
  static std::mt19937_64 numbers{(std::uint64_t{std::random_device()()} << 32) | std::random_device()()};
  const std::lock_guard lock(mutex);
  return fmt::format("{}{:016x}{:08x}", prefix, numbers(), numbers() & 0xffffffffu);
}

std::string request_id(std::string_view sent) {
  const bool usable = !sent.empty() && sent.size() <= kLongestId &&
                      sent.find_first_not_of(kIdCharacters) == std::string_view::npos;
  return usable ? std::string(sent) : unique_name();
}

std::string trace_id(std::string_view traceparent) {
  constexpr std::string_view kForm = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  if (traceparent.size() != kForm.size()) return {};
  for (std::size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == 'x' ? kHex.find(traceparent[i]) == std::string_view::npos : traceparent[i] != kForm[i])
      return {};
  const std::string_view trace = traceparent.substr(3, 32);
  return trace.find_first_not_of('0') == std::string_view::npos ? std::string() : std::string(trace);
}

}  // namespace llmq
