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

TraceContext read_traceparent(std::string_view header) {
  constexpr std::string_view kForm = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  if (header.size() < kForm.size()) return {};
  for (std::size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == 'x' ? kHex.find(header[i]) == std::string_view::npos : header[i] != kForm[i]) return {};
  const std::string_view version = header.substr(0, 2), rest = header.substr(kForm.size()),
                         trace = header.substr(3, 32), span = header.substr(36, 16);
  if (version == "ff" || (!rest.empty() && (version == "00" || rest.front() != '-'))) return {};
  for (const std::string_view id : {trace, span})
    if (id.find_first_not_of('0') == std::string_view::npos) return {};
  const bool sampled = kHex.find(header[kForm.size() - 1]) % 2 == 1;
  return {std::string(trace), std::string(span), sampled};
}

}  // namespace llmq
