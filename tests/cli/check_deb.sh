#!/usr/bin/env bash
# The .deb by itself: lintian has nothing against it, dpkg installs it into an empty root by its dependencies, the program there does the main job as the
# build tree's does, also on a processor without AVX2; a newer one takes its place, and what is removed leaves nothing.   check_deb.sh BUILD SOURCE
# 77: what makes Debian packages is not installed. Needs no network; needs root, as dpkg does, or a namespace in which one is root.
set -euo pipefail
build=$1; source=$2
for tool in dpkg-shlibdeps lintian man; do
  command -v $tool >/dev/null || { echo "SKIPPED: $tool is not installed (scripts/install_dependencies.sh packages)"; exit 77; }
done
if [ "$(id -u)" -ne 0 ]; then
  unshare --user --map-root-user true 2>/dev/null || { echo "SKIPPED: dpkg needs root, and this user may be root in no namespace"; exit 77; }
  exec unshare --user --map-root-user "$0" "$@"
fi
fail() { echo "FAILED: $1"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
BUILD=$build "$source/scripts/make_packages.sh" "$work" deb
deb=$(echo "$work"/llmq_*.deb)
version=$("$build/tools/llmq" --version | cut -d ' ' -f 2)
[ "$deb" = "$work/llmq_$version-1_$(dpkg --print-architecture).deb" ] || fail "the file is called $deb"
lintian --no-cfg --allow-root --fail-on error,warning "$deb" || fail "lintian finds something"

# An empty root in which dpkg believes that what this machine has is installed, so that dependencies are looked at as anywhere.
root=$work/root
mkdir -p "$root"/var/lib/dpkg/{info,updates} "$root/etc"
dpkg-query -W -f='Package: ${Package}\nStatus: ${Status}\nMaintainer: ${Maintainer}\nArchitecture: ${Architecture}\nMulti-Arch: ${Multi-Arch}\nVersion: ${Version}\nProvides: ${Provides}\nDescription: ${binary:Summary}\n\n' |
  sed -E '/^(Multi-Arch|Provides): $/d' >"$root/var/lib/dpkg/status"
files() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -print | sort); }
files >"$work/before"
package() { dpkg --root="$root" --log=/dev/null "$@" >"$work/said" 2>&1 || { cat "$work/said"; fail "dpkg $*"; }; }
package --install "$deb"
llmq=$root/usr/bin/llmq

# What the build tree's program says and writes, this one does, too.
[ "$("$llmq" --version)" = "$("$build/tools/llmq" --version)" ] || fail "another version is installed"
model=$source/tests/models/tinystories-656k
digest() {  # digest NAME METHOD PROGRAM...
  local out=$work/$1 method=$2; shift 2
  "$@" quantize --quiet --method "$method" --model "$model" --output "$out" --set scheme=w4a16_g64_asym --set calibration.samples=2 \
    --set calibration.sequence_length=64 --json | sed -n 's/.*"digest": "\(.*\)".*/\1/p'
}
here=$(digest here awq "$llmq")
[ -n "$here" ] && [ "$here" = "$(digest built awq "$build/tools/llmq")" ] || fail "the installed program writes another digest than the build tree's"

# Its texts are its own: with another one in the place of the one that calibrates, the digest is another.
texts=$root/usr/share/llmq
cp "$texts/calibration/c4.utf8" "$work/c4.utf8"
cp "$texts/wikitext-2/wiki.test.raw" "$texts/calibration/c4.utf8"
[ "$(digest moved awq "$llmq")" != "$here" ] || fail "the installed program reads the texts of the source tree"
cp "$work/c4.utf8" "$texts/calibration/c4.utf8"

# A processor without AVX2 does what the level `scalar` does, and says so.
if command -v qemu-x86_64 >/dev/null && [ "$(uname -m)" = x86_64 ]; then
  old=$(digest old rtn qemu-x86_64 -cpu Nehalem "$llmq")
  [ -n "$old" ] && [ "$old" = "$(LLMQ_CPU_ISA=scalar digest scalar rtn "$llmq")" ] || fail "a processor without AVX2 writes another digest than the scalar level"
  tell() { "$@" generate "$work/here" --prompt "Once upon a time" --max-tokens 8; }
  told=$(tell qemu-x86_64 -cpu Nehalem "$llmq" 2>"$work/said")
  [ -n "$told" ] && [ "$told" = "$(LLMQ_CPU_ISA=scalar tell "$llmq" 2>/dev/null)" ] || fail "a processor without AVX2 says something else than the scalar level: $told"
  grep -q "warning: this processor has none of the instruction sets" "$work/said" || { cat "$work/said"; fail "nothing is said of a processor without AVX2"; }
else
  echo "not looked at: a processor without AVX2 (qemu-x86_64 is not there)"
fi

# The manual and the completions lie where man and the shells look, and name every command.
man -l "$root/usr/share/man/man1/llmq.1.gz" | grep -q "llmq quantize" || fail "the manual cannot be read"
for page in bash-completion/completions/llmq zsh/vendor-completions/_llmq fish/vendor_completions.d/llmq.fish; do
  grep -q eval-ppl "$root/usr/share/$page" || fail "$page does not name the commands"
done
bash -c ". '$root/usr/share/bash-completion/completions/llmq' && complete -p llmq" >/dev/null

# A newer package without one of its files; then none.
dpkg-deb -R "$deb" "$work/newer"
sed -i 's/^Version: .*/Version: 9:1/' "$work/newer/DEBIAN/control"
rm "$work/newer/usr/share/llmq/recipes/qwen32b.yaml"
sed -i '/recipes.qwen32b.yaml/d' "$work/newer/DEBIAN/md5sums"
dpkg-deb -Znone --root-owner-group -b "$work/newer" "$work/newer.deb" >/dev/null
package --install "$work/newer.deb"
[ ! -e "$root/usr/share/llmq/recipes/qwen32b.yaml" ] || fail "an upgrade leaves a file that the newer package does not have"
"$llmq" --version >/dev/null
package --verify llmq
package --purge llmq
files | diff "$work/before" - || fail "a removed package leaves something"

# Where a dependency is missing, it is not installed.
sed -i '/^Package: libre2-9$/,/^$/d' "$root/var/lib/dpkg/status"
! dpkg --root="$root" --log=/dev/null --install "$deb" >"$work/said" 2>&1 || fail "it is installed without a library that it needs"
grep -q 'depends on libre2-9' "$work/said" || { cat "$work/said"; fail "the missing library is not named"; }
echo "ok: installed, the same digest, upgraded, removed"
