package credential

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/notify"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// Gateways knows which gateways are connected; fleet.Table implements it.
type Gateways interface {
	// GatewayNamespaces lists the namespaces of connected gateways, sorted.
	GatewayNamespaces() []string
	IdentitiesChanged() <-chan struct{}
}

// Wanted tells a source that reads Secrets and ConfigMaps one by one which of them the Gateways and DestinationRules of
// the newest revision refer to, and which the objects of the Gateway API. These are at least those that
// References.MayUse allows to anybody who is connected.
type Wanted struct {
	log      *revision.Log
	gateways Gateways
	source   Source

	// judged are those that package gatewayapi wants. mu guards it.
	mu     sync.Mutex
	judged []object.Key
	wake   chan struct{}

	at   *revision.Snapshot
	uses map[resource.Key]*wantedBy
	// selections are the workloads that the selectors of Gateways select.
	selections map[string]*selection
	matched    map[resource.Key][]*selection // by Workload
	// changed is true if what is wanted may differ from told.
	changed bool
	told    []object.Key
}

// wantedBy is a Gateway, or a DestinationRule that names credentials.
type wantedBy struct {
	use
	references []reference
	// selection is set for a Gateway with a selector.
	selection *selection
}

// reference is a credentialName and what is read of the credential.
type reference struct {
	name           string
	key, authority bool
}

// selection counts the workloads of a selector by namespace.
type selection struct {
	selector   map[string]string
	users      int
	namespaces map[string]int
}

// Source reads Secrets and ConfigMaps one by one; source/kubernetes implements it.
type Source interface {
	Lookup
	// Want says which are read, sorted, in place of all earlier ones.
	Want([]object.Key)
	// WantAlso adds some, before the first call of Want.
	WantAlso([]object.Key)
}

// NewWanted returns a Wanted that tells the source from Run's goroutine.
func NewWanted(log *revision.Log, gateways Gateways, source Source) *Wanted {
	return &Wanted{
		log: log, gateways: gateways, source: source, wake: make(chan struct{}, 1), uses: map[resource.Key]*wantedBy{},
		selections: map[string]*selection{},
		matched:    map[resource.Key][]*selection{},
	}
}

// Judge takes over what package gatewayapi wants, sorted. Before the first revision, which waits for it, the source is
// told at once.
func (w *Wanted) Judge(keys []object.Key) {
	w.mu.Lock()
	w.judged = keys
	w.mu.Unlock()
	if snapshot, _ := w.log.Current(); snapshot == nil {
		w.source.WantAlso(keys)
	}
	notify.Wake(w.wake)
}

// Run follows the revisions until ctx ends. It costs time in proportion to what has changed.
func (w *Wanted) Run(ctx context.Context) error {
	for {
		connected := w.gateways.IdentitiesChanged()
		snapshot, revised := w.log.Current()
		if snapshot != nil {
			w.follow(snapshot)
			w.tell()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-revised:
		case <-connected:
			w.changed = true
		case <-w.wake:
			w.changed = true
		}
	}
}

func (w *Wanted) follow(snapshot *revision.Snapshot) {
	switch w.at {
	case snapshot:
		return
	case nil:
		w.at = snapshot
		snapshot.Each(func(k resource.Key, r *configv1.Resource) bool {
			w.apply(k, r)
			return true
		})
	default:
		d := w.log.Between(w.at, snapshot)
		w.at = snapshot
		for _, r := range d.Upserts {
			w.apply(resource.KeyOf(r.GetKey()), r)
		}
		for _, k := range d.Removed {
			w.apply(k, nil)
		}
	}
}

// apply applies a resource; nil if it was removed.
func (w *Wanted) apply(k resource.Key, r *configv1.Resource) {
	switch k.Kind {
	case resource.KindWorkload:
		w.count(k, r.GetWorkload())
	case kindGateway, kindRule:
		w.changed = true
		if old := w.uses[k]; old != nil && old.selection != nil {
			w.release(old.selection)
		}
		delete(w.uses, k)
		if u := wantedByOf(k, r); u != nil {
			if !u.rule && len(u.selector) > 0 {
				u.selection = w.selection(u.selector)
			}
			w.uses[k] = u
		}
	}
}

// count counts a Workload in the selections that select it; nil if it is gone.
func (w *Wanted) count(k resource.Key, workload *configv1.Workload) {
	for _, s := range w.matched[k] {
		w.changed = s.add(k.Namespace, -1) || w.changed
	}
	delete(w.matched, k)
	if workload == nil {
		return
	}
	var by []*selection
	for _, s := range w.selections {
		if object.HasLabels(workload.GetLabels(), s.selector) {
			w.changed = s.add(k.Namespace, 1) || w.changed
			by = append(by, s)
		}
	}
	if by != nil {
		w.matched[k] = by
	}
}

// add counts workloads of a namespace. It reports whether the set of namespaces has changed.
func (s *selection) add(namespace string, n int) bool {
	before := s.namespaces[namespace]
	if s.namespaces[namespace] += n; s.namespaces[namespace] == 0 {
		delete(s.namespaces, namespace)
	}
	return before == 0 || before+n == 0
}

