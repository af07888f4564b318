// Where a library of NVIDIA's that is opened when it is needed (base/disk/shared_library.h) may lie: where
// NVIDIA's own programs look for it (cuda.pathfinder): its wheels beside llmq's, conda, what the loader
// knows, the toolkit.
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

}  // namespace llmq
