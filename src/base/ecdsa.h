// ECDSA over the curve P-256 with SHA-256 (FIPS 186-5), and base64, through OpenSSL.
//
// Keys come as PEM files. A private key's text is wiped after it was read, and no message holds any part of
// it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace llmq {

// "secp256r1", private or public.
class EcdsaKey {
 public:
  // `file` stands in errors, which are kBadInput: no PEM, another kind of key or curve, a wrong passphrase.
  // An encrypted private key is opened with $LLMQ_KEY_PASSPHRASE.
  static EcdsaKey private_key(std::string& pem, const std::string& file);  // wipes `pem`
  static EcdsaKey public_key(std::string_view pem, const std::string& file);

  std::string sign(std::string_view message) const;  // DER; a private key only
  bool verifies(std::string_view message, std::string_view signature) const;
  std::string public_pem() const;  // SubjectPublicKeyInfo

 private:
  struct State;
  explicit EcdsaKey(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

std::string base64(std::string_view bytes);
std::optional<std::string> from_base64(std::string_view text);  // of padded groups of four, and nothing else

}  // namespace llmq
