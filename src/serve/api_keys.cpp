#include "serve/api_keys.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/trimmed.h"

namespace llmq {
namespace {

constexpr std::size_t kShortest = 16;  // characters: less can be tried out

// No branch and no early end depends on what the bytes are.
bool equal_in_constant_time(const std::array<std::uint8_t, 32>& a, const std::array<std::uint8_t, 32>& b) {
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference = static_cast<std::uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

bool is_bearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  if (scheme.size() < kBearer.size()) return false;
  for (std::size_t i = 0; i < kBearer.size(); ++i)
    if ((scheme[i] >= 'A' && scheme[i] <= 'Z' ? scheme[i] + ('a' - 'A') : scheme[i]) != kBearer[i])
      return false;
  return true;
}

}  // namespace

ApiKeys ApiKeys::parse(std::string_view text, const std::string& file) {
  ApiKeys keys;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    const std::string_view key = trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (key.empty() || key.front() == '#') continue;
    if (key.size() < kShortest)
      fail(ErrorKind::kBadInput,
           {fmt::format("a key of {} characters can be guessed", key.size()), file,
            fmt::format("line {}", line), fmt::format("use at least {}: openssl rand -hex 24", kShortest)});
    keys.digests_.push_back(sha256_bytes(key));
  }
  if (keys.digests_.empty())
    fail(ErrorKind::kBadInput, {"holds no key", file, {}, "write one key per line: openssl rand -hex 24"});
  return keys;
}

std::optional<std::string> ApiKeys::tenant(std::string_view authorization) const {
  if (!required()) return std::string();
  const bool bearer = is_bearer(authorization);
  const auto digest = sha256_bytes(trimmed(bearer ? authorization.substr(7) : authorization));
  bool known = false;
  for (const auto& key : digests_) known = equal_in_constant_time(key, digest) || known;
  if (!known || !bearer) return std::nullopt;
  return "tenant:" + std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

}  // namespace llmq
