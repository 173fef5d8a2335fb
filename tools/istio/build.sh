#!/usr/bin/env bash
# Builds Istio's istioctl and pilot-agent into $FAIRLEAD_CACHE (default: fairlead in the user's cache directory) unless
# they are there, and prints their directory. With --dir it prints the directory and builds nothing. What was built from
# other versions and has not been used for a month is removed.
set -euo pipefail
cd "$(dirname "$0")"
export GOWORK=off

cache=${FAIRLEAD_CACHE:-}
if [ -z "$cache" ]; then
  base=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
  [ -n "$base" ] || { echo "neither FAIRLEAD_CACHE nor HOME is set: set FAIRLEAD_CACHE to a directory for built tools" >&2; exit 2; }
  cache=$base/fairlead
fi
key=$({ cat go.mod go.sum; go env GOVERSION GOOS GOARCH; } | sha256sum | cut -c1-16)
dir=$cache/istio-$key
if [ "${1:-}" = --dir ]; then
  echo "$dir"
  exit
fi

complete() { [ -x "$dir/istioctl" ] && [ -x "$dir/pilot-agent" ]; }
if ! complete; then
  mkdir -p "$cache"
  # Who comes second waits and finds the result. Without flock both build, and the first to finish counts.
  exec 9>"$cache/.istio.lock"
  if command -v flock >/dev/null; then flock 9; fi
fi
if ! complete; then
  echo "building istioctl and pilot-agent into $dir: about five minutes and 400 MB of modules, once" >&2
  work=$(mktemp -d "$cache/.istio-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  go build -trimpath -ldflags '-s -w' -o "$work/" tool >&2
  chmod 755 "$work"
  mv -T "$work" "$dir" 2>/dev/null || complete || { rm -rf "$dir" && mv -T "$work" "$dir"; }
fi
touch "$dir"
find "$cache" -maxdepth 1 -name 'istio-*' ! -path "$dir" -mtime +30 -exec rm -rf {} +
echo "$dir"
