#!/usr/bin/env bash
# Lists, of directories and all below them, the packages with tests that the race detector can say something of: those
# in whose code or tests there is a goroutine, a channel, a lock, a context, a network connection or a program. What is
# left out is functions of their inputs.
set -euo pipefail
cd "$(dirname "$0")/.."
find "$@" -name '*_test.go' -not -path '*/testdata/*' -print0 | xargs -0 -n1 dirname | sort -u | while read -r dir; do
  if grep -qE '(^|[^A-Za-z])go (func|[A-Za-z.]+\()|sync\.|atomic\.|errgroup|\.Parallel\(|\.Go\(|<-|chan |[cC]ontext\(?\)?\.|"net"|net/http|grpc\.|exec\.' "$dir"/*.go; then
    echo "./${dir#./}"
  fi
done
