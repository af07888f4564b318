#!/usr/bin/env bash
# Runs ctest in a build folder and prints, at the end, the minutes each label took.   run_ctest.sh BUILD [CTEST ARGUMENTS...]
# Two tests more than processors: a third of the time of those that kill programs or fail disks is waiting. A test that says nothing of its
# own time gets ten minutes: one that hangs is named, where it would else have taken the whole run with it.
set -uo pipefail
build=$1; shift
mkdir -p "$build/Testing"; touch "$build/Testing/begun"  # what is younger was not tested (tests/faults/ctest_record.py)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
ctest --test-dir "$build" -j"$(($(nproc) + 2))" --output-on-failure --no-tests=error --timeout 600 "$@" | sed -u -E '/^ +Start +[0-9]+:/d; s/(  # GetParam\(\)[^.]*)? \.{4,}/ .../' | tee "$log"
status=${PIPESTATUS[0]}
echo
echo "Minutes of processor time per label ($build):"
awk '/sec\*proc/ { printf "  %-10s %6.2f min  %s %s\n", $1, $3 / 60, $5, $6 }' "$log"
exit "$status"
