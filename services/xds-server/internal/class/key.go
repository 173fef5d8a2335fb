// Package class works out the class of a proxy: everything about it that may influence the bytes it receives. Proxies
// with equal keys receive the same bytes. A translator sees only the key, so it cannot give a proxy anything that its
// class does not determine.
package class

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/mesh"
)

// NodeType is the role of a proxy.
type NodeType uint8

// Roles, from the first part of Istio's node id.
const (
	Sidecar NodeType = iota + 1
	Router
	// Proxyless is a proxyless gRPC client or server: it speaks xDS itself. Its node id is a sidecar's.
	Proxyless
)

// String returns the role as Istio's node ids spell it.
func (t NodeType) String() string {
	switch t {
	case Sidecar:
		return "sidecar"
	case Router:
		return "router"
	case Proxyless:
		return "proxyless"
	default:
		return "unknown"
	}
}

// Interception says how traffic reaches the proxy (metadata INTERCEPTION_MODE).
type Interception uint8

// Interception modes.
const (
	// Redirect: iptables REDIRECT.
	Redirect Interception = iota + 1
	// TProxy: TPROXY; the proxy sees and keeps original source addresses.
	TProxy
	// None: traffic is not captured; the proxy binds the addresses that clients connect to.
	None
)

// String returns the value of INTERCEPTION_MODE.
func (i Interception) String() string {
	switch i {
	case Redirect:
		return "REDIRECT"
	case TProxy:
		return "TPROXY"
	case None:
		return "NONE"
	default:
		return "unknown"
	}
}

// Target is a port of a service whose endpoints include the proxy's workload: Istio's ServiceTarget.
type Target struct {
	Hostname, Namespace string
	// Port is the service's, TargetPort the workload's.
	Port, TargetPort uint32
	// Protocol is a configv1.Protocol.
	Protocol int32
}

// Key is all that a translator may know of a proxy. It has only fields that some translator reads, because every field
// multiplies the classes. It is immutable.
type Key struct {
	Type      NodeType
	Namespace string
	// Labels of the workload that a selector or a failoverPriority names (mesh.Snapshot.RelevantLabels); topology
	// labels are included.
	Labels map[string]string
	// Targets are sorted by hostname and port. Only a router has those of UDP ports, before all others.
	Targets []Target
	// Addresses of the proxy, the primary first; nil unless listeners are bound to them: without interception, or if a
	// Sidecar demands it.
	Addresses []string
	// Locality is "region/zone/subzone"; unknown parts on the right are left out, and it is "" if all are unknown.
	Locality string
	// Network of the proxy; "" if unknown. It is always "" while no network of the mesh has gateways, when all networks
	// count as one.
	Network string
	// Cluster of the proxy. It is always "" while no service looks different to clients of different clusters.
	Cluster      string
	Interception Interception
	// TrustDomain of the mesh, and DNSDomain of the proxy, for example "default.svc.cluster.local".
	TrustDomain, DNSDomain string
	// Sidecar names the Sidecar resource that applies, "<namespace>/<name>"; "" if none does.
	Sidecar string
	// VirtualHosts is true for proxies that take virtual hosts as resources of their own (VHDS), outside their route
	// configurations.
	VirtualHosts bool
	// OnDemand is true for sidecars that hold only the virtual hosts and clusters that they use.
	OnDemand bool
	// DNSCapture is true if the agent answers the workload's DNS queries. The workload can then use automatically
	// allocated VIPs.
	DNSCapture bool
	// Families of the proxy's addresses.
	Families Families
	// OffersMTLS is true for proxyless gRPC servers whose callers are told to use mesh mTLS.
	OffersMTLS bool
	// Identity is the verified SPIFFE URI for which credentials are requested: of gateways, and of workloads that a
	// DestinationRule with a credentialName selects. It is "" for all others, and for proxies without a verified
	// identity.
	Identity string
	// GatewayTopology is the gateway topology of a router's own ProxyConfig.
	GatewayTopology GatewayTopology
	// ProxyHeaders are the proxy headers of the proxy's own ProxyConfig, "" if they are the mesh's.
	ProxyHeaders ProxyHeaders
	// Filters says which filters of policies the proxy has.
	Filters Filters
	// ProxyMatches are the proxy matches of EnvoyFilters that the proxy meets, as mesh.ProxyMatch.ID, sorted.
	ProxyMatches []string
}

