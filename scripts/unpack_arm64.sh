#!/usr/bin/env bash
# Debian's arm64 packages that llmq is cross-compiled with, fetched by an apt of its own (the machine's is not touched) and unpacked, not installed.
#   unpack_arm64.sh FOLDER      into FOLDER/root, once
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
root=$folder/root
packages=(libyaml-cpp-dev libyaml-cpp0.7 libfmt-dev libfmt9 libssl-dev libssl3 libre2-dev libre2-9 libonig-dev libonig5 libutf8proc-dev libutf8proc2
          libgtest-dev libgmock-dev googletest nlohmann-json3-dev libcli11-dev libeigen3-dev libboost1.81-dev)
[ "$(cat "$root/.complete" 2>/dev/null)" != "${packages[*]}" ] || exit 0
mkdir -p "$folder"/apt/{lists/partial,cache/archives/partial,download} "$root"
: >"$folder/apt/status"
apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists="$folder/apt/lists" -o Dir::State::status="$folder/apt/status"
     -o Dir::Cache="$folder/apt/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none)
"${apt[@]}" update >/dev/null
(cd "$folder/apt/download" && "${apt[@]}" download "${packages[@]}" >/dev/null)
for package in "$folder"/apt/download/*.deb; do dpkg-deb -x "$package" "$root"; done
echo "${packages[*]}" >"$root/.complete"
