// What a request may call an adapter, and where it may take one from.
#include "serve/served_adapters.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "serve/api_error.h"
#include "support/temporary_directory.h"

namespace llmq::testing {
namespace {

TEST(ServedAdapters, NamesAreWords) {
  for (const char* name : {"poems", "team/poems-v2", "a.b_c:d@e+f"})
    EXPECT_FALSE(bad_adapter_name(name)) << name;
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("../a"), std::string("a..b"), std::string("a\nb"),
        std::string("ä"), std::string("a\"b"), std::string(129, 'x')})
    EXPECT_TRUE(bad_adapter_name(name)) << name;
}

TEST(ServedAdapters, PathsStayBelowTheirDirectory) {
  const TemporaryDirectory disk;
  disk.write("adapters/one/file", "");
  disk.write("adapters-of-others/two/file", "");
  std::filesystem::create_directory_symlink(disk / "adapters-of-others/two", disk / "adapters/link");
  const Path root = disk / "adapters";
  const Path one = std::filesystem::canonical(root / "one");
  for (const std::string& asked :
       {std::string("one"), std::string("./one"), std::string("../adapters/one"), (root / "one").string()})
    EXPECT_EQ(adapter_below(root, asked), one) << asked;
  for (const std::string& asked :
       {std::string(".."), std::string("../adapters-of-others/two"), std::string("link"), std::string("/"),
        std::string("nowhere"), std::string("one/file"), std::string(), std::string("one\0x", 5),
        (disk / "adapters-of-others/two").string()})
    EXPECT_THROW(adapter_below(root, asked), ApiError) << asked;
}

TEST(ServedAdapters, ANameIsListedOnce) {
  ServedAdapters adapters({{"a", "first", 1}});
  EXPECT_EQ(adapters.put({"a", "second", 2}).value().root, "first");
  EXPECT_FALSE(adapters.put({"b", "third", 3}));
  EXPECT_EQ(adapters.remove("b").value().root, "third");
  ASSERT_EQ(adapters.size(), 1u);
  EXPECT_EQ(adapters.list().front().root, "second");
  EXPECT_TRUE(adapters.has("a"));
  EXPECT_TRUE(adapters.remove("a"));
  EXPECT_FALSE(adapters.remove("a"));
}

}  // namespace
}  // namespace llmq::testing
