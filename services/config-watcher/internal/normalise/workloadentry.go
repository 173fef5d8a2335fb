package normalise

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise/locality"
	"fairlead.dev/services/config-watcher/internal/object"
)

var workloadEntryKind = instanceRules(func(o *object.Object) *instance {
	in := fromWorkloadEntry(o, o.Body.(*networking.WorkloadEntry))
	in.labels = merged(o.Labels, in.labels)
	if o.Registered != nil {
		in.registered = o.Registered.Service
	}
	return in
})

// fromWorkloadEntry makes an instance of a WorkloadEntry, or of one endpoint of a ServiceEntry (then o is the
// ServiceEntry).
func fromWorkloadEntry(o *object.Object, we *networking.WorkloadEntry) *instance {
	in := &instance{
		key: o.Key, object: o, labels: we.Labels, account: we.ServiceAccount,
		network: we.Network,
		health:  configv1.Health_HEALTH_READY, tlsMode: configv1.TlsMode_TLS_MODE_DISABLED, weight: we.Weight, ports: we.Ports,
		locality: locality.Parse(we.Locality),
	}
	if h := o.Health; h != nil && h.Counts && !h.Well {
		in.health = configv1.Health_HEALTH_NOT_READY
		if h.Draining {
			in.health = configv1.Health_HEALTH_DRAINING
		}
	}
	// Without the label a service account means that the workload has an identity, and therefore a proxy.
	if mode, ok := we.Labels[labelTLSMode]; ok && mode == "istio" || !ok && we.ServiceAccount != "" {
		in.tlsMode = configv1.TlsMode_TLS_MODE_ISTIO
	}
	if we.Address != "" {
		in.addresses = []string{strings.TrimPrefix(we.Address, "unix://")}
	}
	return in
}