// selection returns that of a selector. The first user searches all workloads once.
func (w *Wanted) selection(selector map[string]string) *selection {
	key := selectorText(selector)
	s := w.selections[key]
	if s == nil {
		s = &selection{selector: selector, namespaces: map[string]int{}}
		w.selections[key] = s
		w.at.EachOf(resource.KindWorkload, func(k resource.Key, r *configv1.Resource) bool {
			if object.HasLabels(r.GetWorkload().GetLabels(), selector) && !slices.Contains(w.matched[k], s) {
				s.add(k.Namespace, 1)
				w.matched[k] = append(w.matched[k], s)
			}
			return true
		})
	}
	s.users++
	return s
}

func (w *Wanted) release(s *selection) {
	if s.users--; s.users > 0 {
		return
	}
	delete(w.selections, selectorText(s.selector))
	for k, by := range w.matched {
		if by = slices.DeleteFunc(by, func(o *selection) bool { return o == s }); len(by) == 0 {
			delete(w.matched, k)
		} else {
			w.matched[k] = by
		}
	}
}

func selectorText(selector map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		b.WriteString(k + "=" + selector[k] + ",")
	}
	return b.String()
}

// tell passes on what is wanted if that has changed.
func (w *Wanted) tell() {
	if !w.changed {
		return
	}
	w.changed = false
	gateways := map[string]bool{} // namespaces with gateways, for objects that select none by labels
	for _, s := range w.selections {
		for namespace := range s.namespaces {
			gateways[namespace] = true
		}
	}
	for _, namespace := range w.gateways.GatewayNamespaces() {
		gateways[namespace] = true
	}
	wanted := map[object.Key]bool{}
	for _, u := range w.uses {
		for namespace := range u.namespaces(gateways) {
			for _, r := range u.references {
				for _, k := range r.objects(namespace) {
					wanted[k] = true
				}
			}
		}
	}
	w.mu.Lock()
	for _, k := range w.judged {
		wanted[k] = true
	}
	w.mu.Unlock()
	now := slices.SortedFunc(maps.Keys(wanted), object.Key.Compare)
	if !slices.Equal(now, w.told) {
		w.told = now
		w.source.Want(now)
	}
}

// namespaces are those whose workloads may use the credentials that the object names.
func (u *wantedBy) namespaces(gateways map[string]bool) map[string]bool {
	out := map[string]bool{}
	switch {
	case len(u.references) == 0:
	case u.selection != nil:
		for namespace := range u.selection.namespaces {
			if normalise.VisibleTo(u.exportedTo, namespace) {
				out[namespace] = true
			}
		}
	case u.rule && len(u.selector) > 0:
		out[u.namespace] = true
	default:
		for namespace := range gateways {
			if normalise.VisibleTo(u.exportedTo, namespace) {
				out[namespace] = true
			}
		}
	}
	return out
}

// objects are the Secrets and ConfigMaps that Table.Get looks at for the reference, for workloads of a namespace.
func (r reference) objects(namespace string) []object.Key {
	name := r.name
	if of, rest, found := strings.Cut(name, "/"); found {
		if of != namespace {
			return nil
		}
		name = rest
	}
	var out []object.Key
	if r.key {
		out = append(out, objectsOf(Ref{namespace, name})...)
	}
	if r.authority {
		out = append(out, objectsOf(Ref{namespace, strings.TrimSuffix(name, AuthoritySuffix) + AuthoritySuffix})...)
	}
	return out
}

// objectsOf are the Secrets and ConfigMaps that Table.Get looks at.
func objectsOf(ref Ref) []object.Key {
	base, authority := strings.CutSuffix(ref.Name, AuthoritySuffix)
	out := []object.Key{{Kind: "Secret", Namespace: ref.Namespace, Name: ref.Name}}
	if authority {
		for _, kind := range []string{"Secret", "ConfigMap"} {
			out = append(out, object.Key{Kind: kind, Namespace: ref.Namespace, Name: base},
				object.Key{Kind: kind, Namespace: ref.Namespace, Name: ref.Name})
		}
	}
	return out
}

// wantedByOf parses an object; nil for a DestinationRule that names no credential, and for what cannot be parsed.
func wantedByOf(k resource.Key, r *configv1.Resource) *wantedBy {
	config := r.GetIstioConfig()
	if config == nil {
		return nil
	}
	u := &wantedBy{use: use{namespace: k.Namespace, rule: k.Kind == kindRule, exportedTo: config.GetExportedTo()}}
	name := func(name string, key, authority bool) {
		if name = WithoutScheme(name); name != "" {
			u.references = append(u.references, reference{name, key, authority})
		}
	}
	if u.rule {
		spec := &networking.DestinationRule{}
		if config.GetSpec().UnmarshalTo(spec) != nil {
			return nil
		}
		u.selector = spec.GetWorkloadSelector().GetMatchLabels()
		for _, n := range namedByRule(spec) {
			name(n, true, true)
		}
		if len(u.references) == 0 {
			return nil
		}
		return u
	}
	spec := &networking.Gateway{}
	if config.GetSpec().UnmarshalTo(spec) != nil {
		return nil
	}
	u.selector = spec.GetSelector()
	for _, s := range spec.GetServers() {
		tls := s.GetTls()
		mutual := false
		switch tls.GetMode() {
		case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH, networking.ServerTLSSettings_ISTIO_MUTUAL:
			continue // these use no Secret
		case networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
			mutual = tls.GetCaCertCredentialName() == ""
		}
		name(tls.GetCredentialName(), true, mutual)
		for _, n := range tls.GetCredentialNames() {
			name(n, true, mutual)
		}
		name(tls.GetCaCertCredentialName(), false, true)
	}
	return u
}
