// Where NVIDIA's libraries are looked for, and which file is opened.
#include "device/cuda/library_places.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <stdlib.h>

#include "base/disk/shared_library.h"
#include "support/temporary_directory.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SharedLibraryPlaces : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable : {"CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"}) unsetenv(variable);
  }
  void TearDown() override { SetUp(); }
};

TEST_F(SharedLibraryPlaces, AWheelLooksBesideItselfFirst) {
  setenv("CONDA_PREFIX", "/conda", 1);
  setenv("CUDA_PATH", "/toolkit", 1);
  setenv("CUDA_HOME", "", 1);
  EXPECT_THAT(library_places("libx.so.1", "cu13", "/venv/site-packages/llmq_toolchain/bin/llmq"),
              ElementsAre("/venv/site-packages/nvidia/cu13/lib/libx.so.1", "/conda/lib/libx.so.1",
                          "libx.so.1", "/toolkit/lib64/libx.so.1", "/toolkit/lib/libx.so.1"));
}

// Unpacked in /tmp, a tree has anybody's folders beside it.
TEST_F(SharedLibraryPlaces, AnyOtherProgramLooksIntoNoFolderBesideIt) {
  EXPECT_THAT(library_places("libx.so.1", "cu13", "/tmp/llmq-0.1.0/bin/llmq"), ElementsAre("libx.so.1"));
  EXPECT_THAT(library_places("libx.so.1", "cu13", ""), ElementsAre("libx.so.1"));
}

TEST_F(SharedLibraryPlaces, TheFirstThatIsThereIsOpened) {
  const testing::TemporaryDirectory scratch;
  const Path package = scratch.path() / "llmq_toolchain", wheel = scratch.path() / "nvidia/cu13/lib";
  std::filesystem::create_directories(wheel);
  const std::vector<std::string> places =
      library_places("libnowhere_else.so.1", "cu13", package / "bin" / "llmq");
  const SharedLibrary none = open_shared_library(places);
  EXPECT_EQ(none.handle, nullptr);
  for (const std::string& place : places) EXPECT_THAT(none.missing, HasSubstr(place));

  void* const some = dlopen("libm.so.6", RTLD_NOW);  // stands for NVIDIA's: any library will do
  ASSERT_NE(some, nullptr);
  link_map* loaded = nullptr;
  ASSERT_EQ(dlinfo(some, RTLD_DI_LINKMAP, &loaded), 0);
  std::filesystem::copy_file(loaded->l_name, wheel / "libnowhere_else.so.1");
  const SharedLibrary opened = open_shared_library(places);
  EXPECT_NE(opened.handle, nullptr) << opened.missing;
  EXPECT_EQ(opened.path, places.front());
}

}  // namespace
}  // namespace llmq
