#!/usr/bin/env bash
# Lists commits since 792835b, merges too, whose subject is longer than 72 characters. Fails where one of them is not older than
# this script: what was there before is not rewritten for its subject.
#   check_subjects.sh          the history
#   check_subjects.sh FILE     a message that is about to be committed, as git hands it to a commit-msg hook
set -euo pipefail
export LC_ALL=C.UTF-8  # characters, not bytes
from=792835b37382de3e22c65693d68a067794a9815d most=72
if [ $# -gt 0 ]; then
  subject=$(sed -n -e '/^#/d' -e '/[^[:space:]]/{p;q}' "$1")
  [ ${#subject} -le $most ] || { echo "The subject has ${#subject} characters, and $most are the most: $subject" >&2; exit 1; }
  exit 0
fi
cd "$(dirname "$0")/.."
if ! git merge-base --is-ancestor $from HEAD 2>/dev/null; then
  echo "Subjects of commits are not checked: the history here does not reach ${from:0:7}."
  exit 0
fi
rule=$(git log --diff-filter=A --format=%H -- scripts/check_subjects.sh | tail -1)
long() {  # RANGE...
  local id subject
  git log --format='%h %s' "$@" | while read -r id subject; do
    [ ${#subject} -le $most ] || echo "$id ${#subject} characters: $subject"
  done
}
older=$(long "$from..${rule:-HEAD}")
newer=$(long "${rule:-HEAD}..HEAD" "^$from")
[ -z "$older" ] || printf 'Longer than %s characters, from before this check:\n%s\n' $most "$older"
[ -z "$newer" ] || { printf 'Longer than %s characters; give these a shorter subject:\n%s\n' $most "$newer" >&2; exit 1; }
