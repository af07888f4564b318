#!/usr/bin/env bash
# Checks the format of C++ and CUDA files that differ from a commit (new ones too), and lints the C++ ones.   run_tidy.sh BUILD [COMMIT]
set -euo pipefail
build=$1; base=${2:-HEAD}
cd "$(dirname "$0")/.."
mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | grep -E '\.(cpp|h|cu)$' | sort -u)
[ ${#files[@]} -gt 0 ] || { echo "No C++ file differs from $base."; exit 0; }
clang-format-14 --dry-run -Werror "${files[@]}"
mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep '\.cpp$' || true)
[ ${#sources[@]} -eq 0 ] || clang-tidy-14 --quiet -p "$build" "${sources[@]}"
