// A packed output: every blob is where its digest says, of the size that is said, and nothing half-made has
// the name.
#include "export/provenance/oci_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "export/provenance/manifest.h"
#include "export/provenance/tar_file.h"
#include "tests/support/failing_io.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class OciLayoutTest : public ::testing::Test {
 protected:
  OciLayoutTest() {
    write_tiny_checkpoint(disk_, "model");
    disk_.write("model/README.md", "# card\n");
    disk_.write("model/LICENSE", "# card\n");  // of the same bytes: one blob, two layers
  }
  Path model() const { return disk_ / "model"; }
  Path packed() const { return disk_ / "packed"; }
  OciLayout pack(Io& io = system_io()) const { return pack_oci(io, model(), packed(), "v1"); }
  Json read(const std::string& name) const { return Json::parse(disk_.read("packed/" + name), name); }

  // Checks what a descriptor says of its blob; the blob's text.
  std::string blob(const Json& descriptor) const {
    const std::string digest = descriptor.at("digest").as_string();
    EXPECT_TRUE(digest.starts_with("sha256:")) << digest;
    const std::string name = "blobs/sha256/" + digest.substr(7);
    EXPECT_EQ(file_sha256(system_io(), packed() / name), digest.substr(7));
    const std::string text = disk_.read("packed/" + name);
    EXPECT_EQ(descriptor.at("size").as_integer(), static_cast<std::int64_t>(text.size()));
    return text;
  }
  std::string refusal() const {
    try {
      pack();
      return "";
    } catch (const Error& error) {
      EXPECT_FALSE(std::filesystem::exists(packed()));
      return error.what();
    }
  }
  std::set<std::string> beside() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(disk_.path()))
      names.insert(entry.path().filename().string());
    return names;
  }

  TemporaryDirectory disk_;
};

TEST_F(OciLayoutTest, EveryDescriptorIsTrueAndEveryBlobIsDescribed) {
  const OciLayout layout = pack();
  EXPECT_EQ(read("oci-layout").at("imageLayoutVersion").as_string(), "1.0.0");
  const Json index = read("index.json");
  const Json& entry = index.at("manifests").items().front();
  EXPECT_EQ(entry.at("digest").as_string(), layout.digest);
  EXPECT_EQ(entry.at("annotations").at("org.opencontainers.image.ref.name").as_string(), "v1");
  std::set<std::string> described = {layout.digest};
  const Json manifest = Json::parse(blob(entry), "manifest");
  EXPECT_EQ(manifest.at("artifactType").as_string(), "application/vnd.cncf.model.manifest.v1+json");
  described.insert(manifest.at("config").at("digest").as_string());
  const Json config = Json::parse(blob(manifest.at("config")), "config");
  const Json::Array &layers = manifest.at("layers").items(),
                    &hashes = config.at("modelfs").at("diffIds").items();
  ASSERT_EQ(layers.size(), 6u);
  ASSERT_EQ(hashes.size(), layers.size());
  std::map<std::string, std::string> types;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string name = layers[i].at("annotations").at("org.cncf.model.filepath").as_string();
    EXPECT_EQ(blob(layers[i]), disk_.read("model/" + name)) << name;
    EXPECT_EQ(hashes[i], layers[i].at("digest"));
    described.insert(layers[i].at("digest").as_string());
    types[name] = layers[i].at("mediaType").as_string();
  }
  EXPECT_EQ(types.at("model.safetensors"), "application/vnd.cncf.model.weight.v1.raw");
  EXPECT_EQ(types.at("tokenizer.json"), "application/vnd.cncf.model.weight.config.v1.raw");
  EXPECT_EQ(types.at("README.md"), "application/vnd.cncf.model.doc.v1.raw");
  EXPECT_EQ(config.at("config").at("format").as_string(), "safetensors");
  EXPECT_EQ(config.at("config").at("precision").as_string(), "bfloat16");
  EXPECT_EQ(config.at("descriptor").at("family").as_string(), "llama");
  std::size_t blobs = 0;
  for (const auto& file : std::filesystem::directory_iterator(packed() / "blobs/sha256")) {
    EXPECT_TRUE(described.contains("sha256:" + file.path().filename().string())) << file.path();
    ++blobs;
  }
  EXPECT_EQ(blobs, described.size());
}

// The entries of an archive, by name, each of user 0 and time 0.
std::map<std::string, std::string> unpacked(const std::string& archive) {
  std::map<std::string, std::string> entries;
  EXPECT_EQ(archive.size() % 512, 0u);
  EXPECT_EQ(archive.substr(archive.size() - 1024), std::string(1024, '\0'));
  for (std::size_t at = 0; archive[at] != '\0';) {
    const std::string header = archive.substr(at, 512);
    EXPECT_EQ(header.substr(108, 7), "0000000");
    EXPECT_EQ(header.substr(136, 11), "00000000000") << "a time";
    EXPECT_EQ(header.substr(257, 5), "ustar");
    const std::size_t size = std::stoull(header.substr(124, 11), nullptr, 8);
    entries[header.substr(0, header.find('\0'))] = archive.substr(at + 512, size);
    at += 512 + (size + 511) / 512 * 512;
  }
  return entries;
}

