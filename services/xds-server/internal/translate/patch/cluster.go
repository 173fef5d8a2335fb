package patch

import (
	"strings"

	"google.golang.org/protobuf/proto"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// clusters patches a cluster.
type clusters struct {
	site
	parsed resourcename.Cluster
}

func newClusters(s site, m proto.Message) resource {
	c := clusters{site: s}
	// The cluster of an on-demand proxy's connections to an address is matched as the service's cluster that it stands
	// for.
	built, _ := m.(*cluster.Cluster)
	for _, name := range []string{s.name, built.GetAltStatName(), built.GetEdsClusterConfig().GetServiceName(),
		built.GetLoadAssignment().GetClusterName()} {
		var ok bool
		if c.parsed, ok = resourcename.ParseCluster(name); ok {
			break
		}
	}
	return c
}

func sideOfCluster(s site, _ proto.Message) string {
	switch {
	case s.r.Class().Type == class.Router:
		return mesh.Gateways
	case strings.HasPrefix(s.name, string(resourcename.DirectionInbound)+"|") || s.name == resourcename.InboundPassthroughCluster:
		return mesh.Inbound
	default:
		return mesh.Outbound
	}
}

func (c clusters) concerns(p *mesh.Patch) bool {
	if p.Operation == networking.EnvoyFilter_Patch_ADD {
		return p.Value.(*cluster.Cluster).GetName() == c.name
	}
	m := p.Spec.GetMatch().GetCluster()
	if m == nil {
		return p.Spec.GetMatch().GetObjectTypes() == nil
	}
	if m.GetName() != "" {
		return m.GetName() == c.name
	}
	return (m.GetPortNumber() == 0 || m.GetPortNumber() == c.parsed.Port) &&
		(m.GetService() == "" || m.GetService() == c.parsed.Hostname || c.parsed.Direction == resourcename.DirectionInbound) &&
		(m.GetSubset() == "" || m.GetSubset() == c.parsed.Subset)
}

func (c clusters) patch(m proto.Message, patches []*use) (proto.Message, error) {
	out := m.(*cluster.Cluster)
	for _, u := range patches {
		switch op := u.Operation; {
		case op == networking.EnvoyFilter_Patch_ADD:
			return nil, u.errorf("there is a cluster %q already, give it a name of its own or use MERGE", c.name)
		case op == networking.EnvoyFilter_Patch_REMOVE:
			u.done = true
			return c.removed()
		case isMerge(op):
			if err := merge(u, out); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// removed returns nil, or for an on-demand proxy a cluster without endpoints, because the proxy never requests again a
// cluster that does not exist.
func (c clusters) removed() (proto.Message, error) {
	if !c.r.Class().OnDemand {
		return nil, nil
	}
	m, err := c.inner.Build(c.r, resourcename.BlackHoleCluster)
	if m == nil || err != nil {
		return nil, err
	}
	out := proto.CloneOf(m.(*cluster.Cluster))
	out.Name = c.name
	return out, nil
}

func (c clusters) validate(m proto.Message) error {
	return validateCluster(c.name, m.(*cluster.Cluster))
}

// extensions are extension configs, all added by EnvoyFilters.
type extensions struct{ site }

func newExtensions(s site, _ proto.Message) resource { return extensions{s} }

func (extensions) concerns(*mesh.Patch) bool { return false }
func (extensions) patch(m proto.Message, _ []*use) (proto.Message, error) {
	return m, nil
}

func (e extensions) validate(m proto.Message) error {
	return validateExtension(m.(*core.TypedExtensionConfig))
}
