#!/bin/sh
# The build stage of the Dockerfile: builds llmq from SOURCE and installs it below PREFIX.   build.sh SOURCE PREFIX
# With BUILD set to a finished build of the same source, that one is installed.
set -eu
source=$1 prefix=$2
if [ -z "${BUILD:-}" ]; then
  "$source/scripts/install_dependencies.sh" build
  BUILD=$source/build/docker
  cmake -S "$source" -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLMQ_TESTS=OFF -DLLMQ_CUDA_ARCHITECTURES=ALL
  cmake --build "$BUILD" --target llmq
fi
cmake --install "$BUILD" --prefix "$prefix"
