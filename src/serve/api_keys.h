// Who may ask: keys, one per line of a file, of which only SHA-256 is kept. Comparing looks at every byte of
// every key, so that its time tells nothing about how much of a key was right.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmq {

class ApiKeys {
 public:
  ApiKeys() = default;  // nobody needs a key
  // Lines of at least 16 characters; empty ones and those that begin with '#' are skipped. Error(kBadInput)
  // with file and line; a file without a key is refused.
  static ApiKeys parse(std::string_view text, const std::string& file);

  bool required() const { return !digests_.empty(); }
  // Of an Authorization header ("Bearer KEY"): the tenant, by which prefixes are kept apart; none for a wrong
  // or absent key. Without keys everyone is the tenant "".
  std::optional<std::string> tenant(std::string_view authorization) const;

 private:
  std::vector<std::array<std::uint8_t, 32>> digests_;
};

}  // namespace llmq
