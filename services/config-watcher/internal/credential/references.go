package credential

import (
	"slices"
	"strings"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// Kinds that name credentials.
const (
	kindGateway = "Gateway"
	kindRule    = "DestinationRule"
)

// Kinds of the Gateway API that name credentials.
var (
	kindAPIGateway  = contract.GatewayAPIKind(gatewayapi.Gateway)
	kindListenerSet = contract.GatewayAPIKind(gatewayapi.ListenerSet)
)

// use is an object that names credentials: a Gateway, DestinationRule or ListenerSet.
type use struct {
	// names are the references that the object covers: "<name>" and "<name>-cacert", with the prefix "<namespace>/" if
	// the object gives one.
	names []string
	// rule is true for a DestinationRule, false for a Gateway.
	rule bool
	// namespace of the object.
	namespace string
	// exportedTo are the namespaces that the object is exported to.
	exportedTo []string
	// selector of the workloads; if it is empty, the object applies to all workloads that exportedTo allows.
	selector map[string]string
	// judged are the listeners of a Gateway or ListenerSet of the Gateway API, nil for other objects: each name in
	// names has a namespace, and only the selected gateways get the credentials, also of another namespace than their
	// own.
	judged *configv1.GatewayListeners
}

// References knows which identities may need which credential: those of Workloads to which a Gateway or DestinationRule
// that names the credential applies. Sync follows the revision log; it costs time in proportion to what has changed. It
// is safe for concurrent use.
type References struct {
	log *revision.Log

	mu      sync.Mutex
	at      *revision.Snapshot
	version uint64
	uses    map[resource.Key]*use
	byName  map[string]map[*use]struct{}
	// workloads caches the Workloads of the namespaces that MayUse was asked about, by namespace and identity.
	workloads map[string]map[string][]*configv1.Workload
}

// NewReferences returns references that follow a log.
func NewReferences(log *revision.Log) *References {
	return &References{
		log: log, uses: map[resource.Key]*use{}, byName: map[string]map[*use]struct{}{}, workloads: map[string]map[string][]*configv1.Workload{},
	}
}

// Sync applies the newest revision; each watch calls it. The returned version changes if an answer of MayUse may have
// changed; the channel closes when there is a newer revision.
func (r *References) Sync() (version uint64, revised <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	snapshot, revised := r.log.Current()
	if snapshot == nil || snapshot == r.at {
		return r.version, revised
	}
	touched := false
	if r.at == nil {
		touched = true
		snapshot.Each(func(k resource.Key, res *configv1.Resource) bool {
			r.apply(k, res)
			return true
		})
	} else {
		d := r.log.Between(r.at, snapshot)
		for _, res := range d.Upserts {
			touched = r.apply(resource.KeyOf(res.GetKey()), res) || touched
		}
		for _, k := range d.Removed {
			touched = r.apply(k, nil) || touched
		}
	}
	r.at = snapshot
	if touched {
		r.version++
	}
	return r.version, revised
}

// apply applies one resource, nil if it was removed, and reports whether an answer of MayUse may have changed.
func (r *References) apply(k resource.Key, res *configv1.Resource) bool {
	switch k.Kind {
	case resource.KindWorkload:
		_, asked := r.workloads[k.Namespace]
		delete(r.workloads, k.Namespace)
		return asked
	case kindGateway, kindRule, kindAPIGateway, kindListenerSet:
		old, now := r.uses[k], useOf(k, res)
		for _, name := range old.list() {
			if delete(r.byName[name], old); len(r.byName[name]) == 0 {
				delete(r.byName, name)
			}
		}
		delete(r.uses, k)
		if now != nil {
			r.uses[k] = now
		}
		for _, name := range now.list() {
			if r.byName[name] == nil {
				r.byName[name] = map[*use]struct{}{}
			}
			r.byName[name][now] = struct{}{}
		}
		return old != nil || now != nil
	default:
		return false
	}
}

func (u *use) list() []string {
	if u == nil {
		return nil
	}
	return u.names
}

// useOf parses an object; nil if it names no credential.
func useOf(k resource.Key, res *configv1.Resource) *use {
	if listeners := res.GetGatewayApi().GetListeners(); listeners != nil {
		return judgedUse(k, listeners)
	}
	config := res.GetIstioConfig()
	if config == nil {
		return nil
	}
	u := &use{namespace: k.Namespace, rule: k.Kind == kindRule, exportedTo: config.GetExportedTo()}
	var named []string
	if u.rule {
		spec := &networking.DestinationRule{}
		if config.GetSpec().UnmarshalTo(spec) != nil {
			return nil
		}
		u.selector, named = spec.GetWorkloadSelector().GetMatchLabels(), namedByRule(spec)
	} else {
		spec := &networking.Gateway{}
		if config.GetSpec().UnmarshalTo(spec) != nil {
			return nil
		}
		u.selector, named = spec.GetSelector(), namedByGateway(spec)
	}
	for _, name := range named {
		if name = WithoutScheme(name); name != "" {
			u.names = append(u.names, name, strings.TrimSuffix(name, AuthoritySuffix)+AuthoritySuffix)
		}
	}
	slices.Sort(u.names)
	if u.names = slices.Compact(u.names); len(u.names) == 0 {
		return nil
	}
	return u
}

func namedByGateway(g *networking.Gateway) []string {
	var out []string
	for _, s := range g.GetServers() {
		tls := s.GetTls()
		out = append(append(out, tls.GetCredentialName(), tls.GetCaCertCredentialName()), tls.GetCredentialNames()...)
	}
	return out
}

func namedByRule(rule *networking.DestinationRule) []string {
	var out []string
	of := func(p *networking.TrafficPolicy) {
		out = append(out, p.GetTls().GetCredentialName())
		for _, port := range p.GetPortLevelSettings() {
			out = append(out, port.GetTls().GetCredentialName())
		}
	}
	of(rule.GetTrafficPolicy())
	for _, subset := range rule.GetSubsets() {
		of(subset.GetTrafficPolicy())
	}
	return out
}

// WithoutScheme returns "<name>" or "<namespace>/<name>" of a credentialName; "" for schemes that are not supported.
func WithoutScheme(name string) string {
	scheme, rest, found := strings.Cut(name, "://")
	switch {
	case !found:
		return name
	case scheme == "kubernetes" || scheme == "kubernetes-gateway":
		return rest
	default:
		return ""
	}
}

// MayUse reports whether a Workload with the identity, which is of a namespace, needs the credential. router is true if
// the identity is connected as a gateway. Of another namespace than its own, a Workload gets what listeners of the
// Gateway API name that it serves. Server calls it.
func (r *References) MayUse(ref Ref, namespace, identity string, router bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for u := range r.byName[ref.Namespace+"/"+ref.Name] {
		if u.judged != nil && router && slices.ContainsFunc(r.workloadsOf(namespace, identity), u.serves(namespace)) {
			return true
		}
	}
	if namespace != ref.Namespace {
		return false
	}
	for _, name := range []string{ref.Name, ref.Namespace + "/" + ref.Name} {
		for u := range r.byName[name] {
			if u.judged == nil && u.reaches(ref.Namespace, router) && slices.ContainsFunc(r.workloadsOf(ref.Namespace, identity), u.selects) {
				return true
			}
		}
	}
	return false
}

// reaches reports whether the object may apply to workloads of a namespace: a Gateway applies to gateways of the
// namespaces that it is exported to, which are all unless the mesh has tenants; a DestinationRule with a selector to
// workloads of its own namespace; another DestinationRule to gateways of the namespaces that it is exported to.
func (u *use) reaches(namespace string, router bool) bool {
	switch {
	case !u.rule:
		return router && normalise.VisibleTo(u.exportedTo, namespace)
	case len(u.selector) > 0:
		return u.namespace == namespace
	default:
		return router && normalise.VisibleTo(u.exportedTo, namespace)
	}
}

func (u *use) selects(w *configv1.Workload) bool { return object.HasLabels(w.GetLabels(), u.selector) }

// workloadsOf returns the Workloads of an identity. It is called with mu held.
func (r *References) workloadsOf(namespace, identity string) []*configv1.Workload {
	if r.at == nil {
		return nil
	}
	known, ok := r.workloads[namespace]
	if !ok {
		known = map[string][]*configv1.Workload{}
		r.at.EachIn(resource.KindWorkload, namespace, func(_ resource.Key, res *configv1.Resource) bool {
			w := res.GetWorkload()
			known[w.GetIdentity()] = append(known[w.GetIdentity()], w)
			return true
		})
		r.workloads[namespace] = known
	}
	return known[identity]
}
