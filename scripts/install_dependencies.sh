#!/usr/bin/env bash
# Installs the Debian packages that a task needs and that are missing; says which first. Does nothing when all are there.
#   install_dependencies.sh build|demo|interop|fuzz|portable|deb|wheel|tree|packages|format|tidy...
set -euo pipefail

packages_for() {
  case $1 in
    build) echo cmake ninja-build g++ git libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libeigen3-dev libfmt-dev libssl-dev libre2-dev \
                libonig-dev libutf8proc-dev libboost1.81-dev libgtest-dev libgmock-dev libbenchmark-dev ;;
    demo) echo python3 python3-pip unzip jq bsdextrautils ;;
    interop) echo python3 python3-venv python3-pip python3-yaml python3-jsonschema jq unzip openssl skopeo valgrind \
                  libopenmpi-dev openmpi-bin ;;
    fuzz) echo clang lld libclang-rt-14-dev ;;
    portable) echo g++-aarch64-linux-gnu qemu-user jq ;;
    deb) echo dpkg-dev file ;;
    wheel) echo python3 python3-venv python3-pip ;;
    tree) ;;
    packages) echo dpkg-dev file lintian man-db qemu-user python3 python3-venv python3-pip ;;
    format) echo git clang-format-14 ;;
    tidy) echo clang-format-14 clang-tidy-14 ;;
    *) echo "unknown task: $1" >&2; exit 2 ;;
  esac
}

missing=()
for task in "$@"; do
  for package in $(packages_for "$task"); do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "llmq needs these Debian packages, which are not installed: ${missing[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "Install them as root: apt-get install ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "Installing them with apt-get."
"${sudo[@]}" apt-get update -q >/dev/null
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
