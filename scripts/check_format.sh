#!/usr/bin/env bash
# Refuses C++ files that clang-format-14 would write otherwise (.clang-format). Seconds; changes nothing.   check_format.sh
set -euo pipefail
cd "$(dirname "$0")/.."
find src kernels tools tests -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' \) -print0 |
  xargs -0 -n 100 -P "$(nproc)" clang-format-14 --dry-run -Werror ||
  { echo "clang-format-14 -i FILES puts it right" >&2; exit 1; }
