// SHA-256 by OpenSSL's EVP interface, which picks the SHA instructions where the processor has them.
#include "base/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "base/error.h"

namespace llmq {
namespace {

void check_sha256(int result) {
  if (result != 1) fail(ErrorKind::kInternal, "OpenSSL refused SHA-256");
}

}  // namespace

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check_sha256(state_->context ? 1 : 0);
  check_sha256(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  check_sha256(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest{};
  unsigned int size = 0;
  check_sha256(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size));
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::array<std::uint8_t, 32> sha256_bytes(std::string_view text) {
  std::array<std::uint8_t, 32> digest{};
  check_sha256(EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr));
  return digest;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

}  // namespace llmq
