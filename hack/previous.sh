#!/usr/bin/env bash
# Builds the services of the previous release, the commit in tests/e2e/skew/PREVIOUS, into $FAIRLEAD_CACHE (default:
# fairlead in the user's cache directory) unless they are there, and prints their directory. A clone that lacks the
# commit fetches it alone.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

commit=$(cat tests/e2e/skew/PREVIOUS)
cache=${FAIRLEAD_CACHE:-${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}/fairlead}
dir=$cache/previous-$(echo "$commit $(go env GOVERSION GOOS GOARCH | tr '\n' ' ')" | sha256sum | cut -c1-16)
programs="services/ca/cmd/ca services/config-watcher/cmd/config-watcher services/node-agent/cmd/node-agent services/xds-server/cmd/xds-server"
complete() {
  for program in $programs; do [ -x "$dir/${program##*/}" ] || return 1; done
}
mkdir -p "$cache"
# Who comes second waits and finds the result.
exec 9>"$cache/.previous.lock"
if command -v flock >/dev/null; then flock 9; fi
if ! complete; then
  if ! git cat-file -e "$commit^{commit}" 2>/dev/null && ! git fetch --quiet --depth 1 origin "$commit" 2>/dev/null; then
    echo "the commit of the previous release, $commit (tests/e2e/skew/PREVIOUS), is not in this clone and cannot be fetched from origin: run git fetch --unshallow, or clone with all of the history" >&2
    exit 2
  fi
  echo "building the services of $commit into $dir, once: some minutes" >&2
  work=$(mktemp -d "$cache/.previous-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/tree" "$work/bin"
  git archive "$commit" | tar -x -C "$work/tree"
  (cd "$work/tree" && go build -trimpath -buildvcs=false -ldflags "-X fairlead.dev/pkg/version.Version=$(echo "$commit" | cut -c1-8)" \
    -o "$work/bin/" $(printf './%s ' $programs)) >&2
  chmod 755 "$work/bin"
  rm -rf "$dir"
  mv -T "$work/bin" "$dir"
fi
touch "$dir"
find "$cache" -maxdepth 1 -name 'previous-*' ! -path "$dir" -mtime +30 -exec rm -rf {} +
echo "$dir"
