#!/usr/bin/env bash
# Builds the packages given after the output directory and go's flags: hack/build.sh DIR [FLAG]... -- PACKAGE... The first build fetches modules
# and compiles everything, which takes minutes: it says how far it is.
set -euo pipefail
out=$1
shift
flags=()
while [ "$1" != -- ]; do
  flags+=("$1")
  shift
done
shift

mkdir -p "$out"
total=0
if [ ! -x "$out/fairlead" ]; then
  echo "first build: modules are fetched and everything is compiled once; later builds take seconds" >&2
  # go says on stderr what it fetches.
  total=$(go list -deps "$@" | wc -l)
fi
# With -v, go prints a package's path when it has compiled it; everything else that it prints is for the reader.
go build -v "${flags[@]}" -o "$out/" "$@" 2>&1 | awk -v total="$total" '
  function say() { printf "  %d of %d packages compiled\n", n, total; fflush(); last = now() }
  function now(  t) { "date +%s" | getline t; close("date +%s"); return t }
  BEGIN { if (total) last = now() }
  /^[A-Za-z0-9_.~\/-]+$/ { n++; if (total && n % 25 == 0 && now() - last >= 5) say(); next }
  { print; fflush() }
  END { if (total && n) printf "  all %d packages are there\n", total }
' >&2
