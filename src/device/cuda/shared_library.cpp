#include "device/cuda/shared_library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include <cstdlib>

namespace llmq {

std::vector<std::string> library_places(const std::string& soname, const std::string& wheel,
                                        const Path& program) {
  std::vector<std::string> places;
  const Path package = program.parent_path().parent_path();
  if (package.filename() == "llmq_toolchain")
    places.push_back(package.parent_path() / "nvidia" / wheel / "lib" / soname);
  const auto below = [&](const char* variable, const char* folder) {
    if (const char* root = std::getenv(variable); root != nullptr && *root != '\0')
      places.push_back(Path(root) / folder / soname);
  };
  below("CONDA_PREFIX", "lib");
  places.push_back(soname);
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME"})
    for (const char* folder : {"lib64", "lib"}) below(variable, folder);
  return places;
}

SharedLibrary open_shared_library(const std::vector<std::string>& places) {
  SharedLibrary library;
  std::vector<std::string> reasons;
  for (const std::string& place : places) {
    library.handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle != nullptr) {
      link_map* loaded = nullptr;
      if (dlinfo(library.handle, RTLD_DI_LINKMAP, &loaded) == 0) library.path = loaded->l_name;
      return library;
    }
    reasons.emplace_back(dlerror());
  }
  library.missing = fmt::format("{}", fmt::join(reasons, "; "));
  return library;
}

}  // namespace llmq
