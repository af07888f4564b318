// model.sig: what it vouches for, and that nothing can be changed behind its back.
#include "export/provenance/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "export/provenance/manifest.h"
#include "export/provenance/verify.h"
#include "tests/support/new_key.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

class SignedOutput : public ::testing::Test {
 protected:
  SignedOutput() {
    disk_.write("out/a.bin", "abc");
    disk_.write("out/b.txt", "text");
    disk_.write("out/manifest.json",
                make_manifest({}, digests_of(system_io(), out(), {{"a.bin", "b.txt"}})).dump());
    disk_.write("private.pem", keys_.private_pem);
    disk_.write("public.pem", keys_.public_pem);
    sign_output(system_io(), out(), disk_ / "private.pem");
  }
  Path out() const { return disk_ / "out"; }
  Verification verify() const { return verify_output(system_io(), out(), disk_ / "public.pem"); }
  Json bundle() const { return Json::parse(disk_.read("out/model.sig"), "model.sig"); }
  void write(const Json& bundle) const { disk_.write("out/model.sig", bundle.dump()); }

  TemporaryDirectory disk_;
  KeyPair keys_ = new_key();
};

TEST_F(SignedOutput, Verifies) {
  const Verification result = verify();
  EXPECT_TRUE(result.ok()) << result.to_json().dump();
  EXPECT_TRUE(result.signature_checked);
  EXPECT_EQ(result.files, 3u);
  EXPECT_TRUE(verify_output(system_io(), out()).ok()) << "without a key by the manifest alone";
}

TEST_F(SignedOutput, IsAStatementOfModelSigning) {
  const Json sig = bundle();
  EXPECT_EQ(sig.at("mediaType").as_string(), "application/vnd.dev.sigstore.bundle.v0.3+json");
  const Json statement =
      Json::parse(*from_base64(sig.at("dsseEnvelope").at("payload").as_string()), "payload");
  EXPECT_EQ(statement.at("predicateType").as_string(), "https://model_signing/signature/v1.0");
  EXPECT_EQ(statement.at("subject").items()[0].at("name").as_string(), "out");
  const Json::Array& resources = statement.at("predicate").at("resources").items();
  ASSERT_EQ(resources.size(), 3u);
  EXPECT_EQ(resources[0].at("name").as_string(), "a.bin");
  EXPECT_EQ(resources[0].at("digest").as_string(), file_sha256(system_io(), out() / "a.bin"));
}

TEST_F(SignedOutput, AChangedMissingOrExtraFileIsNamed) {
  disk_.write("out/a.bin", "abd");
  ASSERT_EQ(verify().mismatches.size(), 1u);
  EXPECT_EQ(verify().mismatches[0].path, "a.bin");
  disk_.write("out/manifest.json",  // of the changed files: the signature still knows
              make_manifest({}, digests_of(system_io(), out(), {{"a.bin", "b.txt"}})).dump());
  EXPECT_EQ(verify().mismatches.size(), 2u);
  EXPECT_TRUE(verify_output(system_io(), out()).ok());
  disk_.write("out/c.txt", "");
  EXPECT_EQ(verify().mismatches.size(), 3u);
}

TEST_F(SignedOutput, AnotherKeyIsNamedAsSuch) {
  disk_.write("public.pem", new_key().public_pem);
  EXPECT_THAT(verify().problem, HasSubstr("another key"));
  Json sig = bundle();
  sig["verificationMaterial"]["publicKey"]["hint"] = "";
  write(sig);
  EXPECT_THAT(verify().problem, HasSubstr("another key"));
  sig["verificationMaterial"].erase("publicKey");
  write(sig);
  EXPECT_THAT(verify().problem, HasSubstr("another key"));
}

TEST_F(SignedOutput, NoBitOfTheEnvelopeCanBeChanged) {
  const Json sound = bundle();
  for (const char* part : {"payload", "sig"}) {
    Json& text = std::string(part) == "payload"
                     ? const_cast<Json&>(sound.at("dsseEnvelope").at("payload"))
                     : const_cast<Json&>(sound.at("dsseEnvelope").at("signatures").items()[0].at("sig"));
    const std::string whole = text.as_string();
    for (std::size_t i = 0; i < whole.size(); i += 1 + whole.size() / 40) {
      std::string changed = whole;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      text = changed;
      write(sound);
      EXPECT_FALSE(verify().problem.empty()) << part << " " << i;
    }
    text = whole;
  }
  write(sound);
  EXPECT_TRUE(verify().ok());
}

TEST_F(SignedOutput, AnEnvelopeOfAnotherTypeIsRefused) {
  Json sig = bundle();
  sig["dsseEnvelope"]["payloadType"] = "application/json";
  write(sig);
  EXPECT_THAT(verify().problem, HasSubstr("application/json"));
  disk_.write("out/model.sig", "not json");
  EXPECT_FALSE(verify().problem.empty());
  disk_.write("out/model.sig", "{}");
  EXPECT_FALSE(verify().problem.empty());
  std::filesystem::remove(out() / "model.sig");
  EXPECT_THAT(verify().problem, HasSubstr("model.sig")) << "a signature that was taken away is missed";
}

