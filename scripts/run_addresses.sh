#!/usr/bin/env bash
# Runs the tests of a build with AddressSanitizer and UBSan, part by part.   run_addresses.sh BUILD
# With ADDRESSES_UNTIL (seconds since 1970) no part is begun later, and the last line says what was left out. The order is drawn by the commit, so
# that another commit leaves out others.
set -uo pipefail
build=$1
cd "$(dirname "$0")/.."
parts=('(golden|fuzz|serve)/' 'kernels/' 'unit/quant/' 'unit/(calibration|device|evaluate|job|ranks|runtime)/' 'unit/')
drawn=$(git rev-parse HEAD 2>/dev/null || echo 0)
turn=$((16#${drawn:0:6} % ${#parts[@]}))
left_out=()
for part in "${parts[@]:turn}" "${parts[@]:0:turn}"; do
  if [ "$EPOCHSECONDS" -ge "${ADDRESSES_UNTIL:-9999999999}" ]; then left_out+=("$part"); continue; fi
  not="^unit/house/" # reads texts
  [ "$part" != unit/ ] || not+="|^(${parts[2]}|${parts[3]})" # those have a part of their own
  scripts/run_ctest.sh "$build" -L 'unit|kernels|golden|fuzz|sanitized_server' -R "^$part" -E "$not" || exit 1
done
[ ${#left_out[@]} -eq 0 ] || echo "LEFT OUT, since the time was over, tests of: ${left_out[*]}"
