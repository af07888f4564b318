#include "device/cuda/library_places.h"

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

}  // namespace llmq
