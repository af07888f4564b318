#!/usr/bin/env bash
# scripts/device_check.sh passes where its programs do, and fails where they do not or say nothing. In the place of the programs stand some that say what
# they are told.   check_device_check.sh ROOT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/folder/{bin,lib,models/tinystories-656k} "$work/large model"
cat >"$work/folder/bin/llmq" <<'PROGRAM'
#!/usr/bin/env bash
[ "$1" = eval-ppl ] || exit 0
case "$* " in *" --device cpu "*) on=CPU ;; *) on=DEVICE ;; esac
case "$* " in *" --compute bfloat16 "*) as=_BF16 ;; *) as= ;; esac
case "$2" in */tinystories-656k) of=SMALL_ ;; *) of=LARGE_ ;; esac
said=$of$on$as
printf '{"model": "x", %s"tokens": 5}\n' "${!said}"
PROGRAM
printf '#!/usr/bin/env bash\nprintf "%%b" "$BACKEND_SAYS"\n' >"$work/folder/bin/llmq_kernels_backend"
printf '#!/usr/bin/env bash\necho "5 of 5 codes are equal on $LLMQ_CODES_DEVICE"; exit "${CODES_STATUS:-0}"\n' >"$work/folder/bin/llmq_unit_quant"
chmod +x "$work"/folder/bin/*

failed=0
expect() {  # expect PART passed|FAILED WHAT NAME=WORDS...
  local outcome=passed said
  said=$(env SMALL_CPU='"ppl": 608.139, ' SMALL_DEVICE='"ppl": 608.139, ' SMALL_CPU_BF16='"ppl": 608.2, ' SMALL_DEVICE_BF16='"ppl": 608.7, ' \
    LARGE_CPU='"ppl": 20.0, ' LARGE_DEVICE='"ppl": 20.0, ' LARGE_CPU_BF16='"ppl": 20.1, ' LARGE_DEVICE_BF16='"ppl": 20.1, ' MODEL="$work/large model" \
    BACKEND_SAYS='[  PASSED  ] 62 tests.\n' DEVICE=cuda "${@:4}" "$root/scripts/device_check.sh" run "$work/folder" "$work/results" "$1") || outcome=FAILED
  [ "$outcome" = "$2" ] || { echo "$1, $3: $outcome, not $2"; echo "$said"; failed=1; }
}
root=$1
expect perplexity passed "the same"
expect perplexity passed "four digits" LARGE_DEVICE='"ppl": 20.0009, '
expect perplexity FAILED "three digits" LARGE_DEVICE='"ppl": 20.0011, '
expect perplexity FAILED "three digits, below" LARGE_DEVICE='"ppl": 19.9989, '
expect perplexity FAILED "of the small model" SMALL_DEVICE='"ppl": 608.2, '
expect perplexity passed "bfloat16 within a thousandth" LARGE_DEVICE_BF16='"ppl": 20.12, '
expect perplexity FAILED "bfloat16 further apart" LARGE_DEVICE_BF16='"ppl": 20.121, '
expect perplexity FAILED "nothing is said" LARGE_DEVICE=
expect perplexity FAILED "nothing is said on the CPU" SMALL_CPU=
expect perplexity FAILED "no number" LARGE_CPU='"ppl": null, ' LARGE_DEVICE='"ppl": null, '
expect perplexity passed "one model alone" MODEL= LARGE_DEVICE='"ppl": 30, '
expect tests passed "every test"
expect tests FAILED "one failed" BACKEND_SAYS='[  PASSED  ] 61 tests.\n[  FAILED  ] 1 test, listed below:\n'
expect tests FAILED "one was skipped" BACKEND_SAYS='[  SKIPPED ] 1 test, listed below:\n[  PASSED  ] 61 tests.\n'
expect tests FAILED "none ran" BACKEND_SAYS='[  PASSED  ] 0 tests.\n'
expect tests FAILED "it died" BACKEND_SAYS='terminate called\n'
expect tests FAILED "other codes" CODES_STATUS=1
exit "$failed"
