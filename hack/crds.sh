#!/usr/bin/env bash
# Writes the CustomResourceDefinitions of Istio's kinds (crds) and of the Gateway API (gateway-api, both channels) below
# a directory, one file each, with kustomization.yaml, which lists them, and NOTICE, which says whose they are. Both come
# from the modules that config-watcher is built with. Fairlead's own definitions (*.fairlead.dev.yaml) are written by
# hand and stay. To a second directory it writes the schemas of the Gateway API that config-watcher evaluates.
# `make generate` gives it services/installer/manifests/charts/base/files and
# services/config-watcher/internal/validate/gatewayapi/schemas, hack/verify.sh copies.
set -euo pipefail
out=$(cd "$1" && pwd)
schemas=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."

# module WORKDIR PATH: the version and the directory of the module that WORKDIR's go.mod names.
module() {
  (cd "$1" && GOWORK=off go mod download -json "$2") | python3 -c 'import json, sys; m = json.load(sys.stdin); print(m["Version"], m["Dir"])'
}
read -r istio_version istio < <(module services/config-watcher istio.io/api)
read -r gateway_version gateway < <(module services/config-watcher sigs.k8s.io/gateway-api)

# definitions DIRECTORY FILE...: writes each definition of the files to a file of its own.
definitions() {
  local to=$1
  shift
  mkdir -p "$to"
  find "$to" -maxdepth 1 -name '*.yaml' ! -name '*.fairlead.dev.yaml' -delete
  awk -v out="$to" '
    function flush() {
      if (definition) printf "%s", text > (out "/" name ".yaml")
      text = name = ""; definition = meta = 0
    }
    FNR == 1 { flush() }
    /^---$/ { flush(); next }
    /^kind: CustomResourceDefinition$/ { definition = 1 }
    /^[a-z]/ { meta = /^metadata:/ }
    meta && /^  name: / { name = $2 }
    { text = text $0 "\n" }
    END { flush() }
  ' "$@"
}

# listed DIRECTORY: writes its kustomization.yaml.
listed() {
  {
    echo "# Written by make generate: every CustomResourceDefinition here."
    printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n'
    (cd "$1" && LC_ALL=C ls -- *.yaml) | grep -vx kustomization.yaml | sed 's/^/  - /'
  } >"$1/.new"
  mv "$1/.new" "$1/kustomization.yaml"
}

definitions "$out/crds" "$istio"/kubernetes/customresourcedefinitions.gen.yaml
definitions "$out/gateway-api/standard" "$gateway"/config/crd/standard/gateway.networking.k8s.io_*.yaml
mkdir -p "$out/gateway-api/experimental"
find "$schemas" "$out/gateway-api/experimental" \( -name '*.json' -o -name '*.yaml' \) -delete
(cd services/config-watcher && go run ./internal/validate/gatewayapi/generate "$gateway" "$gateway_version" "$schemas" \
  "$out/gateway-api/experimental")
listed "$out/crds"
listed "$out/gateway-api/standard"
listed "$out/gateway-api/experimental"

cat >"$out/crds/NOTICE" <<END
Definitions of the groups *.istio.io are part of istio.io/api $istio_version
(kubernetes/customresourcedefinitions.gen.yaml), Copyright Istio Authors. They are unchanged, but for one file a
definition, and under the Apache License, Version 2.0, as Fairlead itself is; its text is in LICENSE at the root of this
repository.
Definitions of the group fairlead.dev are Fairlead's own.
END
cat >"$out/gateway-api/NOTICE" <<END
Definitions of the groups gateway.networking.k8s.io and gateway.networking.x-k8s.io are part of
sigs.k8s.io/gateway-api $gateway_version (config/crd), Copyright The Kubernetes Authors. They are unchanged, but for one file a
definition, and that those of the experimental channel have no descriptions. They are under the Apache License, Version
2.0, as Fairlead itself is; its text is in LICENSE at the root of this repository.
END
