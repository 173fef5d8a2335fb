// Package running finds mistakes in the running mesh that one object alone does not show: references to objects that do
// not exist, and objects that older ones leave without effect. Package validate checks each object alone and refuses
// it; a finding is a warning, because the missing object may come later.
//
// Package background feeds Mesh and keeps the results; Mesh.DryRun previews changes for the config API; package whole
// runs the same checks on the objects that it has read. Each check is a function of one object and of what it reads
// through a reader. The reader records the topics that the check read, so that a change repeats only the checks that
// read something about it.
package running

import (
	"cmp"
	"slices"
	"strconv"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/ingress"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// analyzed is an object that has checks, with their findings and the topics that they read.
type analyzed struct {
	object   *object.Object
	topics   []topic
	findings []finding.Finding
	dirty    bool
}

// ref names a namespaced object whose kind is known.
type ref struct{ namespace, name string }

// binding is a gateway, "mesh" or "<namespace>/<name>", and a host that VirtualServices bind to it.
type binding struct{ gateway, host string }

// Mesh is the indexed objects and the findings about them. It is not safe for concurrent use.
type Mesh struct {
	domain   string
	settings *mesh.MeshConfig
	tenancy  normalise.Tenancy

	analyzed   map[object.Key]*analyzed
	services   map[string][]*object.Object // by host
	rules      map[string][]*object.Object // by host, oldest first
	routes     map[binding][]*object.Object
	servers    map[serverKind][]*object.Object // Gateways by port and kind, oldest first
	names      map[serverName][]*object.Object // Gateways by port and host of servers that terminate TLS, oldest first
	secrets    map[ref]secret
	configMaps map[ref]bool // ConfigMaps with CA certificates
	workloads  map[object.Key]map[string]string
	selections map[string]*selection
	declared   map[string]bool // namespaces with a Namespace object
	namespaces map[string]int  // number of objects in each namespace, its Namespace object included
	occupied   map[string]int  // the same of those that others can be about, see occupies
	classes    ingress.Classes
	ingresses  int // number of Ingresses
	// ingressGateways is the selector that is counted for Ingresses; nil if there are none.
	ingressGateways map[string]string

	// unknown reports whether nobody can say yet whether a Secret exists; nil if all objects are known.
	unknown func(object.Key) bool
	// answers has the missing Secrets that an object refers to: false until Answered finds that unknown does not say
	// so.
	answers map[ref]bool

	readers map[topic][]*analyzed
	dirty   []*analyzed
	changes Delta
}

// Delta is a change of the findings. No finding is in both lists.
type Delta struct{ Appeared, Vanished []finding.Finding }

// New returns an empty mesh. domain is the DNS suffix of service names, "cluster.local" by default.
func New(domain string) *Mesh {
	return &Mesh{
		domain: cmp.Or(domain, "cluster.local"), settings: meshdefaults.MeshConfig(), analyzed: map[object.Key]*analyzed{},
		services: map[string][]*object.Object{}, rules: map[string][]*object.Object{},
		routes: map[binding][]*object.Object{}, servers: map[serverKind][]*object.Object{}, names: map[serverName][]*object.Object{},
		secrets:    map[ref]secret{},
		configMaps: map[ref]bool{}, workloads: map[object.Key]map[string]string{}, selections: map[string]*selection{},
		namespaces: map[string]int{}, occupied: map[string]int{},
		declared: map[string]bool{}, classes: ingress.Classes{},
		readers: map[topic][]*analyzed{}, answers: map[ref]bool{},
	}
}

// Lookup makes findings that a Secret does not exist wait for Answered, which the caller calls when an answer of
// unknown may have changed.
func (m *Mesh) Lookup(unknown func(object.Key) bool) { m.unknown = unknown }

// Answered marks the objects as dirty that refer to a missing Secret of which more is known than before, and reports
// whether there are any. The caller then applies all changes that it has before it analyzes: the Secret may be among
// them.
func (m *Mesh) Answered() (some bool) {
	if m.unknown == nil {
		return false
	}
	for at, before := range m.answers {
		t := topic{subjectSecret, at.namespace, at.name}
		if len(m.readers[t]) == 0 {
			delete(m.answers, at)
		} else if now := !m.unknown(secretKey(at)); now != before {
			m.answers[at], some = now, true
			m.touch(t)
		}
	}
	return some
}

func secretKey(at ref) object.Key {
	return object.Key{Kind: "Secret", Namespace: at.namespace, Name: at.name}
}

// Configure takes over the mesh configuration. A change marks every object as dirty.
func (m *Mesh) Configure(settings *mesh.MeshConfig) {
	if settings == m.settings || settings == nil {
		return
	}
	m.settings = settings
	m.selectIngressGateways()
	for _, j := range m.analyzed {
		m.mark(j)
	}
}

// Separate has the mesh judged as one with tenants. It is called before the first object.
func (m *Mesh) Separate(enabled bool) {
	m.tenancy = normalise.Tenancy{Enabled: enabled, Domain: m.domain}
}

// Apply takes over changes: it updates the indices and marks the objects whose checks read about them. Analyze then
// repeats those checks.
func (m *Mesh) Apply(changes []normalise.Change) {
	for _, c := range changes {
		if update := rowOf(c.Key).update; update != nil {
			update(m, c.Key, c.Object)
		}
	}
}

// updateNamespace records whether a namespace has a Namespace object.
func (m *Mesh) updateNamespace(namespace string, there bool) {
	switch {
	case there && !m.declared[namespace]:
		m.declared[namespace] = true
		m.countNamespace(namespace, 1)
		m.occupy(namespace, 1)
	case !there && m.declared[namespace]:
		delete(m.declared, namespace)
		m.countNamespace(namespace, -1)
		m.occupy(namespace, -1)
	}
}

// countNamespace adds by to the number of objects in a namespace.
func (m *Mesh) countNamespace(namespace string, by int) {
	before := m.namespaces[namespace]
	if before+by <= 0 {
		delete(m.namespaces, namespace)
	} else {
		m.namespaces[namespace] = before + by
	}
	if (before > 0) != (before+by > 0) {
		m.touch(topic{subjectNamespace, namespace, ""})
	}
}

func (m *Mesh) updateAnalyzed(k object.Key, o *object.Object) {
	old := m.analyzed[k]
	if old != nil {
		m.index(old.object, false)
	}
	if o != nil {
		m.index(o, true)
	}
	switch {
	case o == nil && old == nil:
	case o == nil:
		delete(m.analyzed, k)
		m.forget(old)
		m.countNamespace(k.Namespace, -1)
		if occupies(k) {
			m.occupy(k.Namespace, -1)
		}
	case old == nil:
		j := &analyzed{object: o}
		m.analyzed[k] = j
		m.mark(j)
		m.countNamespace(k.Namespace, 1)
		if occupies(k) {
			m.occupy(k.Namespace, 1)
		}
	default:
		old.object = o
		m.mark(old)
	}
}

// index adds an object to the indices that checks read, or removes it, and touches the topics that it affects.
func (m *Mesh) index(o *object.Object, add bool) {
	k := o.Key
	m.touch(topic{subjectObject, k.Kind, k.Namespace + "/" + k.Name})
	switch s := o.Body.(type) {
	case *networking.VirtualService:
		for _, b := range bindings(o, s, m.domain) {
			updateByAge(m.routes, b, o, add)
			m.touch(topic{subjectRoutes, b.gateway, b.host})
		}
	case *networking.DestinationRule:
		host := normalise.Host(s.Host, k.Namespace, m.domain)
		updateByAge(m.rules, host, o, add)
		m.touch(topic{subjectRule, host, ""})
	case *networking.Gateway:
		m.countSelector(s.GetSelector(), add)
		kinds, names := servers(s)
		for _, key := range kinds {
			updateByAge(m.servers, key, o, add)
			m.touch(key.topic())
		}
		for _, key := range names {
			updateByAge(m.names, key, o, add)
			m.touch(key.topic())
		}
	case *networkingv1.Ingress:
		m.countIngress(add)
	case *networkingv1.IngressClass:
		m.indexClass(o, add)
	default:
		for _, host := range normalise.HostsOf(o, m.domain) {
			updateByAge(m.services, host, o, add)
			m.touch(topic{subjectHost, host, ""})
		}
	}
}

// updateByAge adds an object to a list sorted by age, or removes it.
func updateByAge[K comparable](lists map[K][]*object.Object, key K, o *object.Object, add bool) {
	list := lists[key]
	at, found := slices.BinarySearchFunc(list, o, object.CompareAge)
	switch {
	case add && !found:
		lists[key] = slices.Insert(list, at, o)
	case add:
		list[at] = o // the object lists the key twice
	case found && len(list) == 1:
		delete(lists, key)
	case found:
		lists[key] = slices.Delete(list, at, at+1)
	}
}

// touch marks the objects whose checks have read the topic.
func (m *Mesh) touch(t topic) {
	for _, j := range m.readers[t] {
		m.mark(j)
	}
}

func (m *Mesh) mark(j *analyzed) {
	if !j.dirty {
		j.dirty = true
		m.dirty = append(m.dirty, j)
	}
}

// forget removes an object's findings.
func (m *Mesh) forget(j *analyzed) {
	m.read(j, nil)
	m.changes.Vanished = append(m.changes.Vanished, j.findings...)
	j.findings, j.object = nil, nil
}

// read replaces the topics that an object's checks have read.
func (m *Mesh) read(j *analyzed, topics []topic) {
	kept := make(map[topic]bool, len(topics))
	for _, t := range topics {
		kept[t] = true
	}
	had := make(map[topic]bool, len(j.topics))
	for _, t := range j.topics {
		if had[t] = true; kept[t] {
			continue
		}
		list := m.readers[t]
		if i := slices.Index(list, j); i >= 0 {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
		}
		if len(list) == 0 {
			delete(m.readers, t)
		} else {
			m.readers[t] = list
		}
	}
	for _, t := range topics {
		if !had[t] {
			m.readers[t] = append(m.readers[t], j)
		}
	}
	j.topics = topics
}

// Analyze repeats the checks of up to n marked objects; n <= 0 means all. It reports whether none is left.
func (m *Mesh) Analyze(n int) bool {
	if n <= 0 || n > len(m.dirty) {
		n = len(m.dirty)
	}
	for _, j := range m.dirty[:n] {
		j.dirty = false
		if j.object == nil {
			continue // removed since it was marked
		}
		r := &reader{mesh: m, object: j.object}
		for _, check := range rowOf(j.object.Key).checks {
			check(r)
		}
		m.read(j, r.topics)
		now := finding.Sort(r.found)
		if !slices.Equal(j.findings, now) {
			m.changes.Appeared = append(m.changes.Appeared, without(now, j.findings)...)
			m.changes.Vanished = append(m.changes.Vanished, without(j.findings, now)...)
			j.findings = now
		}
	}
	m.dirty = slices.Clone(m.dirty[n:])
	return len(m.dirty) == 0
}

func without(list, others []finding.Finding) []finding.Finding {
	known := make(map[finding.Finding]bool, len(others))
	for _, f := range others {
		known[f] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(f finding.Finding) bool { return known[f] })
}

// Changes returns how the findings have changed since its last call.
func (m *Mesh) Changes() Delta {
	out := m.changes
	m.changes = Delta{}
	out.Appeared, out.Vanished = without(out.Appeared, out.Vanished), without(out.Vanished, out.Appeared)
	return out
}

// Of lists the findings about an object.
func (m *Mesh) Of(k object.Key) []finding.Finding {
	if j := m.analyzed[k]; j != nil {
		return j.findings
	}
	return nil
}

// All lists all findings, sorted.
func (m *Mesh) All() []finding.Finding {
	var out []finding.Finding
	for _, j := range m.analyzed {
		out = append(out, j.findings...)
	}
	slices.SortFunc(out, finding.Finding.Compare)
	return out
}

// About lists the VirtualServices and DestinationRules for exactly a host.
func (m *Mesh) About(host string) []object.Key {
	var out []object.Key
	for _, o := range m.rules[host] {
		out = append(out, o.Key)
	}
	for b, list := range m.routes {
		if b.host == host {
			for _, o := range list {
				out = append(out, o.Key)
			}
		}
	}
	slices.SortFunc(out, object.Key.Compare)
	return slices.Compact(out)
}

// secret says which parts a Secret has.
type secret struct{ there, key, authority bool }

func secretOf(o *object.Object) secret {
	if o == nil {
		return secret{}
	}
	c, _ := o.Body.(*object.Credential)
	return secret{there: true, key: c.HasKey(), authority: c.Authority() != nil}
}

func (m *Mesh) updateSecret(at ref, now secret) {
	old := m.secrets[at]
	if now == old {
		return
	}
	switch {
	case !now.there:
		delete(m.secrets, at)
		m.countNamespace(at.namespace, -1)
	case !old.there:
		m.countNamespace(at.namespace, 1)
		fallthrough
	default:
		m.secrets[at] = now
	}
	m.touch(topic{subjectSecret, at.namespace, at.name})
}

// updateConfigMap records whether a ConfigMap has CA certificates.
func (m *Mesh) updateConfigMap(at ref, authority bool) {
	if authority == m.configMaps[at] {
		return
	}
	if authority {
		m.configMaps[at] = true
	} else {
		delete(m.configMaps, at)
	}
	m.touch(topic{subjectSecret, at.namespace, at.name})
}

func portText(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