TEST_F(OciLayoutTest, AnImageHasEveryFileInALayerBelowModels) {
  const OciLayout layout = pack_oci(system_io(), model(), packed(), "v1", PackForm::kImage);
  const Json manifest = Json::parse(blob(read("index.json").at("manifests").items().front()), "manifest");
  EXPECT_EQ(manifest.find("artifactType"), nullptr) << "an image, no artifact";
  EXPECT_EQ(manifest.at("config").at("mediaType").as_string(), "application/vnd.oci.image.config.v1+json");
  const Json config = Json::parse(blob(manifest.at("config")), "config");
  EXPECT_EQ(config.at("os").as_string(), "linux");
  EXPECT_EQ(config.find("created"), nullptr) << "no time enters";
  const Json::Array &layers = manifest.at("layers").items(),
                    &hashes = config.at("rootfs").at("diff_ids").items();
  ASSERT_EQ(layers.size(), 6u);
  ASSERT_EQ(hashes.size(), layers.size());
  std::set<std::string> names;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(layers[i].at("mediaType").as_string(), "application/vnd.oci.image.layer.v1.tar");
    EXPECT_EQ(hashes[i], layers[i].at("digest")) << "not compressed";
    EXPECT_EQ(layers[i].find("annotations"), nullptr) << "a puller would call the archive by the file's name";
    const std::map<std::string, std::string> entries = unpacked(blob(layers[i]));
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries.begin()->first, "models/");
    const auto& [name, text] = *entries.rbegin();
    EXPECT_EQ(name, layout.layers[i].name);
    EXPECT_EQ(text, disk_.read("model/" + name.substr(7)));
    names.insert(name);
  }
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(pack_oci(system_io(), model(), disk_ / "again", "v2", PackForm::kImage).digest, layout.digest);
}

TEST_F(OciLayoutTest, AnImageIsHeldAgainstTheManifestAndRefusesWhiteouts) {
  disk_.write("model/manifest.json",
              make_manifest({}, digests_of(system_io(), model(), {{"README.md"}})).dump());
  pack_oci(system_io(), model(), disk_ / "sound", "v1", PackForm::kImage);
  disk_.write("model/README.md", "# another card\n");
  EXPECT_THROW(pack_oci(system_io(), model(), packed(), "v1", PackForm::kImage), Error);
  std::filesystem::remove(model() / "manifest.json");
  disk_.write("model/.wh.README.md", "");
  EXPECT_THROW(pack_oci(system_io(), model(), packed(), "v1", PackForm::kImage), Error);
  EXPECT_FALSE(std::filesystem::exists(packed()));
}

TEST(TarFile, LongNamesAndLargeFilesHaveAPaxHeader) {
  const std::string name(120, 'n');
  const TarFile tar = tar_file("models", name, std::uint64_t{1} << 33);
  EXPECT_THAT(tar.before, HasSubstr("137 path=models/" + name + "\n"));
  EXPECT_THAT(tar.before, HasSubstr("19 size=8589934592\n"));
  EXPECT_EQ(tar.before.size(), 4u * 512);
  EXPECT_EQ(tar.after.size(), 1024u);
  EXPECT_EQ(tar_file("models", "x", 513).after.size(), 511u + 1024);
  EXPECT_THAT(tar_file("models", "x", 1).before, Not(HasSubstr("pax")));
}

TEST_F(OciLayoutTest, TheSameOutputPacksIntoTheSameBytes) {
  const std::string first = pack().digest;
  EXPECT_EQ(pack_oci(system_io(), model(), disk_ / "again", "v2").digest, first);
}

TEST_F(OciLayoutTest, RefusesWhatCannotBePacked) {
  disk_.write("packed/x", "");
  EXPECT_THROW(pack(), Error);
  std::filesystem::remove_all(packed());
  disk_.write("model/sub/x", "");
  EXPECT_THAT(refusal(), HasSubstr("plain file"));
  std::filesystem::remove_all(model() / "sub");
  std::filesystem::create_symlink("/etc/passwd", model() / "link");
  EXPECT_THAT(refusal(), HasSubstr("plain file"));
  std::filesystem::remove(model() / "link");
  for (const char* tag : {"", "a b", "-x", "../x", "a/b"})
    EXPECT_THROW(pack_oci(system_io(), model(), packed(), tag), Error) << tag;
  disk_.write("model/manifest.json",
              make_manifest({}, digests_of(system_io(), model(), {{"README.md"}})).dump());
  disk_.write("model/README.md", "# another card\n");
  EXPECT_THAT(refusal(), HasSubstr("manifest"));
  EXPECT_EQ(beside(), (std::set<std::string>{"model"}));
}

TEST_F(OciLayoutTest, ADiskThatFailsLeavesNothingOfTheName) {
  for (int k = 0;; ++k) {
    FailingIo io(k);
    try {
      pack(io);
      EXPECT_FALSE(io.failed());
      break;
    } catch (const Error& error) {
      EXPECT_EQ(beside(), (std::set<std::string>{"model"})) << k << ": " << error.what();
    }
    ASSERT_LT(k, 1000);
  }
}

}  // namespace
}  // namespace llmq::testing
