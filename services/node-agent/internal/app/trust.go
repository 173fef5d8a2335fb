package app

import (
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/bootstrap"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/identity"
	"fairlead.dev/services/node-agent/internal/relay"
)

// pushedRoots is what the xDS proxy subscribes to for the trust bundle, if the configuration asks for it.
func pushedRoots(c *config.Config, own *identity.Identity) []*relay.AgentResource {
	if !c.Secrets.PushedRoots {
		return nil
	}
	return []*relay.AgentResource{{TypeURL: contract.ProxyConfigType, Authority: bootstrap.XDSCluster, Take: own.Workload.TakeProxyConfig}}
}
