#!/usr/bin/env bash
# Builds llmq for aarch64 with Debian's cross compiler and runs unit, kernel and golden tests and a small quantization under qemu: nothing outside
# kernels/cpu may assume x86. The arm64 libraries are unpacked below build/, so that the machine's own packages stay as they are.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/aarch64
export LLMQ_SYSROOT=$root/build/aarch64-sysroot
packages=(libyaml-cpp-dev libyaml-cpp0.7 libfmt-dev libfmt9 libssl-dev libssl3 libre2-dev libre2-9 libonig-dev libonig5 libutf8proc-dev libutf8proc2
          libgtest-dev libgmock-dev libstdc++6 libgcc-s1)
shared=(nlohmann-json3-dev libcli11-dev libeigen3-dev)

if [ ! -e "$LLMQ_SYSROOT/.ready" ]; then
  mkdir -p "$LLMQ_SYSROOT/debs/partial" "$LLMQ_SYSROOT/lists/partial"
  options=(-oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists="$LLMQ_SYSROOT/lists" -oDir::Cache::pkgcache= -oDir::Cache::srcpkgcache=)
  apt-get "${options[@]}" update -q >/dev/null
  (cd "$LLMQ_SYSROOT/debs" && apt-get "${options[@]}" download -q "${packages[@]}" "${shared[@]}" >/dev/null)
  for package in "$LLMQ_SYSROOT"/debs/*.deb; do dpkg -x "$package" "$LLMQ_SYSROOT"; done
  rm -rf "$LLMQ_SYSROOT/lists" "$LLMQ_SYSROOT/debs"
  touch "$LLMQ_SYSROOT/.ready"
fi
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$root/cmake/aarch64-linux-gnu.cmake"
cmake --build "$build" -j"$(nproc)"
"$root/scripts/run_ctest.sh" "$build" -L 'unit|kernels|golden'
