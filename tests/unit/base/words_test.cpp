// Errors, checked sizes, hashes and name patterns: the small parts of src/base.
#include <gtest/gtest.h>

#include <string>

#include "base/checked.h"
#include "base/error.h"
#include "base/pattern.h"
#include "base/sha256.h"

namespace llmq {
namespace {

TEST(Error, SaysFilePlaceMessageAndHint) {
  const Error error(ErrorKind::kBadInput, ErrorDetail{"found 3", "a.json", "key x", "write 4"});
  EXPECT_STREQ(error.what(), "a.json: key x: found 3; write 4");
  EXPECT_STREQ(Error(ErrorKind::kIo, ErrorDetail{"alone", {}, {}, {}}).what(), "alone");
}

TEST(Error, ExitCodesTellInputFromFailure) {
  for (const ErrorKind kind : {ErrorKind::kUsage, ErrorKind::kBadInput, ErrorKind::kUnsupported})
    EXPECT_EQ(exit_code(kind), 2);
  for (const ErrorKind kind :
       {ErrorKind::kIo, ErrorKind::kDevice, ErrorKind::kResource, ErrorKind::kInternal})
    EXPECT_EQ(exit_code(kind), 1);
}

TEST(Checked, OverflowIsAnAnswer) {
  EXPECT_EQ(checked_mul(1ull << 32, 1ull << 31), 1ull << 63);
  EXPECT_FALSE(checked_mul(1ull << 32, 1ull << 32));
  EXPECT_EQ(checked_add(~0ull, 0), ~0ull);
  EXPECT_FALSE(checked_add(~0ull, 1));
  EXPECT_EQ(round_up(33, 32), 64u);
}

TEST(Sha256, NistVectors) {  // FIPS 180-4 examples, NIST CSRC
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.update("a");
  abc.update("bc");
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 million;
  for (int i = 0; i < 1000; ++i) million.update(std::string(1000, 'a'));
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(NamePattern, PlainNamesAreWholeTails) {
  const NamePattern head("lm_head");
  EXPECT_TRUE(head.matches("lm_head"));
  EXPECT_TRUE(head.matches("model.lm_head"));
  EXPECT_FALSE(head.matches("my_lm_head"));
  EXPECT_FALSE(head.matches("lm_head.weight"));
  EXPECT_TRUE(NamePattern("mlp.gate").matches("model.layers.0.mlp.gate"));
  EXPECT_FALSE(NamePattern("mlp.gate").matches("model.layers.0.xmlp.gate"));
}

TEST(NamePattern, ExpressionsMatchFromTheStart) {
  EXPECT_TRUE(NamePattern("re:.*down_proj").matches("model.layers.3.mlp.down_proj"));
  EXPECT_TRUE(NamePattern("re:model\\.layers\\.[0-3]\\.").matches("model.layers.3.mlp.down_proj"));
  EXPECT_FALSE(NamePattern("re:down_proj").matches("model.layers.3.mlp.down_proj"));
  EXPECT_FALSE(NamePattern("re:.*down_proj$").matches("model.down_proj_x"));
}

TEST(NamePattern, RefusesWhatRe2CannotRead) {
  for (const char* text : {"re:(", "re:(?!x)y", "re:(a)\\1", ""}) {
    try {
      const NamePattern pattern(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << text;
    }
  }
}

TEST(NamePattern, IsLinearOnAnyInput) {  // (a*)*b backtracks exponentially elsewhere; here it must simply end
  EXPECT_FALSE(NamePattern("re:(a*)*b").matches(std::string(100000, 'a')));
}

}  // namespace
}  // namespace llmq
