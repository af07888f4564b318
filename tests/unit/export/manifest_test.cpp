// What a manifest says of an output, and what a hostile one cannot do.
#include "export/provenance/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "export/provenance/verify.h"
#include "model/open_checkpoint.h"
#include "tests/support/counting_io.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const std::string kHash(64, 'a');

std::string statement(const std::string& subjects) {
  return R"({"_type": "https://in-toto.io/Statement/v1", )"
         R"("predicateType": "https://slsa.dev/provenance/v1", "subject": [)" +
         subjects + "], \"predicate\": {}}";
}
std::string subject(const std::string& name, const std::string& hash = kHash) {
  return R"({"name": ")" + name + R"(", "digest": {"sha256": ")" + hash + "\"}}";
}

// A directory with two files and the manifest that fits them.
class Output {
 public:
  Output() {
    disk_.write("out/a.bin", "abc");
    disk_.write("out/b.txt", "");
    const std::vector<NamedDigest> files = digests_of(system_io(), path(), {{"a.bin", "b.txt"}});
    write("manifest.json", make_manifest({}, files).dump(1));
  }
  Path path() const { return disk_ / "out"; }
  void write(const std::string& name, const std::string& text) const { disk_.write("out/" + name, text); }
  const TemporaryDirectory& disk() const { return disk_; }
  Verification verify() const { return verify_output(system_io(), path()); }
  // "path expected found", one for each mismatch; digests as "sha".
  std::vector<std::string> mismatches() const {
    std::vector<std::string> lines;
    const auto word = [](const std::optional<std::string>& text) {
      return !text ? std::string("none") : text->size() == 64 ? "sha" : *text;
    };
    for (const Mismatch& m : verify().mismatches)
      lines.push_back(m.path + " " + word(m.expected) + " " + word(m.found));
    return lines;
  }

 private:
  TemporaryDirectory disk_;
};

TEST(ManifestTest, TakesTheDigestOfADocumentThatWasWrittenAnew) {
  const Output output;
  output.write("b.txt", "scores");
  EXPECT_THAT(output.mismatches(), Contains("b.txt sha sha"));
  const Json before = Json::parse(read_text(system_io(), output.path() / "manifest.json"), "manifest.json");
  const std::vector<NamedDigest> changed = {{"b.txt", 6, file_sha256(system_io(), output.path() / "b.txt")},
                                            {"other", 1, kHash}};
  const Json after = manifest_with(before, "manifest.json", changed);
  EXPECT_EQ(after.at("subject").items().size(), 2u) << "a name that it does not have is left out";
  EXPECT_EQ(after.at("subject").items()[0], before.at("subject").items()[0]);
  EXPECT_EQ(after.at("subject").items()[1].at("annotations").at("bytes").as_integer(), 6);
  output.write("manifest.json", after.dump(1));
  EXPECT_TRUE(output.verify().ok());
}

TEST(ManifestTest, IsAnInTotoStatementWithSlsaProvenance) {
  ProvenanceFacts facts;
  facts.version = "0.1.0", facts.commit = "abc1234", facts.command = "llmq quantize";
  facts.recipe = Json::object({{"method", "awq"}});
  facts.calibration = Json::object({{"sha256", "feed"}});
  facts.inputs = {{"model/config.json", 7, kHash}};
  const std::vector<NamedDigest> outputs = {{"b", 2, kHash}, {"a", 1, kHash}};
  const Json manifest = make_manifest(facts, outputs);
  EXPECT_EQ(manifest.at("_type").as_string(), "https://in-toto.io/Statement/v1");
  EXPECT_EQ(manifest.at("predicateType").as_string(), "https://slsa.dev/provenance/v1");
  EXPECT_EQ(manifest.at("subject").items()[0].at("name").as_string(), "a") << "by name";
  const Json& build = manifest.at("predicate").at("buildDefinition");
  EXPECT_EQ(build.at("externalParameters").at("recipe").at("method").as_string(), "awq");
  EXPECT_EQ(build.at("internalParameters").at("calibration").at("sha256").as_string(), "feed");
  EXPECT_EQ(build.at("resolvedDependencies").items()[0].at("digest").at("sha256").as_string(), kHash);
  EXPECT_THAT(manifest.at("predicate").at("runDetails").at("builder").at("id").as_string(),
              HasSubstr("0.1.0+abc1234"));
  EXPECT_EQ(manifest.dump(), make_manifest(facts, outputs).dump()) << "no time enters";
}

