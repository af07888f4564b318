#!/usr/bin/env bash
# One function, one meaning: an inline function (weak) and another folder's function (strong) of the same name and
# arguments are silently merged by the linker, and one of the two callers gets the other's result. Names alone tell.
#   one_definition.sh NM ARCHIVE...
set -euo pipefail
nm=$1; shift
clashes=$("$nm" -A --defined-only "$@" | awk 'NF > 1 && $(NF-1) ~ /^[TWV]$/ && $NF ~ /^_ZNK?4llmq/ {
    kinds[$NF] = kinds[$NF] $(NF-1); split($1, at, ":"); where[$NF] = where[$NF] " " at[1] }
  END { for (name in kinds) if (kinds[name] ~ /T.*[TWV]|[WV].*T/) print name ":" where[name] }' | c++filt)
[ -z "$clashes" ] || { echo "defined twice, once or more strongly:"; echo "$clashes"; exit 1; }
