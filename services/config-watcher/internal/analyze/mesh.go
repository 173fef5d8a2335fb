package analyze

import (
	"slices"
	"strconv"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// checks are what each kind is judged by.
var checks = map[string][]func(*reader){
	"Service":         {checkExportTo},
	"VirtualService":  {checkDestinations, checkGateways, checkDelegates, checkExportTo, checkRoutesShadowed},
	"DestinationRule": {checkRuleHost, checkRuleCredentials, checkExportTo, checkRuleShadowed},
	"Gateway":         {checkSelector, checkServerHosts, checkCredentials, checkServersShadowed},
	"Sidecar":         {checkEgress},
	"ServiceEntry":    {checkExportTo},
}

// judged is an object that checks judge: what they have found, and what they have read for it.
type judged struct {
	object   *object.Object
	topics   []topic
	findings []Finding
	dirty    bool
}

// ref names a namespaced object whose kind is known.
type ref struct{ namespace, name string }

// binding is a gateway, "mesh" or "<namespace>/<name>", and a host that VirtualServices bind to it.
type binding struct{ gateway, host string }

// Mesh is the indexed state of the objects and what is found about them. It is not safe for concurrent use.
type Mesh struct {
	domain   string
	settings *mesh.MeshConfig

	judged     map[object.Key]*judged
	services   map[string][]*object.Object // by host
	rules      map[string][]*object.Object // by host, oldest first
	routes     map[binding][]*object.Object
	servers    map[serverKind][]*object.Object // Gateways by port and kind, oldest first
	names      map[serverName][]*object.Object // Gateways by port and host of servers that terminate TLS, oldest first
	secrets    map[ref]secret
	configMaps map[ref]bool // those with certificates to verify with
	workloads  map[object.Key]map[string]string
	selections map[string]*selection
	declared   map[string]bool // namespaces with an object of their own
	namespaces map[string]int  // how many objects tell of the namespace

	readers map[topic][]*judged
	dirty   []*judged
	changes Delta
}

// Delta is what has changed of the findings: Appeared and Vanished have no finding in common.
type Delta struct{ Appeared, Vanished []Finding }

// New returns an empty mesh of a DNS domain, "cluster.local" if it is empty.
func New(domain string) *Mesh {
	if domain == "" {
		domain = "cluster.local"
	}
	return &Mesh{
		domain: domain, settings: validate.DefaultMeshConfig(), judged: map[object.Key]*judged{}, services: map[string][]*object.Object{}, rules: map[string][]*object.Object{},
		routes: map[binding][]*object.Object{}, servers: map[serverKind][]*object.Object{}, names: map[serverName][]*object.Object{}, secrets: map[ref]secret{},
		configMaps: map[ref]bool{}, workloads: map[object.Key]map[string]string{}, selections: map[string]*selection{}, namespaces: map[string]int{},
		declared: map[string]bool{},
		readers:  map[topic][]*judged{},
	}
}

// Configure takes over the mesh's settings, on which every judgement may depend.
func (m *Mesh) Configure(settings *mesh.MeshConfig) {
	if settings == m.settings || settings == nil {
		return
	}
	m.settings = settings
	for _, j := range m.judged {
		m.mark(j)
	}
}

// IsCredential tells the kinds of which no revision tells.
func IsCredential(k object.Key) bool {
	return k.Group == "" && (k.Kind == "Secret" || k.Kind == "ConfigMap")
}

// Concerns tells the kinds that findings depend on.
func Concerns(k object.Key) bool { return takers[object.Key{Group: k.Group, Kind: k.Kind}] != nil }

// takers take over a change of an object of each kind.
var takers = map[object.Key]func(*Mesh, object.Key, *object.Object){
	{Kind: "Secret"}: func(m *Mesh, k object.Key, o *object.Object) { m.takeSecret(ref{k.Namespace, k.Name}, secretOf(o)) },
	{Kind: "ConfigMap"}: func(m *Mesh, k object.Key, o *object.Object) {
		m.takeConfigMap(ref{k.Namespace, k.Name}, secretOf(o).authority)
	},
	{Kind: "Namespace"}: func(m *Mesh, k object.Key, o *object.Object) { m.declare(k.Name, o != nil) },
	{Kind: "Pod"}:       (*Mesh).takePod,
	{Kind: "Service"}:   (*Mesh).takeJudged,
	{Group: validate.GroupNetworking, Kind: "WorkloadEntry"}:   (*Mesh).takePod,
	{Group: validate.GroupNetworking, Kind: "VirtualService"}:  (*Mesh).takeJudged,
	{Group: validate.GroupNetworking, Kind: "DestinationRule"}: (*Mesh).takeJudged,
	{Group: validate.GroupNetworking, Kind: "Gateway"}:         (*Mesh).takeJudged,
	{Group: validate.GroupNetworking, Kind: "Sidecar"}:         (*Mesh).takeJudged,
	{Group: validate.GroupNetworking, Kind: "ServiceEntry"}:    (*Mesh).takeJudged,
}

// Take takes over changes: it keeps the indices and marks what has to be judged anew.
func (m *Mesh) Take(changes []normalise.Change) {
	for _, c := range changes {
		if take := takers[object.Key{Group: c.Key.Group, Kind: c.Key.Kind}]; take != nil {
			take(m, c.Key, c.Object)
		}
	}
}

// declare notes that a namespace has an object of its own, or none any more. It counts once, however often the object
// changes.
func (m *Mesh) declare(namespace string, there bool) {
	switch {
	case there && !m.declared[namespace]:
		m.declared[namespace] = true
		m.inhabit(namespace, 1)
	case !there && m.declared[namespace]:
		delete(m.declared, namespace)
		m.inhabit(namespace, -1)
	}
}

// inhabit counts what tells of a namespace.
func (m *Mesh) inhabit(namespace string, by int) {
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

func (m *Mesh) takeJudged(k object.Key, o *object.Object) {
	old := m.judged[k]
	if old != nil {
		m.index(old.object, false)
	}
	if o != nil {
		m.index(o, true)
	}
	switch {
	case o == nil && old == nil:
	case o == nil:
		delete(m.judged, k)
		m.forget(old)
		m.inhabit(k.Namespace, -1)
	case old == nil:
		j := &judged{object: o}
		m.judged[k] = j
		m.mark(j)
		m.inhabit(k.Namespace, 1)
	default:
		old.object = o
		m.mark(old)
	}
}

// index files an object under what others ask for, or takes it away, and touches the questions that it answers.
func (m *Mesh) index(o *object.Object, add bool) {
	k := o.Key
	m.touch(topic{subjectObject, k.Kind, k.Namespace + "/" + k.Name})
	switch s := o.Body.(type) {
	case *networking.VirtualService:
		for _, b := range bindings(o, s, m.domain) {
			file(m.routes, b, o, add)
			m.touch(topic{subjectRoutes, b.gateway, b.host})
		}
	case *networking.DestinationRule:
		host := normalise.Host(s.Host, k.Namespace, m.domain)
		file(m.rules, host, o, add)
		m.touch(topic{subjectRule, host, ""})
	case *networking.Gateway:
		m.selectBy(s.GetSelector(), add)
		kinds, names := servers(s)
		for _, key := range kinds {
			file(m.servers, key, o, add)
			m.touch(key.topic())
		}
		for _, key := range names {
			file(m.names, key, o, add)
			m.touch(key.topic())
		}
	default:
		for _, host := range normalise.HostsOf(o, m.domain) {
			file(m.services, host, o, add)
			m.touch(topic{subjectHost, host, ""})
		}
	}
}

// file adds an object to a list by age, or takes it off.
func file[K comparable](lists map[K][]*object.Object, key K, o *object.Object, add bool) {
	list := lists[key]
	at, found := slices.BinarySearchFunc(list, o, func(a, b *object.Object) int {
		switch {
		case a.Key == b.Key && a.Created.Equal(b.Created):
			return 0
		case object.Older(a, b):
			return -1
		default:
			return 1
		}
	})
	switch {
	case add && !found:
		lists[key] = slices.Insert(list, at, o)
	case add:
		list[at] = o // an object that lists the key twice
	case found && len(list) == 1:
		delete(lists, key)
	case found:
		lists[key] = slices.Delete(list, at, at+1)
	}
}

// touch marks the objects that have read about a topic.
func (m *Mesh) touch(t topic) {
	for _, j := range m.readers[t] {
		m.mark(j)
	}
}

func (m *Mesh) mark(j *judged) {
	if !j.dirty {
		j.dirty = true
		m.dirty = append(m.dirty, j)
	}
}

// forget ends the judgement of an object that is gone.
func (m *Mesh) forget(j *judged) {
	m.read(j, nil)
	m.changes.Vanished = append(m.changes.Vanished, j.findings...)
	j.findings, j.object = nil, nil
}

// read replaces what an object's checks have read.
func (m *Mesh) read(j *judged, topics []topic) {
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

// Judge judges up to n of the objects that changes have touched; n <= 0 means all. It reports whether none is left.
func (m *Mesh) Judge(n int) bool {
	if n <= 0 || n > len(m.dirty) {
		n = len(m.dirty)
	}
	for _, j := range m.dirty[:n] {
		j.dirty = false
		if j.object == nil {
			continue // gone meanwhile
		}
		r := &reader{mesh: m, object: j.object}
		for _, check := range checks[j.object.Key.Kind] {
			check(r)
		}
		m.read(j, r.topics)
		now := sorted(r.found)
		if !slices.Equal(j.findings, now) {
			m.changes.Appeared = append(m.changes.Appeared, without(now, j.findings)...)
			m.changes.Vanished = append(m.changes.Vanished, without(j.findings, now)...)
			j.findings = now
		}
	}
	m.dirty = slices.Clone(m.dirty[n:])
	return len(m.dirty) == 0
}

func without(list, others []Finding) []Finding {
	known := make(map[Finding]bool, len(others))
	for _, f := range others {
		known[f] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(f Finding) bool { return known[f] })
}

// Changes returns what has changed of the findings since it was called last.
func (m *Mesh) Changes() Delta {
	out := m.changes
	m.changes = Delta{}
	out.Appeared, out.Vanished = without(out.Appeared, out.Vanished), without(out.Vanished, out.Appeared)
	return out
}

// Of lists the findings about an object.
func (m *Mesh) Of(k object.Key) []Finding {
	if j := m.judged[k]; j != nil {
		return j.findings
	}
	return nil
}

// All lists all findings, sorted.
func (m *Mesh) All() []Finding {
	var out []Finding
	for _, j := range m.judged {
		out = append(out, j.findings...)
	}
	slices.SortFunc(out, Finding.Compare)
	return out
}

// About lists the keys of the VirtualServices and DestinationRules that name exactly a host.
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

// secret is what a Secret is good for.
type secret struct{ there, key, authority bool }

func secretOf(o *object.Object) secret {
	if o == nil {
		return secret{}
	}
	c, _ := o.Body.(*object.Credential)
	return secret{there: true, key: c.HasKey(), authority: c.Authority() != nil}
}

func (m *Mesh) takeSecret(at ref, now secret) {
	old := m.secrets[at]
	if now == old {
		return
	}
	switch {
	case !now.there:
		delete(m.secrets, at)
		m.inhabit(at.namespace, -1)
	case !old.there:
		m.inhabit(at.namespace, 1)
		fallthrough
	default:
		m.secrets[at] = now
	}
	m.touch(topic{subjectSecret, at.namespace, at.name})
}

// takeConfigMap notes ConfigMaps that gateways verify clients with; others are for something else.
func (m *Mesh) takeConfigMap(at ref, authority bool) {
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

// authoritySuffix ends references to what peers are verified with, as credential.Table has them.
const authoritySuffix = credential.AuthoritySuffix
