#include "base/disk/shared_library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

namespace llmq {

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