// WithSidecar returns the key with the Sidecar resource that applies to a workload of its namespace with these labels.
func (k *Key) WithSidecar(state *mesh.Snapshot, labels map[string]string) *Key {
	with := *k
	with.Sidecar = ""
	if k.Type == Router {
		return &with
	}
	if s := state.Sidecar(k.Namespace, state.Mesh().GetRootNamespace(), labels); s != nil {
		with.Sidecar = s.Key.Namespace + "/" + s.Key.Name
	}
	return &with
}

// bindsAddress reports whether the proxy's Sidecar has listeners with captureMode NONE, which are bound to the
// workload's addresses although traffic is intercepted.
func (k *Key) bindsAddress(state *mesh.Snapshot) bool {
	namespace, name, ok := strings.Cut(k.Sidecar, "/")
	if !ok {
		return false
	}
	own := state.SidecarNamed(namespace, name)
	egress, _ := state.EgressListeners(own, state.Mesh().GetRootNamespace())
	return own != nil && slices.ContainsFunc(own.Spec.GetIngress(), func(in *networking.IstioIngressListener) bool {
		return in.GetCaptureMode() == networking.CaptureMode_NONE
	}) || slices.ContainsFunc(egress, func(out *networking.IstioEgressListener) bool {
		return out.GetCaptureMode() == networking.CaptureMode_NONE && out.GetBind() == "0.0.0.0"
	})
}

// Common is the part of a key that proxies of different namespaces and workloads may share.
type Common struct {
	Type         NodeType
	Locality     string
	Network      string
	Cluster      string
	Interception Interception
	TrustDomain  string
	// ClusterDomain is the mesh's part of the proxy's DNS domain, for example "cluster.local".
	ClusterDomain          string
	VirtualHosts, OnDemand bool
	DNSCapture             bool
	Families               Families
	Filters                Filters
	ProxyHeaders           ProxyHeaders
}

// Common returns the key's common part.
func (k *Key) Common() Common {
	return Common{
		Type: k.Type, Locality: k.Locality, Network: k.Network, Cluster: k.Cluster, Interception: k.Interception,
		TrustDomain: k.TrustDomain, ClusterDomain: clusterDomain(k.DNSDomain), VirtualHosts: k.VirtualHosts, OnDemand: k.OnDemand,
		DNSCapture: k.DNSCapture, Families: k.Families, Filters: k.Filters,
		ProxyHeaders: k.ProxyHeaders,
	}
}

// OfNamespace returns the key of the namespace scope: what all workloads of the namespace with the same common part and
// Sidecar share.
func (k *Key) OfNamespace() *Key {
	return &Key{
		Type: k.Type, Namespace: k.Namespace, Locality: k.Locality, Network: k.Network, Cluster: k.Cluster, Interception: k.Interception,
		TrustDomain: k.TrustDomain, DNSDomain: k.DNSDomain, Sidecar: k.Sidecar, VirtualHosts: k.VirtualHosts, OnDemand: k.OnDemand,
		DNSCapture: k.DNSCapture, Families: k.Families, Filters: k.Filters,
		ProxyHeaders: k.ProxyHeaders,
	}
}

// OfMesh returns the key of the mesh scope: what all namespaces share. It is the key of a proxy in no namespace. It is
// nil for a class with a Sidecar resource, which shares nothing with other namespaces.
func (k *Key) OfMesh() *Key {
	if k.Sidecar != "" {
		return nil
	}
	shared := k.OfNamespace()
	shared.Namespace, shared.DNSDomain = mesh.Global, "svc."+clusterDomain(k.DNSDomain)
	return shared
}

