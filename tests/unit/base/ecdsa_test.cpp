// Signatures that verify, and everything that must not.
#include "base/ecdsa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "tests/support/new_key.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

EcdsaKey open_private(std::string pem) { return EcdsaKey::private_key(pem, "key.pem"); }

std::string key_refusal(const std::string& pem, bool is_private) {
  try {
    if (is_private)
      open_private(pem);
    else
      EcdsaKey::public_key(pem, "key.pem");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
}

TEST(EcdsaTest, ASignatureFitsItsMessageAndItsKey) {
  const KeyPair pair = new_key(), another = new_key();
  const std::string message = "all of it";
  const std::string signature = open_private(pair.private_pem).sign(message);
  const EcdsaKey key = EcdsaKey::public_key(pair.public_pem, "key.pem");
  EXPECT_TRUE(key.verifies(message, signature));
  EXPECT_EQ(key.public_pem(), pair.public_pem);
  EXPECT_EQ(open_private(pair.private_pem).public_pem(), pair.public_pem);
  EXPECT_FALSE(key.verifies("all of iT", signature));
  EXPECT_FALSE(EcdsaKey::public_key(another.public_pem, "").verifies(message, signature));
  for (std::size_t i = 0; i < signature.size(); ++i) {
    std::string changed = signature;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(key.verifies(message, changed)) << i;
  }
  EXPECT_FALSE(key.verifies(message, ""));
  EXPECT_FALSE(key.verifies(message, signature.substr(1)));
}

TEST(EcdsaTest, APrivateKeysTextIsWiped) {
  std::string pem = new_key().private_pem;
  const char* bytes = pem.data();
  EcdsaKey::private_key(pem, "key.pem");
  EXPECT_TRUE(pem.empty());
  EXPECT_EQ(bytes[1], '\0');  // still the string's own storage
}

TEST(EcdsaTest, OtherKeysAreRefusedInWordsThatHoldNoneOfTheKey) {
  const KeyPair pair = new_key();
  const std::string secret = pair.private_pem.substr(40, 20);
  EXPECT_THAT(key_refusal(new_key("P-384").private_pem, true), HasSubstr("secp384r1"));
  EXPECT_THAT(key_refusal(new_key("P-384").public_pem, false), HasSubstr("P-256"));
  EXPECT_THAT(key_refusal(pair.public_pem, true), HasSubstr("no private key"));
  EXPECT_THAT(key_refusal(pair.private_pem, false), HasSubstr("no public key"));
  for (const std::string& text :
       {std::string(), std::string("x"), pair.private_pem.substr(0, pair.private_pem.size() / 2),
        std::string(1 << 20, 'A')}) {
    EXPECT_THAT(key_refusal(text, true), HasSubstr("no private key"));
    EXPECT_THAT(key_refusal(text, true), Not(HasSubstr(secret)));
    EXPECT_THAT(key_refusal(text, false), HasSubstr("no public key"));
  }
}

TEST(EcdsaTest, AnEncryptedKeyNeedsItsPassphraseAndNobodyIsAsked) {
  const KeyPair pair = new_key("P-256", "open sesame");
  ::unsetenv("LLMQ_KEY_PASSPHRASE");
  EXPECT_THAT(key_refusal(pair.private_pem, true), HasSubstr("encrypted"));
  ::setenv("LLMQ_KEY_PASSPHRASE", "wrong", 1);
  EXPECT_THAT(key_refusal(pair.private_pem, true), HasSubstr("encrypted"));
  ::setenv("LLMQ_KEY_PASSPHRASE", "open sesame", 1);
  EXPECT_EQ(open_private(pair.private_pem).public_pem(), pair.public_pem);
  ::unsetenv("LLMQ_KEY_PASSPHRASE");
}

TEST(Base64Test, RoundTripsAndRefusesWhatIsNot) {
  // RFC 4648, section 10
  for (const auto& [bytes, text] : std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                                                    {"f", "Zg=="},
                                                                                    {"fo", "Zm8="},
                                                                                    {"foo", "Zm9v"},
                                                                                    {"foob", "Zm9vYg=="},
                                                                                    {"fooba", "Zm9vYmE="},
                                                                                    {"foobar", "Zm9vYmFy"}}) {
    EXPECT_EQ(base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg==\n", " Zg==", "Zg==Zg==", "====", "=g==", "Z===", "Zm9-", "Zh==", "Zm9\xff"})
    EXPECT_EQ(from_base64(text), std::nullopt) << text;
}

}  // namespace
}  // namespace llmq::testing
