// What says where an output came from: its manifest, its signature, and what verify makes of both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "cli/program.h"
#include "tests/support/new_key.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

Outcome quantize_tinystories(const std::string& output, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"quantize",    "--method", "rtn", "--model",
                                        tinystories(), "--output", output};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_llmq(arguments);
}

// name -> SHA-256 of a list of in-toto resource descriptors.
std::map<std::string, std::string> digests(const Json& list) {
  std::map<std::string, std::string> found;
  for (const Json& one : list.items())
    found[one.at("name").as_string()] = one.at("digest").at("sha256").as_string();
  return found;
}

TEST(Manifest, TiesEveryOutputToEveryInput) {
  const Scratch scratch;
  write_file(scratch / "text.txt", read_file(std::string(LLMQ_SOURCE_DIR) + "/share/calibration/c4.utf8"));
  write_file(scratch / "job.yaml", "version: 1\nmethod: awq\nmodel: " + tinystories() +
                                       "\noutput: " + (scratch / "q") + "\ncalibration: {text: [" +
                                       (scratch / "text.txt") + "], samples: 2, sequence_length: 64}\n");
  const Outcome outcome = run_llmq({"quantize", "--recipe", scratch / "job.yaml", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json manifest = Json::parse(read_file(scratch / "q/manifest.json"), "manifest.json");
  const auto outputs = digests(manifest.at("subject"));
  for (const auto& entry : fs::directory_iterator(scratch / "q")) {
    const std::string name = entry.path().filename().string();
    if (name == "manifest.json") continue;
    ASSERT_TRUE(outputs.contains(name)) << name;
    EXPECT_EQ(outputs.at(name), sha256_of(entry.path().string())) << name;
  }
  const Json& build = manifest.at("predicate").at("buildDefinition");
  const auto inputs = digests(build.at("resolvedDependencies"));
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    EXPECT_EQ(inputs.at("model/" + std::string(name)), sha256_of(tinystories() + "/" + name)) << name;
  EXPECT_EQ(inputs.at("calibration/text.txt"), sha256_of(scratch / "text.txt"));
  EXPECT_EQ(inputs.at("recipe/job.yaml"), sha256_of(scratch / "job.yaml"));
  EXPECT_EQ(build.at("internalParameters").at("calibration").at("sha256"),
            outcome.json().at("calibration").at("sha256"));
  EXPECT_EQ(build.at("externalParameters").at("recipe").at("calibration").at("samples").as_integer(), 2);
  const Json& builder = manifest.at("predicate").at("runDetails").at("builder").at("version");
  EXPECT_EQ(builder.at("commit"), run_llmq({"--version", "--json"}).json().at("commit"));
}

TEST(Manifest, OfTheSameJobNamesTheSameBytes) {
  const Scratch scratch;
  ASSERT_EQ(quantize_tinystories(scratch / "a").exit_code, 0);
  ASSERT_EQ(quantize_tinystories(scratch / "b", {"--threads", "1"}).exit_code, 0);
  auto a = digests(Json::parse(read_file(scratch / "a/manifest.json"), "a").at("subject"));
  auto b = digests(Json::parse(read_file(scratch / "b/manifest.json"), "b").at("subject"));
  for (const char* tells_the_time : {"report.json", "report.html", "README.md"})
    a.erase(tells_the_time), b.erase(tells_the_time);
  EXPECT_EQ(a, b);
}

// A remembered digest that is wrong: what is not told to be careful believes it.
TEST(Manifest, OfAParanoidRunBelievesNoRememberedDigest) {
  const Scratch scratch;
  const std::vector<std::string> cache = {"LLMQ_DIGEST_CACHE=" + (scratch / "digests")};
  const std::vector<std::vector<std::string>> jobs = {
      {"quantize", "--method", "rtn", "--model", tinystories(), "--output", scratch / "q"},
      {"quantize", "--method", "rtn", "--model", tinystories(), "--output", scratch / "q.gguf", "--set",
       "format=gguf", "--set", "scheme=q8_0"},
      {"convert", tinystories(), scratch / "c", "--dtype", "f32"}};
  const std::vector<std::string> manifests = {"q/manifest.json", "q.gguf.manifest.json", "c/manifest.json"};
  const std::string right = sha256_of(tinystories() + "/model.safetensors"), wrong(64, 'f');
  ASSERT_EQ(run_llmq(jobs[0], cache).exit_code, 0);
  std::string remembered = read_file(scratch / "digests");
  ASSERT_NE(remembered.find(right), std::string::npos);
  remembered.replace(remembered.find(right), right.size(), wrong);
  for (std::size_t i = 0; i < jobs.size(); ++i)
    for (const bool paranoid : {false, true}) {
      SCOPED_TRACE(manifests[i]);
      write_file(scratch / "digests", remembered);
      std::vector<std::string> words = jobs[i];
      words.push_back("--overwrite");
      if (paranoid) words.push_back("--paranoid");
      const Outcome outcome = run_llmq(words, cache);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      const Json manifest = Json::parse(read_file(scratch / manifests[i]), "manifest");
      const auto inputs = digests(manifest.at("predicate").at("buildDefinition").at("resolvedDependencies"));
      EXPECT_EQ(inputs.at("model/model.safetensors"), paranoid ? right : wrong);
    }
}

TEST(Verify, NamesWhatDiffersWhatIsMissingAndWhatIsExtra) {
  const Scratch scratch;
  ASSERT_EQ(quantize_tinystories(scratch / "q").exit_code, 0);
  const Outcome sound = run_llmq({"verify", scratch / "q", "--json"});
  ASSERT_EQ(sound.exit_code, 0) << sound.out << sound.err;
  EXPECT_EQ(sound.json().at("schema").as_string(), "llmq.verify/1");
  EXPECT_TRUE(sound.json().at("ok").as_bool());
  EXPECT_GT(sound.json().at("files").as_integer(), 6);
  EXPECT_TRUE(sound.json().at("mismatches").items().empty());

  std::string weights = read_file(scratch / "q/model.safetensors");
  const std::string expected = sha256_of(scratch / "q/model.safetensors");
  weights[weights.size() / 2] = static_cast<char>(weights[weights.size() / 2] ^ 1);
  write_file(scratch / "q/model.safetensors", weights);
  fs::remove(scratch / "q/tokenizer.json");
  write_file(scratch / "q/extra.py", "import os\n");
  const Outcome changed = run_llmq({"verify", scratch / "q", "--json"});
  EXPECT_EQ(changed.exit_code, 1);
  const Json said = changed.json();
  EXPECT_FALSE(said.at("ok").as_bool());
  const Json::Array& list = said.at("mismatches").items();
  ASSERT_EQ(list.size(), 3u) << changed.out;
  EXPECT_EQ(list[0].at("path").as_string(), "extra.py");
  EXPECT_TRUE(list[0].at("expected").is_null());
  EXPECT_EQ(list[1].at("path").as_string(), "model.safetensors");
  EXPECT_EQ(list[1].at("expected").as_string(), expected);
  EXPECT_EQ(list[1].at("found").as_string(), sha256_of(scratch / "q/model.safetensors"));
  EXPECT_EQ(list[2].at("path").as_string(), "tokenizer.json");
  EXPECT_TRUE(list[2].at("found").is_null());
  const Outcome words = run_llmq({"verify", scratch / "q"});
  EXPECT_EQ(words.exit_code, 1);
  for (const char* word : {"extra: extra.py", "differs: model.safetensors", "missing: tokenizer.json"})
    EXPECT_THAT(words.out, HasSubstr(word));
}

TEST(Verify, HoldsAfterTheEvaluationHasBeenAddedToTheReport) {
  const Scratch scratch;
  write_file(scratch / "job.yaml", "version: 1\nmethod: rtn\nmodel: " + tinystories() + "\noutput: " +
                                       (scratch / "q") + "\nevaluate: {max_windows: 1, max_kl: 100}\n");
  ASSERT_EQ(run_llmq({"quantize", "--recipe", scratch / "job.yaml"}).exit_code, 0);
  EXPECT_THAT(read_file(scratch / "q/report.json"), HasSubstr("evaluation"));
  EXPECT_EQ(run_llmq({"verify", scratch / "q"}).exit_code, 0) << run_llmq({"verify", scratch / "q"}).out;
}

TEST(Verify, AGgufAndItsReport) {
  const Scratch scratch;
  const std::string file = scratch / "m.gguf";
  ASSERT_EQ(quantize_tinystories(file, {"--set", "format=gguf", "--set", "scheme=q8_0"}).exit_code, 0);
  ASSERT_EQ(run_llmq({"verify", file}).exit_code, 0) << run_llmq({"verify", file}).out;
  write_file(scratch / "m.gguf", read_file(file) + "x");
  const Outcome changed = run_llmq({"verify", file});
  EXPECT_EQ(changed.exit_code, 1);
  EXPECT_THAT(changed.out, HasSubstr("m.gguf"));
}

TEST(Sign, AGgufIsSignedAndVerifiedAsADirectoryIs) {
  const Scratch scratch;
  const std::string file = scratch / "m.gguf";
  ASSERT_EQ(quantize_tinystories(file, {"--set", "format=gguf", "--set", "scheme=q8_0"}).exit_code, 0);
  const KeyPair keys = new_key();
  write_file(scratch / "private.pem", keys.private_pem);
  write_file(scratch / "public.pem", keys.public_pem);
  const auto verified = [&] { return run_llmq({"verify", file, "--key", scratch / "public.pem"}); };
  EXPECT_EQ(verified().exit_code, 1) << "not signed yet";
  const Outcome made = run_llmq({"sign", file, "--key", scratch / "private.pem", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(made.json().at("signature").as_string(), file + ".sig");
  EXPECT_EQ(verified().exit_code, 0) << verified().out;
  write_file(file + ".report.json", read_file(file + ".report.json") + "\n");
  EXPECT_EQ(verified().exit_code, 1);
  EXPECT_THAT(verified().out, HasSubstr("differs: m.gguf.report.json"));
  EXPECT_EQ(run_llmq({"sign", file, "--key", scratch / "private.pem"}).exit_code, 2)
      << "not what was written";
}

TEST(Verify, AnOutputWithoutAManifestIsTheUsersMistake) {
  const Scratch scratch;
  for (const std::string& path : {tinystories(), scratch / "nothing"}) {
    const Outcome outcome = run_llmq({"verify", path});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(path));
  }
}

TEST(Sign, AnOutputIsSignedAndVerifiedAndNoKeyIsPrinted) {
  const Scratch scratch;
  ASSERT_EQ(quantize_tinystories(scratch / "q").exit_code, 0);
  const KeyPair keys = new_key(), others = new_key();
  write_file(scratch / "private.pem", keys.private_pem);
  write_file(scratch / "public.pem", keys.public_pem);
  write_file(scratch / "other.pem", others.public_pem);
  std::vector<Outcome> said;
  const auto run = [&](const std::vector<std::string>& arguments) {
    said.push_back(run_llmq(arguments));
    return said.back();
  };
  EXPECT_EQ(run({"verify", scratch / "q", "--key", scratch / "public.pem"}).exit_code, 1) << "not signed yet";
  ASSERT_EQ(run({"sign", scratch / "q", "--key", scratch / "private.pem", "--json"}).exit_code, 0)
      << said.back().out;
  EXPECT_EQ(said.back().json().at("schema").as_string(), "llmq.sign/1");
  EXPECT_EQ(run({"verify", scratch / "q", "--key", scratch / "public.pem"}).exit_code, 0) << said.back().out;
  EXPECT_EQ(run({"verify", scratch / "q"}).exit_code, 0);
  EXPECT_EQ(run({"verify", scratch / "q", "--key", scratch / "other.pem"}).exit_code, 1);
  EXPECT_THAT(said.back().out, HasSubstr("another key"));
  EXPECT_EQ(run({"verify", scratch / "q", "--key", scratch / "private.pem"}).exit_code, 2);
  EXPECT_EQ(run({"sign", scratch / "q", "--key", scratch / "public.pem"}).exit_code, 2);
  write_file(scratch / "q/config.json", read_file(scratch / "q/config.json") + "\n");
  EXPECT_EQ(run({"verify", scratch / "q", "--key", scratch / "public.pem"}).exit_code, 1);
  EXPECT_THAT(said.back().out, HasSubstr("differs: config.json"));
  EXPECT_EQ(run({"sign", scratch / "q", "--key", scratch / "private.pem", "-v"}).exit_code, 2)
      << "not what was written";
  const std::string secret = keys.private_pem.substr(keys.private_pem.find('\n') + 1, 40);
  for (const Outcome& outcome : said) EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr(secret)));
}

TEST(Pack, AnotherProgramReadsTheLayoutAndCopiesItWhole) {
  const Scratch scratch;
  ASSERT_EQ(quantize_tinystories(scratch / "q").exit_code, 0);
  const Outcome packed =
      run_llmq({"pack", scratch / "q", "--oci", scratch / "layout", "--tag", "v1", "--json"});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  const Json said = packed.json();
  EXPECT_EQ(said.at("schema").as_string(), "llmq.pack/1");
  EXPECT_EQ(run_llmq({"pack", scratch / "q", "--oci", scratch / "layout"}).exit_code, 2)
      << "nothing is overwritten";
  const auto shell = [](const std::string& command) {
    return std::system(("sh -c '" + command + "'").c_str());
  };
  if (shell("command -v skopeo >/dev/null 2>&1") != 0)
    GTEST_SKIP()
        << "skopeo is not installed (Debian package skopeo): the layout was not read by another program";
  const std::string copied = scratch / "copied", policy = scratch / "policy.json";
  write_file(policy, R"({"default": [{"type": "insecureAcceptAnything"}]})");
  ASSERT_EQ(shell("skopeo --policy " + policy + " copy -q oci:" + (scratch / "layout") + ":v1 oci:" + copied +
                  ":v1 >&2"),
            0);
  for (const Json& layer : said.at("layers").items()) {
    const std::string digest = layer.at("digest").as_string().substr(7);
    EXPECT_EQ(sha256_of(copied + "/blobs/sha256/" + digest), digest);
  }
  const Json index = Json::parse(read_file(copied + "/index.json"), "index.json");
  EXPECT_EQ(index.at("manifests").items()[0].at("digest"), said.at("digest")) << "not one byte was changed";
}

}  // namespace
}  // namespace llmq::testing