// clusterDomain cuts "<namespace>.svc." off a DNS domain.
func clusterDomain(dnsDomain string) string {
	if _, domain, ok := strings.Cut(dnsDomain, ".svc."); ok {
		return domain
	}
	return strings.TrimPrefix(dnsDomain, "svc.")
}

// Hash identifies a key.
type Hash [16]byte

// String returns the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// field of a key: its name, and how it enters the hash.
type field struct {
	name  string
	write func(*Key, digest)
}

// fields lists every field of Key. A test changes each in turn.
var fields = []field{
	{"type", func(k *Key, d digest) { d.number(uint64(k.Type)) }},
	{"namespace", func(k *Key, d digest) { d.text(k.Namespace) }},
	{"labels", func(k *Key, d digest) { d.labels(k.Labels) }},
	{"targets", func(k *Key, d digest) {
		d.number(uint64(len(k.Targets)))
		for _, t := range k.Targets {
			d.text(t.Hostname)
			d.text(t.Namespace)
			d.number(uint64(t.Port))
			d.number(uint64(t.TargetPort))
			d.number(uint64(t.Protocol)) //nolint:gosec // an enum's bits, only hashed
		}
	}},
	{"addresses", func(k *Key, d digest) {
		d.number(uint64(len(k.Addresses)))
		for _, a := range k.Addresses {
			d.text(a)
		}
	}},
	{"locality", func(k *Key, d digest) { d.text(k.Locality) }},
	{"network", func(k *Key, d digest) { d.text(k.Network) }},
	{"cluster", func(k *Key, d digest) { d.text(k.Cluster) }},
	{"interception", func(k *Key, d digest) { d.number(uint64(k.Interception)) }},
	{"trust_domain", func(k *Key, d digest) { d.text(k.TrustDomain) }},
	{"dns_domain", func(k *Key, d digest) { d.text(k.DNSDomain) }},
	{"sidecar", func(k *Key, d digest) { d.text(k.Sidecar) }},
	{"virtual_hosts", func(k *Key, d digest) { d.boolean(k.VirtualHosts) }},
	{"on_demand", func(k *Key, d digest) { d.boolean(k.OnDemand) }},
	{"dns_capture", func(k *Key, d digest) { d.boolean(k.DNSCapture) }},
	{"families", func(k *Key, d digest) { d.number(uint64(k.Families)) }},
	{"filters", func(k *Key, d digest) { d.number(uint64(k.Filters)) }},
	{"offers_mtls", func(k *Key, d digest) { d.boolean(k.OffersMTLS) }},
	{"identity", func(k *Key, d digest) { d.text(k.Identity) }},
	{"gateway_topology", func(k *Key, d digest) { d.text(string(k.GatewayTopology)) }},
	{"proxy_headers", func(k *Key, d digest) { d.text(string(k.ProxyHeaders)) }},
	{"proxy_matches", func(k *Key, d digest) {
		d.number(uint64(len(k.ProxyMatches)))
		for _, id := range k.ProxyMatches {
			d.text(id)
		}
	}},
}

// Hash returns the key's hash; equal keys have equal hashes on every replica.
func (k *Key) Hash() Hash {
	sum := sha256.New()
	d := digest{sum}
	for _, f := range fields {
		d.text(f.name)
		f.write(k, d)
	}
	return Hash(sum.Sum(nil)[:16])
}

// digest hashes values so that different sequences of values hash different bytes.
type digest struct{ h hash.Hash }

func (d digest) number(n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	d.h.Write(b[:])
}

func (d digest) boolean(b bool) {
	if b {
		d.number(1)
	} else {
		d.number(0)
	}
}

func (d digest) text(s string) {
	d.number(uint64(len(s)))
	d.h.Write([]byte(s))
}

func (d digest) labels(m map[string]string) {
	d.number(uint64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		d.text(k)
		d.text(m[k])
	}
}