TEST_F(SignedOutput, SigningRefusesWhatIsNotAsItWasWritten) {
  disk_.write("out/a.bin", "abd");
  try {
    sign_output(system_io(), out(), disk_ / "private.pem");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("manifest"));
  }
  std::filesystem::remove(out() / "manifest.json");
  std::filesystem::create_symlink("b.txt", out() / "link");
  EXPECT_THROW(sign_output(system_io(), out(), disk_ / "private.pem"), Error);
  std::filesystem::remove(out() / "link");
  sign_output(system_io(), out(), disk_ / "private.pem");
  EXPECT_TRUE(verify().ok()) << "a directory without a manifest can be signed";
}

// A .gguf and its documents lie among files that are not theirs.
class SignedGguf : public ::testing::Test {
 protected:
  SignedGguf() {
    disk_.write("m.gguf", "GGUF weights");
    disk_.write("m.gguf.report.json", "{}");
    disk_.write("elsewhere.txt", "of somebody else");
    write_manifest();
    disk_.write("private.pem", keys_.private_pem);
    disk_.write("public.pem", keys_.public_pem);
  }
  void write_manifest() const {
    const auto files = digests_of(system_io(), disk_.path(), {{"m.gguf", "m.gguf.report.json"}});
    disk_.write("m.gguf.manifest.json", make_manifest({}, files).dump());
  }
  Path file() const { return disk_ / "m.gguf"; }
  Signed sign() const { return sign_output(system_io(), file(), disk_ / "private.pem"); }
  Verification verify() const { return verify_output(system_io(), file(), disk_ / "public.pem"); }
  std::vector<std::string> differing() const {
    std::vector<std::string> paths;
    for (const Mismatch& one : verify().mismatches) paths.push_back(one.path);
    return paths;
  }

  TemporaryDirectory disk_;
  KeyPair keys_ = new_key();
};

TEST_F(SignedGguf, VouchesForTheFileItsReportAndItsManifest) {
  const Signed made = sign();
  EXPECT_EQ(made.signature, disk_ / "m.gguf.sig");
  EXPECT_EQ(made.files, 3u);
  EXPECT_TRUE(verify().ok()) << verify().to_json().dump();
  EXPECT_TRUE(verify().signature_checked);
  disk_.write("public.pem", new_key().public_pem);
  EXPECT_THAT(verify().problem, HasSubstr("another key"));
  disk_.write("public.pem", keys_.public_pem);
  disk_.write("m.gguf", "GGUF Weights");
  EXPECT_EQ(differing(), std::vector<std::string>{"m.gguf"});
  write_manifest();  // of the changed file: the signature still knows
  EXPECT_EQ(differing(), (std::vector<std::string>{"m.gguf", "m.gguf.manifest.json"}));
  disk_.write("m.gguf", "GGUF weights");
  std::filesystem::remove(disk_ / "m.gguf.manifest.json");
  EXPECT_EQ(differing(), std::vector<std::string>{"m.gguf.manifest.json"})
      << "a manifest that was taken away";
}

TEST_F(SignedGguf, IsNotSignedWhenItIsNotWhatItsManifestSays) {
  disk_.write("m.gguf.report.json", "{ }");
  EXPECT_THROW(sign(), Error);
  write_manifest();
  std::filesystem::rename(disk_ / "m.gguf.report.json", disk_ / "report");
  std::filesystem::create_symlink("report", disk_ / "m.gguf.report.json");
  EXPECT_THROW(sign(), Error);
  EXPECT_THROW(sign_output(system_io(), disk_ / "elsewhere.txt", disk_ / "private.pem"), Error);
  EXPECT_FALSE(std::filesystem::exists(disk_ / "m.gguf.sig"));
}

// As model_signing 1.1.1 signs a path that is a file.
TEST_F(SignedGguf, OfTheFileAloneSaysNothingOfWhatLiesBeside) {
  std::string pem = keys_.private_pem;
  const NamedDigest alone = {".", 12, file_sha256(system_io(), file())};
  disk_.write("m.gguf.sig", make_signature("m.gguf", {alone}, EcdsaKey::private_key(pem, "")).dump());
  EXPECT_TRUE(verify().ok()) << verify().to_json().dump();
  disk_.write("m.gguf", "GGUF Weights");
  write_manifest();
  EXPECT_EQ(differing(), std::vector<std::string>{"m.gguf"});
}

// A signer may lie about the order of its own statement; the root digest ties the list together.
TEST_F(SignedOutput, AStatementMustAddUp) {
  std::string pem = keys_.private_pem;
  const EcdsaKey key = EcdsaKey::private_key(pem, "");
  Json sig = make_signature("x", {{"a.bin", 3, std::string(64, 'a')}}, key);
  EXPECT_NO_THROW(read_signature(sig, key, "model.sig"));
  std::string payload = *from_base64(sig.at("dsseEnvelope").at("payload").as_string());
  payload.replace(payload.find(std::string(64, 'a')), 64, std::string(64, 'b'));
  sig["dsseEnvelope"]["payload"] = base64(payload);
  const std::string pae =
      "DSSEv1 28 application/vnd.in-toto+json " + std::to_string(payload.size()) + " " + payload;
  sig["dsseEnvelope"]["signatures"].items()[0]["sig"] = base64(key.sign(pae));
  try {
    read_signature(sig, key, "model.sig");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("root digest"));
  }
}

}  // namespace
}  // namespace llmq::testing
