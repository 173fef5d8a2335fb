#!/usr/bin/env bash
# Makes the files of external-signer in the directory DIR (default: signer-files) with openssl: a root, the certificate
# that signs leaves, the server's certificate for HOST (default: localhost), and the ca's own, by an authority that
# issues for nobody else. Run it once, on a machine where root-key.pem may be; the signer does not need that key.
set -euo pipefail
dir=${1:-signer-files} host=${2:-localhost}
[ ! -e "$dir" ] || { echo "$dir is there already: remove it, or name another directory" >&2; exit 1; }
umask 077
mkdir -p "$dir"
cd "$dir"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
authority() { printf 'basicConstraints=critical,CA:TRUE%s\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n' "$1"; }
issue() { # NAME SUBJECT ISSUER DAYS EXTENSIONS
  key "$1-key.pem"
  openssl req -new -key "$1-key.pem" -subj "$2" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA "$3.pem" -CAkey "$3-key.pem" -days "$4" -extfile <(printf '%s\n' "$5") -out "$1.pem" 2>/dev/null
  rm "$1.csr"
}
self() { # NAME SUBJECT DAYS
  key "$1-key.pem"
  openssl req -x509 -new -key "$1-key.pem" -subj "$2" -days "$3" -out "$1.pem" -config <(printf '[req]\ndistinguished_name=n\nx509_extensions=e\n[n]\n[e]\n'; authority '')
}
leaf() { printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%s\nsubjectAltName=%s' "$1" "$2"; }

self root "/O=Example/CN=Mesh root" 3650
issue authority "/O=Example/CN=Mesh signer" root 1095 "$(authority ',pathlen:0')"
cat root.pem >>authority.pem
self client-ca "/O=Example/CN=Clients of the signer" 3650
issue client "/O=Example/CN=Fairlead ca" client-ca 365 "$(leaf clientAuth DNS:fairlead-ca)"
issue server "/O=Example/CN=Signer" client-ca 365 "$(leaf serverAuth "DNS:$host")"
rm client-ca-key.pem
ls -1
