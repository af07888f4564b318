// SHA-256 (FIPS 180-4) through OpenSSL, streamed.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace llmq {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::string hex();  // 64 lower-case digits; ends the stream

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::array<std::uint8_t, 32> sha256_bytes(std::string_view text);
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace llmq
