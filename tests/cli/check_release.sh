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
mkdir -p "$work/tree/scripts" "$work/tree/share/docker"
cd "$work/tree"
git init -q .
cp "$source/scripts/release.sh" scripts/
cp "$source/LICENSE" .
echo 'project(llmq VERSION 1.2.3 LANGUAGES CXX)' >CMakeLists.txt
echo '/build/' >.gitignore
echo '## [Unreleased]' >CHANGELOG.md
cat >share/docker/build.sh <<'BUILD'
#!/bin/sh
# Installs a program that says what the real one would.
set -eu
commit=$(cd "$1" && git rev-parse --short=12 HEAD)
mkdir -p "$2/bin" "$2/share/doc/llmq"
cp "$1/LICENSE" "$2/share/doc/llmq"
printf '#!/bin/sh\nif [ "${2:-}" = --json ]; then echo "{\\"cuda\\": null}"; else echo "llmq %s (%s)"; fi\n' "${SAYS:-1.2.3}" "$commit" >"$2/bin/llmq"
chmod +x "$2/bin/llmq"
BUILD
chmod +x share/docker/build.sh
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

scripts/release.sh >/dev/null
cd build/release/v1.2.3
sha256sum --check --quiet SHA256SUMS
[ "$(wc -l <SHA256SUMS)" -eq 2 ] || { echo "SHA256SUMS has not two lines"; exit 1; }
tar -xzf llmq-1.2.3.tar.gz -C "$work"
cmp "$work/llmq-1.2.3/LICENSE" "$source/LICENSE"
tar -xzf llmq-1.2.3-linux-"$(uname -m)".tar.gz -C "$work"
cmp "$work/llmq-1.2.3-linux-$(uname -m)/share/doc/llmq/LICENSE" "$source/LICENSE"
cp SHA256SUMS "$work/first"
cd "$work/tree"
sleep 1  # another second, which no archive may hold
scripts/release.sh >/dev/null
cmp "$work/first" build/release/v1.2.3/SHA256SUMS
echo "ok: two archives, the same twice"
