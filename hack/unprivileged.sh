#!/usr/bin/env bash
# Runs tests as a user without privileges, once with user namespaces and once where they are refused: of the packages
# that `-l` lists, which are those whose code or tests speak of users, modes of files, mounts or namespaces; or of those
# given as arguments. Root calls it. The long suites on the same fleets, e2e/ondemand, e2e/attack and e2e/thirdparty, are
# left out.
set -euo pipefail

packages() {
  grep -rlE 'testkit/userns"|[^A-Za-z]Gete?uid\(|os\.Ch(mod|own)\(|\.Chmod\(|\.Mount\(|syscall\.Credential\{|AmbientCaps|"tcp[46]?", ":?[0-9]{1,3}"' \
    --include='*.go' pkg services samples tests/e2e tests/internal tests/scenarios | xargs -n1 dirname | sort -u | while read -r dir; do
    if [[ ! $dir =~ ^tests/e2e/(ondemand|attack|thirdparty)$ ]] && compgen -G "$dir/*_test.go" >/dev/null; then echo "./$dir"; fi
  done
}

if [ "${1-}" = -exec ]; then # what go test calls for each package, in the package's directory: MODE, the test's binary, its arguments
  mode=$2 binary=$FAIRLEAD_TEST_DIR/$$.test
  ln "$3" "$binary" 2>/dev/null || cp "$3" "$binary"
  trap 'rm -f "$binary"' EXIT
  chmod 755 "$binary"
  shift 3
  as=(setpriv --reuid "$FAIRLEAD_TEST_USER" --regid "$FAIRLEAD_TEST_USER" --clear-groups --inh-caps=-all
    env HOME="$FAIRLEAD_TEST_DIR/home" TMPDIR=/tmp "$binary" "$@")
  if [ "$mode" = with ]; then
    "${as[@]}"
    exit
  fi
  # A user namespace of its own, with all users as they are, in which no further one may be made.
  mkfifo "$FAIRLEAD_TEST_DIR/$$.mapped"
  unshare -U sh -c 'read -r _ <"$1"; shift; exec sh -c "echo 0 >/proc/sys/user/max_user_namespaces && exec \"\$@\"" sh "$@"' \
    sh "$FAIRLEAD_TEST_DIR/$$.mapped" "${as[@]}" &
  pid=$!
  until [ "$(readlink /proc/$pid/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do kill -0 $pid; done
  echo 0 0 4294967295 >/proc/$pid/uid_map
  echo 0 0 4294967295 >/proc/$pid/gid_map
  echo >"$FAIRLEAD_TEST_DIR/$$.mapped"
  wait $pid
  exit
fi

cd "$(dirname "$0")/.."
if [ "${1-}" = -l ]; then
  packages
  exit
fi
if [ "$(id -u)" != 0 ]; then
  echo "hack/unprivileged.sh needs root, to become another user; as yourself, run: make test" >&2
  exit 1
fi
export FAIRLEAD_TEST_USER=${FAIRLEAD_TEST_USER:-fairlead-test} FAIRLEAD_TEST_DIR
id "$FAIRLEAD_TEST_USER" >/dev/null 2>&1 || useradd --no-create-home "$FAIRLEAD_TEST_USER"
for kind in uid gid; do
  grep -q "^$FAIRLEAD_TEST_USER:" /etc/sub$kind 2>/dev/null || usermod --add-sub${kind}s 300000-365535 "$FAIRLEAD_TEST_USER"
done
FAIRLEAD_TEST_DIR=$(mktemp -d /tmp/flu.XXXXXX)
trap 'rm -rf "$FAIRLEAD_TEST_DIR"' EXIT
chmod 755 "$FAIRLEAD_TEST_DIR"
# A checkout that others may not read, such as one in root's home, is copied.
if ! setpriv --reuid "$FAIRLEAD_TEST_USER" --regid "$FAIRLEAD_TEST_USER" --clear-groups test -r "$PWD/tests/go.mod"; then
  mkdir "$FAIRLEAD_TEST_DIR/tree"
  tar --exclude=./.git --exclude=./.run -cf - . | tar -C "$FAIRLEAD_TEST_DIR/tree" -xf -
  cd "$FAIRLEAD_TEST_DIR/tree"
  ENVOY=$PWD/.tools/envoy
fi
mkdir "$FAIRLEAD_TEST_DIR/home" "$FAIRLEAD_TEST_DIR/bin"
chown "$FAIRLEAD_TEST_USER:" "$FAIRLEAD_TEST_DIR/home"
# The user builds nothing: it has neither the modules nor a cache.
for file in bin/*; do
  [ -f "$file" ] && { ln "$file" "$FAIRLEAD_TEST_DIR/$file" 2>/dev/null || cp "$file" "$FAIRLEAD_TEST_DIR/$file"; }
done
go build -o "$FAIRLEAD_TEST_DIR/bin/scenario-echo" ./tests/scenarios/echo
go build -o "$FAIRLEAD_TEST_DIR/bin/e2e-echo" ./tests/e2e/echo
export BIN_DIR=$FAIRLEAD_TEST_DIR/bin ENVOY=${ENVOY:-$PWD/.tools/envoy}

if [ $# = 0 ]; then
  mapfile -t list < <(packages)
  set -- "${list[@]}"
fi
echo "--- with user namespaces"
go test -count=1 -exec "$PWD/hack/unprivileged.sh -exec with" "$@"
# To packages that make none it makes no difference.
without=()
for package; do
  if [[ $package == *...* || $package == */e2e/* ]] || grep -qs 'testkit/userns"' "$package"/*.go; then without+=("$package"); fi
done
if [ ${#without[@]} -gt 0 ]; then
  echo "--- without user namespaces"
  go test -count=1 -exec "$PWD/hack/unprivileged.sh -exec without" "${without[@]}"
fi
