#!/usr/bin/env bash
# Runs every fuzz target below the directories given for FUZZTIME each (default 20s): go test takes one at a time. The
# first finding ends the run; go test has written its input to testdata/fuzz, where it stays as a test.
set -euo pipefail
grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*(' "$@" | sort | while IFS=: read -r file function; do
  name=${function#func }
  echo "$(dirname "$file") ${name%(}"
done | while read -r package name; do
  echo "$package $name"
  # From inside: the package may be of any module of the workspace.
  (cd "$package" && go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-20s}" . </dev/null)
done
