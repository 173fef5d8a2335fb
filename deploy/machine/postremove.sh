#!/bin/sh
# After the files have gone. Keys, configuration and the user stay, as the machine's owner may install the package
# again; dpkg's purge removes what the agent has written.
set -e
if [ "${1-}" = purge ]; then
  rm -rf /var/lib/istio/proxy /var/lib/istio/certs
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
