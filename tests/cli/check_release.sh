#!/usr/bin/env bash
# `make release` in a repository of a few files: what it refuses, and that it makes the same archives twice. The program in it is
# a script, so nothing is compiled.   check_release.sh SOURCE
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work GIT_CONFIG_NOSYSTEM=1
git config --global user.name Nobody
git config --global user.email nobody@example.invalid
mkdir -p "$work/tree/scripts" "$work/tree/cmake"
cd "$work/tree"
git init -q .
cp "$source/scripts/release.sh" scripts/
cp "$source/cmake/LlmqCuda.cmake" cmake/
cp "$source/LICENSE" .
echo 'project(llmq VERSION 1.2.3 LANGUAGES CXX)' >CMakeLists.txt
echo '/build/' >.gitignore
echo '## [Unreleased]' >CHANGELOG.md
cat >scripts/make_packages.sh <<'MAKE'
#!/bin/sh
# Packs a program that says what the real one would.   SAYS: its version, CUDA: its CUDA, HOLDS: what else is in it
set -eu
cd "$(dirname "$0")/.."
tree=$(mktemp -d)
mkdir -p "$tree/llmq-1.2.3-linux-x/bin" build/published
printf '#!/bin/sh\n# %s\nif [ "${2:-}" = --json ]; then echo "{\\"cuda\\": %s}"; else echo "llmq %s (%s)"; fi\n' "${HOLDS:-}" "${CUDA:-null}" "${SAYS:-1.2.3}" \
  "$(git rev-parse --short=12 HEAD)" >"$tree/llmq-1.2.3-linux-x/bin/llmq"
chmod +x "$tree/llmq-1.2.3-linux-x/bin/llmq"
tar --mtime=@$SOURCE_DATE_EPOCH -C "$tree" -c llmq-1.2.3-linux-x | gzip -n >"$1/llmq-1.2.3-linux-x.tar.gz"
rm -r "$tree"
echo a package >"$1/llmq_1.2.3-1_x.deb"
echo CMAKE_HOME_DIRECTORY:INTERNAL=/home/builder/llmq >build/published/CMakeCache.txt
[ -z "${BUILD:-}" ] || echo "of the build $BUILD" >"$1/llmq_1.2.3-1_x.deb"
MAKE
chmod +x scripts/make_packages.sh
commit() { git add -A && git commit -q -m "$1"; }
refused() {  # refused WORDS
  local said status=0
  said=$(scripts/release.sh 2>&1) || status=$?
  [ $status -eq 2 ] || { echo "exit $status where 2 was due: $said"; exit 1; }
  [[ "$said" == *"$1"* ]] || { echo "said \"$said\", and \"$1\" was due"; exit 1; }
  echo "refused: $said"
}

commit "A tree"
refused "HEAD has no version's tag; git tag -a v1.2.3"
git tag -a v1.2.4 -m "another version"
refused "HEAD has the tag v1.2.4, but CMakeLists.txt says version 1.2.3"
git tag -d v1.2.4 >/dev/null
git tag v1.2.3
refused "v1.2.3 is a lightweight tag"
git tag -d v1.2.3 >/dev/null
git tag -a v1.2.3 -m "llmq 1.2.3"
refused "CHANGELOG.md has no heading [1.2.3]"
echo '## [1.2.3] - 2026-01-02' >CHANGELOG.md
refused "the tree has changes that no commit holds (CHANGELOG.md)"
commit "What changed"
git tag -a -f v1.2.3 -m "llmq 1.2.3" >/dev/null
echo >new_file
refused "the tree has changes that no commit holds (new_file)"
rm new_file
SAYS=1.2.2 refused 'says it is "llmq 1.2.2'
every=$(sed -n 's/^set(LLMQ_CUDA_EVERY_ARCHITECTURE \(.*\))$/sm_\1/p' cmake/LlmqCuda.cmake | sed 's/ / sm_/g')
CUDA='\"13.0 (sm_90a)\"' refused 'the program has no kernels for sm_75, only CUDA 13.0 (sm_90a)'
CUDA="\\\"13.0 (${every% sm_*})\\\"" refused "the program has no kernels for ${every##* }"
HOLDS=/home/builder/llmq/share refused 'looks for its texts in /home/builder/llmq/share'

CUDA="\\\"13.0 ($every)\\\"" scripts/release.sh >/dev/null
scripts/release.sh >/dev/null
cd build/release/v1.2.3
sha256sum --check --quiet SHA256SUMS
[ "$(sed 's/.* //' SHA256SUMS | sort | paste -sd ' ')" = "llmq-1.2.3-linux-x.tar.gz llmq-1.2.3.tar.gz llmq_1.2.3-1_x.deb" ] || { echo "SHA256SUMS is not of what was made"; cat SHA256SUMS; exit 1; }
tar -xzf llmq-1.2.3.tar.gz -C "$work"
cmp "$work/llmq-1.2.3/LICENSE" "$source/LICENSE"
cp SHA256SUMS "$work/first"
cd "$work/tree"
sleep 1  # another second, which no archive may hold
scripts/release.sh >/dev/null
cmp "$work/first" build/release/v1.2.3/SHA256SUMS
mkdir build/finished
echo CMAKE_HOME_DIRECTORY:INTERNAL=/home/other >build/finished/CMakeCache.txt
FINISHED_BUILD=build/finished scripts/release.sh >/dev/null
grep -q "of the build build/finished" build/release/v1.2.3/llmq_1.2.3-1_x.deb
HOLDS=/home/other/share FINISHED_BUILD=build/finished refused 'looks for its texts in /home/other/share'
echo "ok: what is published, the same twice"
