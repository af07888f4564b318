#!/usr/bin/env bash
# scripts/check_subjects.sh as a commit-msg hook: characters are counted, not bytes, of the first line that is no comment.
#   check_subject_hook.sh SOURCE
set -euo pipefail
hook=$1/scripts/check_subjects.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
repeated() { printf "$1%.0s" $(seq "$2"); }
message() { printf '# a comment that is long: %s\n\n%s\n\n%s\n' "$(repeated c 80)" "$1" "$(repeated b 90)" >"$work/message"; }

for subject in "Short" "$(repeated ż 72)" ""; do
  message "$subject"
  [ -n "$subject" ] || echo '# nothing but comments' >"$work/message"
  "$hook" "$work/message" || { echo "refused: '$subject'"; exit 1; }
done
message "$(repeated x 73)"
if said=$("$hook" "$work/message" 2>&1); then echo "73 characters were taken"; exit 1; fi
[[ "$said" == *"73 characters, and 72 are the most"* ]] || { echo "said: $said"; exit 1; }
echo "ok"
