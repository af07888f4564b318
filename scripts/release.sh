#!/usr/bin/env bash
# Makes what is published of a version, from the tag that HEAD has, into build/release/vVERSION:
#   llmq-VERSION.tar.gz              the source as git has it at the tag
#   llmq-VERSION-linux-x86_64.tar.gz an installed tree, built from that source, that may be moved (-cuda: with CUDA)
#   llmq_VERSION-1_amd64.deb         the same program for Debian 12
#   llmq_toolchain-VERSION-*.whl     and for pip
#   SHA256SUMS                       of all
# Refuses in a sentence, exit 2, where the tree is not that of a tag or names another version, and where the program is only for the
# machine that built it. Times, owners and the order of names in the archives are the tag's, so that the same tag and the same
# program give the same bytes.
#   release.sh               FINISHED_BUILD=DIR: a finished build of the tag's commit, by the preset `published`, packed in place of a new one
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
refuse() { echo "release: $1" >&2; exit 2; }

git rev-parse --git-dir >/dev/null 2>&1 || refuse "this is no git checkout, and a release is made from a tag"
version=$(sed -n 's/^project(llmq VERSION \([0-9]*\.[0-9]*\.[0-9]*\) .*/\1/p' CMakeLists.txt)
[ -n "$version" ] || refuse "CMakeLists.txt says no version as project(llmq VERSION 1.2.3 ...)"
tag=v$version
changed=$(git status --porcelain)
first=${changed%%$'\n'*}
[ -z "$changed" ] || refuse "the tree has changes that no commit holds (${first:3}); commit them or take them back"
tags=$(git tag --points-at HEAD --list 'v*' | paste -sd ' ')
[ -n "$tags" ] || refuse "HEAD has no version's tag; git tag -a $tag -m 'llmq $version' gives it the one of CMakeLists.txt"
[[ " $tags " == *" $tag "* ]] || refuse "HEAD has the tag $tags, but CMakeLists.txt says version $version; make them agree"
[ "$(git cat-file -t "$tag")" = tag ] || refuse "$tag is a lightweight tag; git tag -a -f $tag makes it one with a date and a name"
grep -qs "^## \[$version\]" CHANGELOG.md || refuse "CHANGELOG.md has no heading [$version]; say there what changed, and in which bytes"

into=build/release/$tag source=build/release/source
rm -rf "$into" "$source"
mkdir -p build/release
stage=$(mktemp -d)
trap 'rm -rf "$stage" "$source"' EXIT
mkdir "$stage/made"
git archive --format=tar --prefix="llmq-$version/" "$tag" | gzip -9 -n >"$stage/made/llmq-$version.tar.gz"

git clone -q --branch "$tag" -c advice.detachedHead=false "file://$PWD" "$source"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$tag") BUILD=${FINISHED_BUILD:-} "$source/scripts/make_packages.sh" "$stage/made"

# What was packed, asked by itself.
tar -xzf "$stage/made/llmq-$version-"*-*.tar.gz -C "$stage" --strip-components=1 --wildcards '*/bin/llmq'
program=$stage/bin/llmq
said=$("$program" --version)
built="llmq $version ($(git rev-parse --short=12 HEAD))"
[ "$said" = "$built" ] || refuse "the program that was built says it is \"$said\", not \"$built\""
cuda=$("$program" --version --json | sed -n 's/.*"cuda": *"\(.*\)".*/\1/p')
every=$(sed -n 's/^set(LLMQ_CUDA_EVERY_ARCHITECTURE \(.*\))$/\1/p' "$source/cmake/LlmqCuda.cmake")
for architecture in ${every:?cmake/LlmqCuda.cmake names no architectures}; do
  [ -z "$cuda" ] || [[ "$cuda" =~ sm_${architecture}[\ \)] ]] ||
    refuse "the program has no kernels for sm_$architecture, only CUDA $cuda; build it by the preset published (LLMQ_CUDA_ARCHITECTURES=ALL)"
done
home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "${FINISHED_BUILD:-$source/build/published}/CMakeCache.txt")
! grep -qaF "$home/share" "$program" ||
  refuse "the program looks for its texts in $home/share, on whatever machine; build it by the preset published (LLMQ_SOURCE_TEXTS=OFF)"
(cd "$stage/made" && sha256sum -- * >SHA256SUMS)
mv "$stage/made" "$into"
echo "$into:"
cat "$into/SHA256SUMS"