TEST(ManifestTest, KeepsWhatChangedTheSourceBefore) {
  for (const BuildKind kind : {BuildKind::kQuantize, BuildKind::kConvert}) {
    ProvenanceFacts facts;
    facts.kind = kind;
    facts.recipe = Json::object({});
    const auto found = [](const Json& manifest) {
      return manifest.at("predicate").at("buildDefinition").at("internalParameters");
    };
    EXPECT_EQ(found(make_manifest(facts, {})).find("changed_before"), nullptr);
    facts.changed_before = {"AWQ", "a rotation"};
    Json manifest = make_manifest(facts, {});
    EXPECT_EQ(manifest_facts(manifest, "m").changed_before, facts.changed_before);
    manifest["predicate"]["buildDefinition"]["internalParameters"]["changed_before"] = Json::array({5});
    try {
      manifest_facts(manifest, "m");
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("m: changed_before: names a change that is not a text"));
    }
  }
}

TEST(ManifestTest, AWriterPutsItIntoTheOutputBeforeTheOutputHasItsName) {
  const TemporaryDirectory disk;
  const Checkpoint source = open_checkpoint(system_io(), write_tiny_checkpoint(disk));
  std::vector<PlannedModule> modules = {{"model.layers.0.mlp.up_proj", {}, 128, 64}};
  modules.front().scheme.group_size = 64;
  CountingIo io;
  const auto writer =
      open_writer(io, "compressed-tensors", {disk / "out"}, source, ModelSpec::read(source), modules, {});
  for (const StoredTensor& tensor : source.tensors())
    if (tensor.name != "model.layers.0.mlp.up_proj.weight")
      writer->add_dense(tensor.name, tensor.view.dtype, tensor.view.shape,
                        {static_cast<const std::byte*>(tensor.view.pointer), tensor.view.bytes()});
  writer->add_quantized("model.layers.0.mlp.up_proj", tiny_matrix(modules.front(), 1));
  std::string digest;
  writer->finish({{"report.json", "{}"}}, [&](const std::vector<NamedDigest>& files) {
    digest = output_digest(files);
    return make_manifest({}, files).dump();
  });
  const Verification result = verify_output(system_io(), disk / "out");
  EXPECT_TRUE(result.ok()) << result.to_json().dump();
  EXPECT_EQ(result.files, 6u) << "config, generation config, manifest, report, tokenizer, weights";
  EXPECT_EQ(digest, output_digest(system_io(), disk / "out"));
  EXPECT_THAT(io.calls(), Contains("sync manifest.json"));
}

TEST(VerifyTest, SaysWhatDiffersWhatIsMissingAndWhatIsExtra) {
  const Output output;
  EXPECT_TRUE(output.verify().ok());
  output.write("a.bin", "abd");
  EXPECT_THAT(output.mismatches(), ::testing::ElementsAre("a.bin sha sha"));
  std::filesystem::remove(output.path() / "b.txt");
  output.write("sub/c.txt", "new");
  EXPECT_THAT(output.mismatches(),
              ::testing::ElementsAre("a.bin sha sha", "b.txt sha none", "sub/c.txt none sha"));
  EXPECT_FALSE(output.verify().ok());
}

