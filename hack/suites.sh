#!/usr/bin/env bash
# Reads the table of suites in CONTRIBUTING.md, of which each row is: `name` | `command of a sample` and what it leaves
# out | `command of all` | the paths whose changes let it run first.
#
#   hack/suites.sh            NAME, sample, all, paths: a line for each suite, with tabs between
#   hack/suites.sh order      the same lines as .ci/run takes them: first the suites of what changed since the commit
#                             SINCE, by default origin/main, or the commit before; then the others, of which the hash
#                             of the commit says with which they begin. CHANGED, if set, has the changed paths instead.
set -euo pipefail
cd "$(dirname "$0")/.."

list() {
  awk -F ' *\\| *' '
    /^\| suite \|/ { in_table = 1; next }
    in_table && /^\|--/ { next }
    in_table && !/^\|/ { exit }
    in_table {
      line = ""
      for (i = 2; i <= 5; i++) {
        field = ""; rest = $i
        while (match(rest, /`[^`]*`/)) {
          field = field (field == "" ? "" : " ") substr(rest, RSTART + 1, RLENGTH - 2)
          rest = substr(rest, RSTART + RLENGTH)
          if (i == 3) break
        }
        line = line (i == 2 ? "" : "\t") field
      }
      print line
    }' CONTRIBUTING.md
}

changed() {
  if [ -n "${CHANGED+set}" ]; then
    printf '%s\n' $CHANGED
    return
  fi
  local since=${SINCE:-}
  if [ -z "$since" ] && git merge-base --is-ancestor origin/main HEAD 2>/dev/null &&
    [ "$(git rev-parse origin/main)" != "$(git rev-parse HEAD)" ]; then
    since=origin/main
  fi
  git diff --name-only "${since:-HEAD~1}" HEAD 2>/dev/null || true
}

if [ "${1:-}" != order ]; then
  list
  exit
fi
first=() others=()
files=$(changed)
while IFS= read -r suite; do
  for path in ${suite##*$'\t'}; do
    if grep -qE "^${path}(/|\$)" <<<"$files"; then
      first+=("$suite")
      continue 2
    fi
  done
  others+=("$suite")
done < <(list)
if [ ${#others[@]} -gt 0 ]; then
  begin=$(($(git rev-parse HEAD 2>/dev/null | cksum | cut -d' ' -f1) % ${#others[@]}))
  others=("${others[@]:begin}" "${others[@]:0:begin}")
fi
printf '%s\n' "${first[@]}" "${others[@]}" | sed '/^$/d'
