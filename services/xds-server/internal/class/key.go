// Package class decides what of a proxy matters. Proxies with equal keys receive the same bytes, and a translator that sees only the key
// cannot give one proxy what belongs to another.
package class

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
)

// NodeType is the role of a proxy.
type NodeType uint8

// Roles, from the first part of Istio's node id.
const (
	Sidecar NodeType = iota + 1
	Router
)

// String returns the role as Istio's node ids spell it.
func (t NodeType) String() string {
	switch t {
	case Sidecar:
		return "sidecar"
	case Router:
		return "router"
	default:
		return "unknown"
	}
}

// Interception says how traffic reaches the proxy (metadata INTERCEPTION_MODE).
type Interception uint8

// Ways of interception.
const (
	// Redirect captures with iptables REDIRECT.
	Redirect Interception = iota + 1
	// TProxy captures with TPROXY: the proxy sees and keeps original source addresses.
	TProxy
	// None captures nothing: the proxy binds real addresses.
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

// Target is a service port that leads to the proxy's workload.
type Target struct {
	Hostname, Namespace string
	// Port is the service's, TargetPort the workload's.
	Port, TargetPort uint32
	// Protocol is a configv1.Protocol.
	Protocol int32
}

// Key is all that a translator may know of a proxy. It is immutable.
type Key struct {
	Type      NodeType
	Namespace string
	// Labels are only those that some selector tests.
	Labels map[string]string
	// Targets are sorted by hostname and port.
	Targets []Target
	// Addresses of the proxy, first is primary; only where listeners are bound to them, that is without interception.
	Addresses []string
	// Locality is "region/zone/subzone", with parts left out from the right; "" if unknown.
	Locality string
	// Network and Cluster are the ids the proxy states; "" for the default network.
	Network, Cluster string
	Interception     Interception
	// TrustDomain of the mesh and DNSDomain of the proxy ("default.svc.cluster.local").
	TrustDomain, DNSDomain string
	ServiceAccount         string
}

// Hash identifies a key.
type Hash [16]byte

// String returns the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// field is one line of the table of fields: its name, and how it enters the hash.
type field struct {
	name  string
	write func(*Key, digest)
}

// fields is the one list of what makes a class. A test changes each in turn.
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
	{"service_account", func(k *Key, d digest) { d.text(k.ServiceAccount) }},
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

// digest writes values so that no two sequences of values give the same bytes.
type digest struct{ h hash.Hash }

func (d digest) number(n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	d.h.Write(b[:])
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
