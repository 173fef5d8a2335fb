// Package authzview says who may call whom in a mesh, by the rules of package authz, which xds-server translates into
// the filters of proxies: Check decides one request and says why, List shows the rules of a workload. Load reads the
// mesh from files, FromMesh from config-watcher. It is what the commands `fairlead authz` do.
package authzview

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/describe"
)

// Mesh is what decides who may call whom. It is not changed once it is read.
type Mesh struct {
	Settings *meshv1alpha1.MeshConfig
	// SettingsKnown is false if Settings are Istio's defaults, because no object states them.
	SettingsKnown bool
	// Policies are the AuthorizationPolicies, and Tokens the RequestAuthentications, sorted by namespace and name.
	Policies []Policy
	Tokens   []Tokens
	// Workloads are sorted by namespace and name.
	Workloads []*Workload
	Services  []*Service
	// Running is true for a mesh that runs: the proxies that are connected are known.
	Running bool
	// Notes say what could not be read.
	Notes []string

	describe describe.Mesh
	// hosts are those of Services and ServiceEntries; servicesKnown is true if the mesh has no others.
	hosts         []host
	servicesKnown bool
	// twice says which objects do not count because others of the same name do.
	twice []string
}

// Policy is an AuthorizationPolicy.
type Policy struct {
	authz.Policy
	Created  time.Time
	Location string
	// Problem says why the object is refused; empty if it is not.
	Problem string
}

// Tokens is a RequestAuthentication.
type Tokens struct {
	Namespace, Name   string
	Spec              *security.RequestAuthentication
	Location, Problem string
	// Keyless says why keys of the rules are missing; empty if they are there, or nothing is known of them.
	Keyless string
}

// Workload is a Pod, an object that makes Pods, or a WorkloadEntry.
type Workload struct {
	Kind, Namespace, Name string
	ServiceAccount        string
	Labels                map[string]string
	Addresses             []netip.Addr
	Ports                 map[string]uint32
	Proxy                 Proxy
	// NotInjected is true for a Pod without a proxy because it asks for none.
	NotInjected bool
	Identity    string
	Location    string
}

// Proxy says whether a workload has a proxy.
type Proxy uint8

// What is known about a workload's proxy. ProxyUnknown is right for a workload of files.
const (
	ProxyUnknown Proxy = iota
	NoProxy
	Sidecar
	Gateway
	Proxyless
)

// ID is "NAME.NAMESPACE".
func (w *Workload) ID() string { return w.Name + "." + w.Namespace }

// unproxied says why nothing enforces policies at a workload with NoProxy.
func (w *Workload) unproxied() string {
	if w.NotInjected {
		return fmt.Sprintf("%s has no proxy (%s: \"false\")", w.ID(), contract.InjectLabel)
	}
	return w.ID() + " has no connected proxy"
}

// Service is a Service with the ports that lead to its workloads.
type Service struct {
	Namespace, Name, Host string
	Selector              map[string]string
	Ports                 []ServicePort
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name, Protocol string
	Number         uint32
	// Target is the port of the workload; 0 if TargetName names it.
	Target     uint32
	TargetName string
}

// opaque are the protocols whose requests a proxy does not see, as the name of a port or its appProtocol begins.
var opaque = []string{"tcp", "tls", "https", "mongo", "mysql", "redis"}

// TCP reports whether the proxy sees no requests on the port.
func (p ServicePort) TCP() bool {
	protocol, _, _ := strings.Cut(strings.ToLower(cmp.Or(p.Protocol, p.Name)), "-")
	return slices.Contains(opaque, protocol)
}

// targetOn is the port of a workload to which the Service's port leads.
func (p ServicePort) targetOn(w *Workload) uint32 {
	if p.TargetName != "" {
		return w.Ports[p.TargetName]
	}
	return cmp.Or(p.Target, p.Number)
}

func (s *Service) selects(w *Workload) bool {
	if s.Namespace != w.Namespace || len(s.Selector) == 0 {
		return false
	}
	for k, v := range s.Selector {
		if own, ok := w.Labels[k]; !ok || own != v {
			return false
		}
	}
	return true
}

// PoliciesOf lists the AuthorizationPolicies that apply to a workload.
func (m *Mesh) PoliciesOf(w *Workload) []Policy {
	var out []Policy
	for _, p := range m.Policies {
		if m.selection(w).Applies(p.Namespace, p.Spec) {
			out = append(out, p)
		}
	}
	return out
}

// tokensOf lists the RequestAuthentications that apply to a workload.
func (m *Mesh) tokensOf(w *Workload) []Tokens {
	var out []Tokens
	for _, t := range m.Tokens {
		if m.selection(w).Applies(t.Namespace, t.Spec) {
			out = append(out, t)
		}
	}
	return out
}

func (m *Mesh) selection(w *Workload) authz.Workload {
	return authz.Workload{Namespace: w.Namespace, Labels: w.Labels, RootNamespace: m.Settings.GetRootNamespace()}
}

// Compile makes the rules of policies in this mesh.
func (m *Mesh) Compile(policies []Policy) *authz.Set {
	list := make([]authz.Policy, 0, len(policies))
	for _, p := range policies {
		list = append(list, p.Policy)
	}
	return authz.Compile(list, authz.Options{TrustDomain: m.Settings.GetTrustDomain(), Aliases: m.Settings.GetTrustDomainAliases()})
}

// Identities lists the identities of the workloads, sorted, each once.
func (m *Mesh) Identities() []string {
	var out []string
	for _, w := range m.Workloads {
		if w.Proxy != NoProxy {
			out = append(out, w.Identity)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// WorkloadsIn lists the workloads of a namespace; "" means all.
func (m *Mesh) WorkloadsIn(namespace string) []*Workload {
	return lists.Filter(m.Workloads, func(w *Workload) bool { return namespace == "" || w.Namespace == namespace })
}
