package normalise

import (
	"cmp"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/validate/cipher"
)

// Kinds of Istio's APIs that need no index.
var (
	plainKind   = &rules[object.Object]{build: istioConfig((*Mesh).plain)}
	gatewayKind = &rules[object.Object]{build: istioConfig((*Mesh).gateway)}
	sidecarKind = &rules[object.Object]{build: istioConfig((*Mesh).sidecar)}
)

// istioConfig returns the build function of a kind whose objects become an IstioConfig each. resolve returns the spec
// as proxies' configuration is made from it, nil for none, and the namespaces that it is exported to. It must not
// change the given spec.
func istioConfig[S, T proto.Message](
	resolve func(*Mesh, *object.Object, S) (T, []string),
) func(*Mesh, *object.Object) (proto.Message, error) {
	return func(m *Mesh, o *object.Object) (proto.Message, error) {
		spec, exported := resolve(m, o, o.Body.(S))
		if exported == nil {
			return nil, nil //nolint:nilnil // no resource
		}
		packed, err := resource.Any(spec)
		if err != nil {
			return nil, err
		}
		return &configv1.IstioConfig{
			Spec: packed, Labels: o.Labels, Annotations: MeshAnnotations(o.Annotations), CreationTime: created(o.Created),
			ExportedTo: exported, Source: sourceRef(o), HeldClosed: o.Held,
		}, nil
	}
}

// plain takes the spec as it is.
func (m *Mesh) plain(o *object.Object, s proto.Message) (proto.Message, []string) {
	return s, m.ownOrRoot(o)
}

// namespaceOf is the namespace of an object's resource, see resourceKey.
func (m *Mesh) namespaceOf(o *object.Object) string {
	return cmp.Or(o.Key.Namespace, m.settings.GetRootNamespace())
}

// ownOrRoot is the exportedTo of kinds without exportTo (Sidecar, PeerAuthentication, ...): their own namespace, or all
// namespaces for an object of the root namespace.
func (m *Mesh) ownOrRoot(o *object.Object) []string {
	if namespace := m.namespaceOf(o); namespace != m.settings.GetRootNamespace() {
		return []string{namespace}
	}
	return []string{exportedToAll}
}

// gateway resolves the namespace in server hosts and leaves out cipher suites that Envoy does not know.
func (m *Mesh) gateway(o *object.Object, s *networking.Gateway) (*networking.Gateway, []string) {
	out, ns := proto.CloneOf(s), m.namespaceOf(o)
	for _, srv := range out.Servers {
		for i, h := range srv.Hosts {
			srv.Hosts[i] = ownNamespace(m.cfg.Tenancy.gatewayHost(o, h), ns)
		}
		knownCiphers(srv.Tls)
	}
	return out, m.cfg.Tenancy.gatewayExportedTo(ns, m.settings.GetRootNamespace())
}

// sidecar writes egress hosts as Host does. The namespace "." stays: in the root namespace's Sidecar it means that of
// each workload.
func (m *Mesh) sidecar(o *object.Object, s *networking.Sidecar) (*networking.Sidecar, []string) {
	out := proto.CloneOf(s)
	for _, l := range out.Ingress {
		knownCiphers(l.Tls)
	}
	for _, l := range out.Egress {
		for i, h := range l.Hosts {
			l.Hosts[i] = strings.TrimSuffix(strings.ToLower(h), ".")
		}
	}
	if p := out.GetOutboundTrafficPolicy().GetEgressProxy(); p != nil {
		p.Host = Host(p.Host, m.namespaceOf(o), m.cfg.Domain)
	}
	return out, m.ownOrRoot(o)
}

func knownCiphers(tls *networking.ServerTLSSettings) {
	if tls != nil {
		tls.CipherSuites = cipher.Known(tls.CipherSuites)
	}
}

func ownNamespace(host, ns string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".") // as Host does
	if rest, ok := strings.CutPrefix(host, "./"); ok {
		return ns + "/" + rest
	}
	return host
}
