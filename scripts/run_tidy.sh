#!/usr/bin/env bash
# clang-tidy over C++ sources; a finding of what .clang-tidy lists is an error.
#   run_tidy.sh BUILD [COMMIT]   those that differ from a commit (default HEAD; new ones too), and their format
#   run_tidy.sh BUILD all        every source of src, tools and kernels that BUILD compiles, by all cores
set -euo pipefail
build=$1; base=${2:-HEAD}
how=(--quiet -p "$build" --extra-arg=-Wno-unknown-warning-option)  # of a build by g++
cd "$(dirname "$0")/.."
if [ "$base" = all ]; then
  mapfile -t sources < <(python3 - "$build/compile_commands.json" <<'PYTHON'
import json, os, sys
files = {os.path.relpath(command["file"]) for command in json.load(open(sys.argv[1]))}
print("\n".join(sorted(file for file in files if file.startswith(("src/", "tools/", "kernels/")))))
PYTHON
  )
  [ ${#sources[@]} -ge 300 ] || { echo "$build compiles ${#sources[@]} sources only, where 300 and more were expected."; exit 1; }
  printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 "${how[@]}"
  echo "clang-tidy finds nothing in ${#sources[@]} sources."
  exit
fi
mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | grep -E '\.(cpp|h|cu)$' | sort -u)
[ ${#files[@]} -gt 0 ] || { echo "No C++ file differs from $base."; exit 0; }
clang-format-14 --dry-run -Werror "${files[@]}"
mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep '\.cpp$' || true)
[ ${#sources[@]} -eq 0 ] || clang-tidy-14 "${how[@]}" "${sources[@]}"
