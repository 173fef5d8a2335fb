#!/usr/bin/env bash
# Prints one in SHARE of the lines that it reads, which ones by SEED: hack/share.sh SHARE SEED. Without a share, all.
set -euo pipefail
share=${1:-1}
awk -v n="$share" -v r="$(($(cksum <<<"${2:-none}" | cut -d' ' -f1) % share))" 'NR % n == r'
