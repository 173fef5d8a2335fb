#!/bin/sh
# dpkg calls this with remove or upgrade, rpm with the number of versions that will be left. Before the last version goes
# the agent is stopped, and connections are no longer redirected to it.
set -e
case "${1-}" in
  remove | 0) ;;
  *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
  systemctl disable --now fairlead-node-agent.service
fi
/usr/local/bin/node-agent clean-iptables || echo "fairlead-node-agent: rules of redirection are left in the kernel until the machine starts again" >&2
