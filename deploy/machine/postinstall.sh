#!/bin/sh
# dpkg and rpm run this after the files are there, of a new package and of a newer one. It makes the user that agent and
# Envoy run as, and the token's directory, and starts nothing: the machine has no identity yet.
set -e
if ! getent passwd istio-proxy >/dev/null; then
  getent group istio-proxy >/dev/null || groupadd --system istio-proxy
  useradd --system --gid istio-proxy --no-create-home --home-dir /var/lib/istio --shell /usr/sbin/nologin istio-proxy
fi
install -d -m 0700 -o istio-proxy -g istio-proxy /run/secrets/tokens
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # A newer package: the agent that runs is the old one.
  systemctl try-restart fairlead-node-agent.service
fi