TEST(VerifyTest, FollowsNoLinkInAnOutput) {
  const Output output;
  output.disk().write("secret", "abc");  // the very bytes of a.bin
  std::filesystem::remove(output.path() / "a.bin");
  std::filesystem::create_symlink("../secret", output.path() / "a.bin");
  std::filesystem::create_directory_symlink("..", output.path() / "up");
  EXPECT_THAT(output.mismatches(),
              ::testing::ElementsAre("a.bin sha a symbolic link", "up none a symbolic link"));
  std::filesystem::remove(output.path() / "manifest.json");
  std::filesystem::create_symlink("../secret", output.path() / "manifest.json");
  EXPECT_THROW(output.verify(), Error);
}

TEST(VerifyTest, ADirectoryNamedThroughALinkIsVerified) {
  const Output output;
  std::filesystem::create_directory_symlink("out", output.disk() / "latest");
  EXPECT_TRUE(verify_output(system_io(), output.disk() / "latest").ok());
}

TEST(VerifyTest, AHostileManifestIsRefusedInWordsAndNothingOutsideIsOpened) {
  const Output output;
  output.disk().write("secret", "abc");
  const std::string outside = (output.disk() / "secret").string();
  for (const std::string& text : {statement(subject("../secret")),
                                  statement(subject(outside)),
                                  statement(subject("a/../../secret")),
                                  statement(subject("./a.bin")),
                                  statement(subject("a//b")),
                                  statement(subject("")),
                                  statement(subject("a/")),
                                  statement(subject("..\\\\secret")),
                                  statement(subject("a\\u0000b")),
                                  statement(subject("a\\nb")),
                                  statement(subject("a.bin") + "," + subject("a.bin")),
                                  statement(subject(std::string(5000, 'x'))),
                                  statement(subject("a.bin", "abc")),
                                  statement(subject("a.bin", std::string(64, 'G'))),
                                  statement("{\"name\": 3}"),
                                  statement("3"),
                                  statement(subject("\xff")),
                                  std::string("{}"),
                                  std::string("[]"),
                                  std::string(""),
                                  std::string("{\"_type\": 1}"),
                                  std::string(200'000, '['),
                                  statement(subject("a.bin")) + "x",
                                  statement(R"({"name": "a.bin", "name": "b.txt"})")}) {
    output.write("manifest.json", text);
    CountingIo io;
    const Verification result = verify_output(io, output.path());
    EXPECT_FALSE(result.problem.empty()) << text.substr(0, 200);
    EXPECT_FALSE(result.ok());
    for (const std::string& call : io.calls()) EXPECT_THAT(call, ::testing::Not(HasSubstr("secret"))) << text;
  }
}

TEST(VerifyTest, AHugeManifestIsRefusedBeforeItIsRead) {
  const Output output;
  std::filesystem::resize_file(output.path() / "manifest.json", std::uintmax_t{1} << 40);  // sparse
  EXPECT_THAT(output.verify().problem, HasSubstr("more than"));
}

TEST(VerifyTest, AGgufHasItsManifestBesideIt) {
  const TemporaryDirectory disk;
  disk.write("m.gguf", "GGUF");
  disk.write("m.gguf.report.json", "{}");
  disk.write("another.gguf", "x");
  const auto files = digests_of(system_io(), disk.path(), {{"m.gguf", "m.gguf.report.json"}});
  disk.write("m.gguf.manifest.json", make_manifest({}, files).dump());
  EXPECT_TRUE(verify_output(system_io(), disk / "m.gguf").ok());
  disk.write("m.gguf.report.json", "{ }");
  const Verification result = verify_output(system_io(), disk / "m.gguf");
  ASSERT_EQ(result.mismatches.size(), 1u);
  EXPECT_EQ(result.mismatches.front().path, "m.gguf.report.json");
  disk.write("m.gguf.manifest.json", statement(subject("../another.gguf")));
  EXPECT_FALSE(verify_output(system_io(), disk / "m.gguf").problem.empty());
}

}  // namespace
}  // namespace llmq::testing
