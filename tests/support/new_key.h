// A fresh elliptic-curve key as PEM texts, made for one test.
#pragma once
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace llmq::testing {

struct KeyPair {
  std::string private_pem, public_pem;
};

// `passphrase`: encrypts the private one.
inline KeyPair new_key(const std::string& curve = "P-256", const std::string& passphrase = {}) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen(curve.c_str()), &EVP_PKEY_free);
  if (!key) throw std::runtime_error("no key of the curve " + curve);
  const auto pem = [&](auto&& write) {
    const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new(BIO_s_mem()), &BIO_free);
    if (write(bio.get()) != 1) throw std::runtime_error("a key cannot be written");
    char* text = nullptr;
    const long size = BIO_get_mem_data(bio.get(), &text);
    return std::string(text, static_cast<std::size_t>(size));
  };
  return {pem([&](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key.get(), passphrase.empty() ? nullptr : EVP_aes_256_cbc(),
                                            reinterpret_cast<const unsigned char*>(passphrase.data()),
                                            static_cast<int>(passphrase.size()), nullptr, nullptr);
          }),
          pem([&](BIO* bio) { return PEM_write_bio_PUBKEY(bio, key.get()); })};
}

}  // namespace llmq::testing
