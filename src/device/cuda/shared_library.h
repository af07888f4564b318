// A library of NVIDIA's that is opened when it is needed, from where NVIDIA's own programs look for it
// (cuda.pathfinder): its wheels beside llmq's, conda, what the loader knows, the toolkit.
#pragma once
#include <string>
#include <vector>

#include "base/io.h"

namespace llmq {

// What dlopen() is asked for, in order, for `soname`. The wheels are those of llmq's own site-packages, where
// `program` is <site-packages>/llmq_toolchain/bin/llmq and they are in nvidia/<wheel>/lib; a program anywhere
// else looks into no folder beside it, which might be anybody's. $CONDA_PREFIX, $CUDA_PATH and $CUDA_HOME
// name the others.
std::vector<std::string> library_places(const std::string& soname, const std::string& wheel,
                                        const Path& program);

struct SharedLibrary {
  void* handle = nullptr;  // dlopen()'s; stays open as long as the process
  std::string path;        // the file that was opened
  std::string missing;     // why there is none: what the loader says of each place
};
SharedLibrary open_shared_library(const std::vector<std::string>& places);

}  // namespace llmq
