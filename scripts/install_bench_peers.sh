#!/usr/bin/env bash
# The programs llmq is measured against, pinned, each in a place of its own below $LLMQ_PEERS (default ~/.cache/llmq-peers). What is there already is used.
#   install_bench_peers.sh [transformers llmcompressor gptqmodel llama.cpp ...]     all of them when none is named; a quarter of an hour on two cores
# llama.cpp is built from the sources that the sdist of llama-cpp-python carries.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
peers=${LLMQ_PEERS:-$HOME/.cache/llmq-peers}
mkdir -p "$peers/src"
. "$root/tests/interop/peer_packages.sh"
version=0.3.36
tools="llama-perplexity llama-quantize llama-bench llama-batched-bench"

environment() {
  local python=$peers/$1/bin/python
  [ -x "$python" ] || python3 -m venv "$peers/$1"
  read -ra wanted <<<"$(packages "$1")"
  "$python" -m pip install -q --disable-pip-version-check "${wanted[@]}"
}

llama_cpp() {
  local tool missing=()
  for tool in $tools; do [ -x "$peers/llama.cpp/bin/$tool" ] || missing+=("$tool"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  local sdist=$peers/src/llama_cpp_python-$version.tar.gz source=$peers/src/lcpp
  [ -f "$sdist" ] || python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d "$peers/src" "llama-cpp-python==$version"
  [ -d "$source" ] || { mkdir "$source"; tar xzf "$sdist" -C "$source" --strip-components=1; }
  cmake -S "$source/vendor/llama.cpp" -B "$peers/llama.cpp" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$peers/llama.cpp-configure.log" 2>&1
  cmake --build "$peers/llama.cpp" -j"$(nproc)" --target "${missing[@]}" >"$peers/llama.cpp-build.log" 2>&1
}

for peer in "${@:-transformers llmcompressor gptqmodel llama.cpp}"; do
  for one in $peer; do
    case $one in
      llama.cpp) llama_cpp ;;
      transformers | llmcompressor | gptqmodel) environment "$one" ;;
      *) echo "unknown peer: $one" >&2; exit 2 ;;
    esac
    echo "ready: $one"
  done
done
