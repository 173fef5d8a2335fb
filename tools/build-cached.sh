#!/usr/bin/env bash
# Builds the programs that the go.mod of tools/NAME lists under `tool` into $FAIRLEAD_CACHE (default: fairlead in the
# user's cache directory) unless they are there, and prints their directory; of several NAMEs the directories, joined by
# colons as in PATH. With --dir first it prints and builds nothing. What was built from other versions and has not been
# used for a month is removed.
set -euo pipefail
cd "$(dirname "$0")"
export GOWORK=off CGO_ENABLED=0

cache=${FAIRLEAD_CACHE:-}
if [ -z "$cache" ]; then
  base=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
  [ -n "$base" ] || { echo "neither FAIRLEAD_CACHE nor HOME is set: set FAIRLEAD_CACHE to a directory for built tools" >&2; exit 2; }
  cache=$base/fairlead
fi

# Kubernetes' programs say v0.0.0-master without a stamp, and clients judge features by what they say.
stamp() {
  local version package
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes 2>/dev/null) || return 0
  IFS=. read -r major minor _ <<<"${version#v}"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf -- '-X %s ' "$package.gitVersion=$version" "$package.gitMajor=$major" "$package.gitMinor=$minor"
  done
}

build() ( # NAME DIR
  cd "$1"
  programs=$(go mod edit -json | sed -n '/"Tool"/,/\]/s|.*"Path": ".*/\([^/]*\)".*|\1|p')
  complete() {
    for program in $programs; do [ -x "$2/$program" ] || return 1; done
  }
  if ! complete "$@"; then
    mkdir -p "$cache"
    # Who comes second waits and finds the result. Without flock both build, and the first to finish counts.
    exec 9>"$cache/.$1.lock"
    if command -v flock >/dev/null; then flock 9; fi
  fi
  if ! complete "$@"; then
    echo "building $(echo $programs) into $2, once for these versions: up to five minutes" >&2
    if grep -q '^// cgo: ' go.mod; then export CGO_ENABLED=1; fi
    work=$(mktemp -d "$cache/.$1-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    go build -trimpath -ldflags "-s -w $(stamp)" -o "$work/" tool >&2
    chmod 755 "$work"
    mv -T "$work" "$2" 2>/dev/null || complete "$@" || { rm -rf "$2" && mv -T "$work" "$2"; }
  fi
  touch "$2"
  find "$cache" -maxdepth 1 -name "$1-*" ! -path "$2" -mtime +30 -exec rm -rf {} +
)

only_print=
if [ "${1:-}" = --dir ]; then
  only_print=yes
  shift
fi
dirs=()
for name in "$@"; do
  [ -f "$name/go.mod" ] || { echo "tools/$name has no go.mod; usage: tools/build-cached.sh [--dir] NAME..." >&2; exit 2; }
  key=$({ find "$name" -maxdepth 1 -name '*.go' -exec cat {} +; cat "$name/go.mod" "$name/go.sum"; go env GOVERSION GOOS GOARCH; } | sha256sum | cut -c1-16)
  dirs+=("$cache/$name-$key")
  [ -n "$only_print" ] || build "$name" "$cache/$name-$key"
done
(IFS=:; echo "${dirs[*]}")
