// Names in the hub cache, and the sentence for each way of not being there.
#include "io/hub.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/support/temporary_directory.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::TemporaryDirectory;

// The cache variables, all unset; restored afterwards.
class Hub : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) {
      const char* value = ::getenv(name);
      saved_.emplace_back(name, value ? value : "");
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : saved_)
      if (value.empty())
        ::unsetenv(name);
      else
        ::setenv(name, value.c_str(), 1);
  }
  static void set(const char* name, const Path& value) { ::setenv(name, value.c_str(), 1); }

 private:
  static constexpr const char* kNames[5] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                            "XDG_CACHE_HOME", "HOME"};
  std::vector<std::pair<const char*, std::string>> saved_;
};

TEST_F(Hub, CacheDirectoryBySettingsInOrder) {
  set("HOME", "/h");
  EXPECT_EQ(hub_cache_directory(), Path("/h/.cache/huggingface/hub"));
  set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(hub_cache_directory(), Path("/x/huggingface/hub"));
  set("HF_HOME", "/f");
  EXPECT_EQ(hub_cache_directory(), Path("/f/hub"));
  set("HUGGINGFACE_HUB_CACHE", "/g");
  EXPECT_EQ(hub_cache_directory(), Path("/g"));
  set("HF_HUB_CACHE", "/c");
  EXPECT_EQ(hub_cache_directory(), Path("/c"));
}

TEST_F(Hub, FindsTheSnapshotOfMain) {
  TemporaryDirectory cache;
  set("HF_HUB_CACHE", cache.path());
  cache.write("models--Qwen--Qwen3-0.6B/refs/main", "c1899de2");
  cache.write("models--Qwen--Qwen3-0.6B/snapshots/c1899de2/config.json", "{}");
  EXPECT_EQ(resolve_model(system_io(), "Qwen/Qwen3-0.6B"),
            cache / "models--Qwen--Qwen3-0.6B/snapshots/c1899de2");
}

TEST_F(Hub, SaysWhichCommandWouldFetch) {
  TemporaryDirectory cache;
  set("HF_HUB_CACHE", cache.path());
  const auto refused = [&](const char* part) {
    expect_refusal(ErrorKind::kBadInput, part, [] { resolve_model(system_io(), "Qwen/Qwen3-32B"); });
    expect_refusal(ErrorKind::kBadInput, "hf download Qwen/Qwen3-32B",
                   [] { resolve_model(system_io(), "Qwen/Qwen3-32B"); });
  };
  refused("neither a directory nor a model in the hub cache");
  std::filesystem::create_directories(cache / "models--Qwen--Qwen3-32B");
  refused("refs/main");
  cache.write("models--Qwen--Qwen3-32B/refs/main", "abc");
  refused("not in the hub cache");
  for (const char* hostile : {"../../..", "a/b", "", "a\nb", ".."}) {
    cache.write("models--Qwen--Qwen3-32B/refs/main", hostile);
    refused("does not hold a commit");
  }
}

TEST_F(Hub, DirectoriesAndFilesComeFirst) {
  TemporaryDirectory directory;
  EXPECT_EQ(resolve_model(system_io(), directory.path().string()), directory.path());
  const Path gguf = directory.write("m.gguf", "x");
  EXPECT_EQ(resolve_model(system_io(), gguf.string()), gguf);
  const Path shard = directory.write("m.safetensors", "x");
  expect_refusal(ErrorKind::kBadInput, "pass the directory",
                 [&] { resolve_model(system_io(), shard.string()); });
  expect_refusal(ErrorKind::kBadInput, "no such file",
                 [&] { resolve_model(system_io(), (directory / "n.gguf").string()); });
  expect_refusal(ErrorKind::kBadInput, "no such directory",
                 [&] { resolve_model(system_io(), (directory / "n").string()); });
}

TEST(HubName, OfASnapshotInACache) {
  EXPECT_EQ(hub_name_of("/c/hub/models--Qwen--Qwen3-32B/snapshots/abc123"), "Qwen/Qwen3-32B");
  EXPECT_EQ(hub_name_of("/c/models--a--b.c/snapshots/abc/model.gguf"), "a/b.c");
  for (const char* other : {"Qwen/Qwen3-32B", "/c/models--Qwen--Qwen3-32B", "/c/models--Qwen/snapshots/abc",
                            "/c/models--Qwen--Q3/x/snapshots/abc", "/c/models--a--b--c/snapshots/abc",
                            "/c/datasets--a--b/snapshots/abc", ""})
    EXPECT_EQ(hub_name_of(other), "") << other;
}

TEST(HubName, LicencesAreIdentifiers) {
  for (const char* license : {"apache-2.0", "mit", "llama3.1", "other", "cc-by-nc-4.0"})
    EXPECT_TRUE(is_hub_license(license)) << license;
  for (const char* other : {"", "Apache-2.0", "apache 2.0", "mit,apache-2.0", "<x>", "a\n"})
    EXPECT_FALSE(is_hub_license(other)) << other;
}

TEST(HubName, Shape) {
  for (const char* name : {"Qwen/Qwen3-32B", "a/b", "meta-llama/Llama-3.1-8B", "x_y/z.w"})
    EXPECT_TRUE(is_hub_name(name)) << name;
  for (const char* name : {"Qwen", "a/b/c", "/a", "a/", "../a", "a/..", "a/b--c", "./a", "-a/b", "a/b.",
                           "a b/c", "~/x", "a/b\n"})
    EXPECT_FALSE(is_hub_name(name)) << name;
}

}  // namespace
}  // namespace llmq
