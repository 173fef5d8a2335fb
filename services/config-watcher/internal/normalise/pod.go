package normalise

import (
	"cmp"

	"fairlead.dev/services/config-watcher/internal/normalise/locality"
	"fairlead.dev/services/config-watcher/internal/normalise/networks"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

var podKind = instanceRules(decodePod)

// decodePod returns nil if the Pod has ended.
func decodePod(o *object.Object) *instance {
	p := o.Body.(*object.Pod)
	if p.Ended {
		return nil
	}
	in := &instance{
		key: o.Key, object: o, labels: o.Labels,
		account: cmp.Or(p.ServiceAccount, "default"), node: p.Node, addresses: p.Addresses,
		network: o.Labels[networks.Label], health: podHealth(p), tlsMode: configv1.TlsMode_TLS_MODE_DISABLED, ports: p.Ports,
		hostname: p.Hostname, subdomain: p.Subdomain,
	}
	if o.Labels[labelTLSMode] == "istio" {
		in.tlsMode = configv1.TlsMode_TLS_MODE_ISTIO
	}
	in.locality, in.copied = locality.OfPod(o.Labels), locality.OfTopology(o.Labels)
	return in
}

func podHealth(p *object.Pod) configv1.Health {
	switch {
	case p.Ready && p.Ending:
		return configv1.Health_HEALTH_DRAINING
	case p.Ready:
		return configv1.Health_HEALTH_READY
	default:
		return configv1.Health_HEALTH_NOT_READY
	}
}
