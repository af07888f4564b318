#!/usr/bin/env bash
# scripts/device_check.sh passes where both backends say the same perplexity to four digits, of each model, and fails where they do not or one says
# nothing. In the place of llmq stands a program that says what it is told.   check_device_perplexity.sh ROOT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/folder/{bin,lib,models/tinystories-656k} "$work/large model"
cat >"$work/folder/bin/llmq" <<'PROGRAM'
#!/usr/bin/env bash
[ "$1" = eval-ppl ] || exit 0
case "$* " in *" --device cpu "*) on=CPU ;; *) on=DEVICE ;; esac
case "$2" in */tinystories-656k) of=SMALL_ ;; *) of=LARGE_ ;; esac
said=$of$on
printf '{"model": "x", %s"tokens": 5}\n' "${!said}"
PROGRAM
chmod +x "$work/folder/bin/llmq"

failed=0
expect() {  # expect passed|FAILED WHAT NAME=PERPLEXITY...
  local outcome=passed said
  said=$(env SMALL_CPU='"ppl": 608.139, ' SMALL_DEVICE='"ppl": 608.139, ' LARGE_CPU='"ppl": 20.0, ' LARGE_DEVICE='"ppl": 20.0, ' MODEL="$work/large model" "${@:3}" \
    "$root/scripts/device_check.sh" run "$work/folder" "$work/results" perplexity) || outcome=FAILED
  [ "$outcome" = "$1" ] || { echo "$2: $outcome, not $1"; echo "$said"; failed=1; }
}
root=$1
expect passed "the same"
expect passed "four digits" LARGE_DEVICE='"ppl": 20.0009, '
expect FAILED "three digits" LARGE_DEVICE='"ppl": 20.0011, '
expect FAILED "three digits, below" LARGE_DEVICE='"ppl": 19.9989, '
expect FAILED "of the small model" SMALL_DEVICE='"ppl": 608.2, '
expect FAILED "nothing is said" LARGE_DEVICE=
expect FAILED "nothing is said on the CPU" SMALL_CPU=
expect FAILED "no number" LARGE_CPU='"ppl": null, ' LARGE_DEVICE='"ppl": null, '
expect passed "one model alone" MODEL= LARGE_DEVICE='"ppl": 30, '
exit "$failed"
