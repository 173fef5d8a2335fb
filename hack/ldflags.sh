#!/usr/bin/env bash
# Prints the linker's flags that tell programs their versions: hack/ldflags.sh [VERSION]. VERSION is that of the whole,
# by default the last tag vX.Y.Z with what came after it, or the commit. A service with a tag of its own,
# services/NAME/vX.Y.Z, has the version that git describes by it.
set -euo pipefail
describe() { git describe --tags --dirty --match "$1" "${@:2}" 2>/dev/null; }
version=${1:-$(describe 'v[0-9]*' --always || echo dev)}
own=
for dir in $(git ls-files --full-name ':(top,glob)services/*/go.mod' 2>/dev/null); do
  name=${dir#services/}
  name=${name%%/*}
  if tag=$(describe "services/$name/v[0-9]*"); then own+=${own:+,}$name=${tag##*/}; fi
done
echo "-X fairlead.dev/pkg/version.Version=$version${own:+ -X fairlead.dev/pkg/version.services=$own}"
