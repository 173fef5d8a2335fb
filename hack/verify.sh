#!/usr/bin/env bash
# What must be true of a commit besides its tests. Every failure is printed; the exit code is 1 if there was one.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
fail() { echo "verify: $*" >&2; failed=1; }
modules=$(git ls-files --cached --others --exclude-standard '*go.mod' | xargs -n1 dirname | sort)

# 1. Generated code is what the contracts give, and definitions of kinds are those of their modules.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r proto "$work/proto"
(cd "$work/proto" && find . -name '*.pb.go' -delete && buf generate) || fail "buf generate failed"
diff -rq -x '*.proto' proto "$work/proto" || fail "generated code is stale: run make generate"
definitions=services/installer/manifests/charts/base/files
cp -r $definitions "$work/definitions"
schemas=services/config-watcher/internal/validate/gatewayapi/schemas
cp -r $schemas "$work/schemas"
hack/crds.sh "$work/definitions" "$work/schemas" || fail "hack/crds.sh failed"
diff -rq $schemas "$work/schemas" || fail "$schemas is stale: run make generate"
diff -rq $definitions "$work/definitions" || fail "$definitions is stale: run make generate"
go run ./services/installer/manifests/kustomize "$work/kustomize" || fail "deploy/kustomize cannot be rendered"
diff -rq deploy/kustomize "$work/kustomize" || fail "deploy/kustomize is stale: run make generate"

# 2. The contracts break nobody who follows the last release.
(cd proto && buf breaking --against baseline.json) || fail "the contracts changed incompatibly; see above"

# 3. Modules are tidy, and all use one version of every dependency.
for m in $modules; do
  case $m in tools/* | tests/conformance) work_off=off ;; *) work_off= ;; esac
  (cd "$m" && GOWORK=$work_off go mod tidy -diff >"$work/tidy" 2>&1) || { head -n 20 "$work/tidy" >&2; fail "$m: go.mod is not tidy: run go mod tidy there"; }
done
for m in $modules; do
  case $m in tools/* | tests/conformance) continue ;; esac
  (cd "$m" && go mod edit -json) | python3 -c '
import json, sys
for r in json.load(sys.stdin).get("Require") or []:
    print(r["Path"], r["Version"], sys.argv[1])' "$m"
done | sort >"$work/versions"
several=$(awk '{print $1, $2}' "$work/versions" | sort -u | awk '{n[$1]++} END {for (p in n) if (n[p] > 1) print p}')
for p in $several; do
  grep "^$p " "$work/versions" >&2
  fail "$p is used in several versions: bring the go.mod files above to one (go work sync)"
done

# 4. Each module also builds alone, without the workspace.
for m in $modules; do
  case $m in tools/* | tests/conformance) continue ;; esac
  (cd "$m" && GOWORK=off go build ./...) || fail "$m does not build on its own"
done

# 5. No binary and no oversized file is tracked.
git ls-files -z | while IFS= read -r -d '' f; do
  [ -f "$f" ] || continue
  [ "$(wc -c <"$f")" -le 1000000 ] || echo "$f"
done >"$work/large"
[ ! -s "$work/large" ] || { cat "$work/large" >&2; fail "files above 1 MB are tracked"; }

exit $failed
