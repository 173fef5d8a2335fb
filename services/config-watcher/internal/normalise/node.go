package normalise

import (
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise/locality"
	"fairlead.dev/services/config-watcher/internal/object"
)

var nodeKind = &rules[node]{
	decode: func(_ *Mesh, o *object.Object) (*node, error) {
		if l := locality.OfTopology(o.Labels); l != nil {
			return &node{nodeKey{o.Key.Name, o.Key.Cluster}, l}, nil
		}
		return nil, nil //nolint:nilnil // the Node says nothing of its locality
	},
	same: func(old, now *node) bool { return proto.Equal(old.locality, now.locality) },
	touch: func(m *Mesh, n *node) {
		for in := range m.instances.byNode[n.key].All {
			m.touchInstance(in)
		}
	},
}

// node is a Node with a locality.
type node struct {
	key      nodeKey
	locality *configv1.Locality
}

// nodeKey names a Node.
type nodeKey struct{ name, cluster string }

// nodeKey names the instance's node.
func (in *instance) nodeKey() nodeKey { return nodeKey{in.node, in.key.Cluster} }

// nodeLocality is the locality of an instance's node; nil if it is not known.
func (m *Mesh) nodeLocality(in *instance) *configv1.Locality {
	if n, ok := m.stored[object.Key{Kind: "Node", Name: in.node, Cluster: in.key.Cluster}].value.(*node); ok {
		return n.locality
	}
	return nil
}

// labelHostname names a workload's node. Workloads always have it; endpoints have it only if byNode says so, because
// every node makes a label set of its own.
const labelHostname = corev1.LabelHostname

func nodeLabels(in *instance) map[string]string {
	if in.node == "" {
		return nil
	}
	return map[string]string{labelHostname: in.node}
}

// byNode reports whether the endpoints of a service carry the label of their node. The Service, the mesh or a
// DestinationRule can ask for it.
func (m *Mesh) byNode(svc *configv1.Service) bool {
	if svc.NodeLocal || svc.TrafficDistribution == corev1.ServiceTrafficDistributionPreferSameNode ||
		prefersNode(m.settings.GetLocalityLbSetting()) {
		return true
	}
	for _, host := range m.nodeRules {
		if covers(host, svc.Hostname) {
			return true
		}
	}
	return false
}

// covers reports whether a host, possibly a wildcard or empty, matches a hostname.
func covers(host, hostname string) bool {
	suffix, wildcard := strings.CutPrefix(host, "*")
	return wildcard && strings.HasSuffix(hostname, suffix) || host == hostname
}
