#include "base/ecdsa.h"

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace llmq {
namespace {

template <typename Type>
using Owned = std::unique_ptr<Type, void (*)(Type*)>;
using OwnedKey = Owned<EVP_PKEY>;

void free_bio(BIO* bio) { BIO_free(bio); }

[[noreturn]] void refuse(const std::string& message, const std::string& file, const std::string& hint) {
  ERR_clear_error();  // OpenSSL's own words may describe the key
  fail(ErrorKind::kBadInput, {message, file, {}, hint});
}

// Without this OpenSSL would ask on the terminal.
int give_passphrase(char* buffer, int size, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  const char* phrase = std::getenv("LLMQ_KEY_PASSPHRASE");
  const std::size_t length = phrase == nullptr ? 0 : std::strlen(phrase);
  if (length == 0 || length > static_cast<std::size_t>(size)) return -1;
  std::memcpy(buffer, phrase, length);  // NOLINT(bugprone-not-null-terminated-result): OpenSSL takes a length
  return static_cast<int>(length);
}

void check_curve(const EVP_PKEY* key, const std::string& file) {
  char curve[64] = {};
  std::size_t length = 0;
  const bool elliptic = EVP_PKEY_is_a(key, "EC") == 1;
  if (elliptic) EVP_PKEY_get_utf8_string_param(key, OSSL_PKEY_PARAM_GROUP_NAME, curve, sizeof curve, &length);
  if (std::string_view(curve, length) != "prime256v1")
    refuse(elliptic ? fmt::format("is a key of the curve {}, not of P-256", length == 0 ? "unknown" : curve)
                    : std::string("is not an elliptic-curve key"),
           file, "openssl ecparam -name prime256v1 -genkey -noout makes one");
}

void check_ecdsa(int result) {
  if (result == 1) return;
  ERR_clear_error();
  fail(ErrorKind::kInternal, "OpenSSL refused ECDSA over P-256");
}

Owned<BIO> memory_of(std::string_view text) {
  Owned<BIO> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &free_bio);
  if (!bio) fail(ErrorKind::kResource, "out of memory");
  return bio;
}

constexpr std::size_t kMaxPemBytes = 1 << 16;

}  // namespace

struct EcdsaKey::State {
  OwnedKey key;
};

EcdsaKey EcdsaKey::private_key(std::string& pem, const std::string& file) {
  bool asked = false;
  OwnedKey key(nullptr, &EVP_PKEY_free);
  if (pem.size() <= kMaxPemBytes)
    key.reset(PEM_read_bio_PrivateKey(memory_of(pem).get(), nullptr, &give_passphrase, &asked));
  OPENSSL_cleanse(pem.data(), pem.size());
  pem.clear();
  if (!key && asked)
    refuse("is encrypted, and LLMQ_KEY_PASSPHRASE does not open it", file, "set it to the key's passphrase");
  if (!key)
    refuse("holds no private key in PEM form", file,
           "openssl ecparam -name prime256v1 -genkey -noout -out FILE makes one");
  check_curve(key.get(), file);
  return EcdsaKey(std::make_shared<const State>(State{std::move(key)}));
}

EcdsaKey EcdsaKey::public_key(std::string_view pem, const std::string& file) {
  OwnedKey key(nullptr, &EVP_PKEY_free);
  if (pem.size() <= kMaxPemBytes)
    key.reset(PEM_read_bio_PUBKEY(memory_of(pem).get(), nullptr, nullptr, nullptr));
  if (!key)
    refuse("holds no public key in PEM form", file, "openssl ec -in PRIVATE -pubout -out FILE writes one");
  check_curve(key.get(), file);
  return EcdsaKey(std::make_shared<const State>(State{std::move(key)}));
}

std::string EcdsaKey::sign(std::string_view message) const {
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  std::size_t size = 0;
  check_ecdsa(context ? 1 : 0);
  check_ecdsa(EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, state_->key.get()));
  check_ecdsa(EVP_DigestSign(context.get(), nullptr, &size, bytes, message.size()));
  std::string signature(size, '\0');
  check_ecdsa(EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, bytes,
                             message.size()));
  signature.resize(size);
  return signature;
}

bool EcdsaKey::verifies(std::string_view message, std::string_view signature) const {
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  check_ecdsa(context ? 1 : 0);
  check_ecdsa(EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, state_->key.get()));
  const int result = EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                                      signature.size(),
                                      reinterpret_cast<const unsigned char*>(message.data()), message.size());
  ERR_clear_error();
  return result == 1;
}

std::string EcdsaKey::public_pem() const {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()), &free_bio);
  check_ecdsa(bio ? 1 : 0);
  check_ecdsa(PEM_write_bio_PUBKEY(bio.get(), state_->key.get()));
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

std::string base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t digits = std::min(text.find_first_not_of(kDigits), text.size()),
                    padding = text.size() - digits;
  if (text.size() % 4 != 0 || padding > 2 || text.substr(digits) != std::string_view("==").substr(0, padding))
    return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(size) - padding);
  if (base64(bytes) != text) return std::nullopt;  // bits that no byte needs must be zero
  return bytes;
}

}  // namespace llmq
