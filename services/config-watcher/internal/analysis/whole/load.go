package whole

import (
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/running"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Object is one object of the mesh, whether config-watcher reads its kind or not.
type Object struct {
	Key                 object.Key
	Labels, Annotations map[string]string
	// Valid is the object as config-watcher takes it over; nil if it refuses the object or does not read the kind.
	Valid *object.Object
	// Body is the typed content: Valid's body, except for the kinds of decoders. It is nil for an object that is
	// refused.
	Body any

	doc *manifest.Document
}

// String names the object in messages.
func (o *Object) String() string { return o.Key.String() }

// Config of a Mesh.
type Config struct {
	// Namespace is that of objects which name none; "default" by default.
	Namespace string
	// Domain is the DNS suffix of service names; "cluster.local" by default.
	Domain string
	// Settings replaces the mesh configuration of the objects; nil takes that of the ConfigMap, else the defaults.
	Settings *mesh.MeshConfig
	// MultiTenant is true if the mesh has tenants; else a config-watcher among the objects says whether it does.
	MultiTenant bool
	// Now is the time with which the dates of certificates are compared.
	Now time.Time
	// Partial is true if kinds without any object may exist elsewhere, as with files alone: then no message says that
	// an object of such a kind is missing.
	Partial bool
	// Unreadable are kinds that could not be read; no message says that an object of theirs is missing.
	Unreadable []string
}

// Mesh is a whole mesh. It is not safe for concurrent use.
type Mesh struct {
	cfg      Config
	settings *mesh.MeshConfig
	objects  map[object.Key]*Object
	messages []finding.Finding
	// told counts the messages about each object.
	told map[object.Key]int
	// ignored counts objects of kinds that nothing here reads.
	ignored map[string]int

	byKind     map[string][]*Object // sorted by key
	workloads  []*workload
	byLabel    labelIndex[*workload]
	services   labelIndex[*Object] // Services by selector
	namespaces map[string]*Object  // Namespace objects
}

// New returns an empty mesh.
func New(cfg Config) *Mesh {
	if cfg.Namespace == "" {
		cfg.Namespace = kinds.DefaultNamespace
	}
	if cfg.Domain == "" {
		cfg.Domain = "cluster.local"
	}
	return &Mesh{cfg: cfg, objects: map[object.Key]*Object{}, told: map[object.Key]int{}, ignored: map[string]int{}}
}

// Load judges an object and takes it over. Of one object that is loaded twice the first counts, and a message about the
// second says so if both stand in files: load files before what an API server has.
func (m *Mesh) Load(doc *manifest.Document) {
	defer m.recover(doc)
	m.inNamespace(doc.Tree)
	key := identify(doc.Tree)
	o := &Object{Key: key, doc: doc, Labels: stringMap(doc.Tree, "labels"), Annotations: stringMap(doc.Tree, "annotations")}
	if first, twice := m.objects[key]; twice && key.Name != "" {
		if doc.File != "" && first.doc.File != "" {
			m.report(o, finding.ObjectTwice, "", nil, "same object as at "+first.doc.Location()+", which counts", "remove one of them")
		}
		return
	}
	decode, extra := decoders[kindOf(key)]
	valid, err := validate.Document(doc)
	var problems object.Problems
	switch {
	case err == nil:
		o.Valid, o.Body = valid, valid.Body
		m.warnings(o, valid.Warnings)
	case errors.As(err, &problems):
		for _, p := range problems {
			m.problem(o, finding.ObjectRefused, p)
		}
	case !errors.Is(err, validate.ErrIgnored):
		m.report(o, finding.ObjectRefused, "", nil, err.Error(), "see the reference of the kind")
	case !extra:
		m.ignored[key.Kind]++
		return
	}
	if refused := o.Valid == nil && !errors.Is(err, validate.ErrIgnored); extra && (!refused || key.Group == kinds.GroupSecurity) {
		body, err := decode(doc.Tree)
		if err == nil {
			o.Body = body
		} else if !refused {
			m.report(o, finding.ObjectRefused, "", nil, "cannot be decoded: "+err.Error(), "see Kubernetes' reference of "+key.Kind)
		}
	}
	m.objects[key] = o
}

// Unreadable takes over that a text is no object.
func (m *Mesh) Unreadable(p object.Problem) {
	m.messages = append(m.messages, finding.Finding{Code: finding.TextUnreadable, Severity: finding.Error, Problem: p, FromFile: true})
}

// recover turns a panic while an object is loaded into a message, so that no object ends the analysis.
func (m *Mesh) recover(doc *manifest.Document) {
	if p := recover(); p != nil {
		m.internal(&Object{Key: identify(doc.Tree), doc: doc}, p)
	}
}

func (m *Mesh) internal(o *Object, p any) {
	m.report(o, finding.InternalError, "", p, "cannot be analyzed", "report this object as a defect of Fairlead")
}

// warnings are the validation's. A deprecated field has a message of its own.
func (m *Mesh) warnings(o *Object, list object.Problems) {
	deprecated := deprecatedFields(o)
	for _, p := range list {
		if !slices.ContainsFunc(deprecated, func(d object.Problem) bool { return d.Field == p.Field }) {
			m.problem(o, finding.FieldWithoutEffect, p)
		}
	}
	for _, p := range deprecated {
		m.problem(o, finding.FieldDeprecated, p)
	}
}

// report adds a finding about an object.
func (m *Mesh) report(o *Object, code finding.Code, field string, value any, reason, remedy string) {
	m.problem(o, code, object.Problem{Field: field, Value: object.Quote(value), Reason: reason, Remedy: remedy})
}

// maxTold bounds the messages about one object.
const maxTold = 100

// problem adds a message about a problem of an object.
func (m *Mesh) problem(o *Object, code finding.Code, p object.Problem) {
	if m.told[o.Key]++; m.told[o.Key] > maxTold {
		return
	}
	p.Object, p.Location = o.Key.String(), o.doc.FieldLocation(p.Field)
	m.messages = append(m.messages, finding.Finding{Code: code, Severity: code.Describe().Severity, Key: o.Key, Problem: p,
		FromFile: o.doc.File != ""})
}

// inNamespace gives an object without a namespace the one of the configuration.
func (m *Mesh) inNamespace(tree map[string]any) {
	meta, _ := tree["metadata"].(map[string]any)
	if meta == nil || m.cfg.Namespace == kinds.DefaultNamespace || clusterScoped(tree) {
		return
	}
	if ns, given := meta["namespace"].(string); !given || ns == "" {
		meta["namespace"] = m.cfg.Namespace
	}
}

// identify is decode.Identify with the scope of the kinds that only analysis reads.
func identify(tree map[string]any) object.Key {
	key, _ := decode.Identify(tree)
	if clusterScoped(tree) {
		key.Namespace = ""
	}
	return key
}

// clusterScoped reports whether an object's kind has no namespace.
func clusterScoped(tree map[string]any) bool {
	key, _ := decode.Identify(tree)
	return kinds.ClusterScoped(key.Group, key.Kind) || clusterKinds[kindOf(key)]
}

// stringMap reads labels or annotations of an object that need not be valid.
func stringMap(tree map[string]any, name string) map[string]string {
	meta, _ := tree["metadata"].(map[string]any)
	in, _ := meta[name].(map[string]any)
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}

// into decodes a tree into a type of Kubernetes; fields that the type does not have are left out.
func into[T any](tree any) (*T, error) {
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	out := new(T)
	return out, json.Unmarshal(text, out)
}

// Objects is the number of objects that were taken over.
func (m *Mesh) Objects() int { return len(m.objects) }

// Ignored counts the objects of kinds that nothing here reads, by kind.
func (m *Mesh) Ignored() map[string]int { return maps.Clone(m.ignored) }

// kind lists the objects of a kind, which have been decoded, sorted by key. Kinds of several groups need their group's
// name before a slash: "gateway.networking.k8s.io/Gateway".
func (m *Mesh) kind(name string) []*Object { return m.byKind[name] }

// bodies yields the objects of a kind whose body is of the kind's type, with it.
func bodies[T any](r *run, kind string) iter.Seq2[*Object, T] {
	return func(yield func(*Object, T) bool) {
		for _, o := range r.kind(kind) {
			if body, ok := o.Body.(T); ok && !yield(o, body) {
				return
			}
		}
	}
}

// get returns a namespaced object of a kind; nil if it is not there.
func (m *Mesh) get(group, kind, namespace, name string) *Object {
	return m.objects[object.Key{Group: group, Kind: kind, Namespace: namespace, Name: name}]
}

// RootNamespace is the namespace of the mesh configuration.
func (m *Mesh) RootNamespace() string { return kinds.MeshNamespace }

// Credentials lists the Secrets that Gateways of both APIs, DestinationRules and Ingresses of the loaded objects may
// stand for, each once, sorted.
func (m *Mesh) Credentials() []object.Key {
	m.index()
	var out []object.Key
	add := func(namespaces []string, name string) {
		at := credential.WithoutScheme(name)
		if _, rest, found := strings.Cut(at, "/"); found {
			at = rest
		}
		if at == "" {
			return
		}
		for _, ns := range namespaces {
			for _, n := range []string{at, strings.TrimSuffix(at, credential.AuthoritySuffix) + credential.AuthoritySuffix} {
				out = append(out, object.Key{Kind: "Secret", Namespace: ns, Name: n})
			}
		}
	}
	r := &run{m}
	var gateways []string
	for _, g := range bodies[*networking.Gateway](r, "Gateway") {
		namespaces := namespacesOf(r.selected("", g.GetSelector()))
		gateways = append(gateways, namespaces...)
		for _, name := range serverCredentials(g) {
			add(namespaces, name)
		}
	}
	for o, rule := range bodies[*networking.DestinationRule](r, "DestinationRule") {
		for _, p := range running.TLSParts(rule) {
			add(append([]string{o.Key.Namespace}, gateways...), p.TLS.GetCredentialName())
		}
	}
	of := func(_ *Object, namespaces []string, _, name string) { add(namespaces, name) }
	r.ingressCredentials(of)
	r.listenerCredentials(of)
	slices.SortFunc(out, object.Key.Compare)
	return slices.Compact(out)
}

// Empty reports whether nothing at all is known of a namespace.
func (m *Mesh) Empty(namespace string) bool {
	for k := range m.objects {
		if k.Namespace == namespace || k.Group == "" && k.Kind == "Namespace" && k.Name == namespace {
			return false
		}
	}
	return true
}

// SetUnreadable names the kinds that could not be read, see Config.Unreadable.
func (m *Mesh) SetUnreadable(kinds []string) { m.cfg.Unreadable = kinds }
