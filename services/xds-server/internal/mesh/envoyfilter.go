package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/envoyapi"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// EnvoyFilter is an object of that kind, ready to apply.
type EnvoyFilter struct {
	Config[*networking.EnvoyFilter]
	// Patches in the object's order.
	Patches []*Patch
}

// Older is Config.Older.
func (f *EnvoyFilter) Older(o *EnvoyFilter) bool { return f.Config.Older(&o.Config) }

// Name is "<namespace>/<name>".
func (f *EnvoyFilter) Name() string { return f.Key.path() }

// Patch is one of an EnvoyFilter's.
type Patch struct {
	// Index in spec.configPatches.
	Index int
	Spec  *networking.EnvoyFilter_EnvoyConfigObjectPatch
	// Value is the decoded patch.value; nil where the operation needs none. It is shared and must not be changed.
	Value proto.Message
	// Proxy is the condition on the proxy itself; nil if there is none.
	Proxy *ProxyMatch
	// Operation is what the patch does, see envoyapi.Operation.
	Operation networking.EnvoyFilter_Patch_Operation
	// Places where the patch may matter; none for one that changes nothing.
	Places []Place
}

// ProxyMatch is a condition on what a proxy says of itself.
type ProxyMatch struct {
	// ID is equal for equal conditions.
	ID       string
	version  *regexp.Regexp // nil: any
	metadata map[string]string
}

// versionMetadata is the key of the node's metadata that holds the version of the proxy's image.
const versionMetadata = "ISTIO_VERSION"

// Meets reports whether a proxy with these entries of text in its metadata meets the condition.
func (p *ProxyMatch) Meets(metadata map[string]string) bool {
	if p.version != nil {
		if v, ok := metadata[versionMetadata]; !ok || !p.version.MatchString(v) {
			return false
		}
	}
	return Matches(p.metadata, metadata)
}

// nothing matches no text.
var nothing = regexp.MustCompile(`[^\x00-\x{10FFFF}]`)

func newProxyMatch(m *networking.EnvoyFilter_ProxyMatch) (*ProxyMatch, error) {
	if m.GetProxyVersion() == "" && len(m.GetMetadata()) == 0 {
		return nil, nil //nolint:nilnil // no condition
	}
	p := &ProxyMatch{metadata: m.GetMetadata()}
	switch v := m.GetProxyVersion(); {
	case v == "":
	case len(v) > envoyapi.MaxProxyVersion:
		p.version = nothing
	default:
		var err error
		if p.version, err = regexp.Compile(v); err != nil {
			return nil, fmt.Errorf("match.proxy.proxyVersion: %w", err)
		}
	}
	parts := []string{m.GetProxyVersion()}
	for _, k := range sortedKeys(p.metadata) {
		parts = append(parts, k, p.metadata[k])
	}
	sum := sha256.Sum256([]byte(join(parts...)))
	p.ID = hex.EncodeToString(sum[:8])
	return p, nil
}

// Place is a kind of resources that patches apply to, at one side of the proxy.
type Place string

// Sides of a proxy, the last part of a Place.
const (
	Inbound  = "inbound"
	Outbound = "outbound"
	Gateways = "gateway"
)

// At makes the place of a kind of resources at a side.
func At(resource, side string) Place { return Place(resource + "/" + side) }

// Kinds of resources, the first part of a Place.
const (
	PatchedListeners  = "listener"
	PatchedRoutes     = "route configuration"
	PatchedHosts      = "virtual host"
	PatchedClusters   = "cluster"
	PatchedExtensions = "extension config"
	PatchedBootstraps = "bootstrap"
)

// places lists where a patch may matter. Inbound routes are part of their listeners, and only outbound virtual hosts are resources. A sidecar
// starts with one configuration for both of its sides, which counts as the inbound one's.
func places(p *Patch) []Place {
	if p.Operation == networking.EnvoyFilter_Patch_INVALID {
		return nil
	}
	var kinds []string
	routes, start := false, false
	switch p.Spec.GetApplyTo() {
	case networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_FILTER_CHAIN, networking.EnvoyFilter_NETWORK_FILTER,
		networking.EnvoyFilter_HTTP_FILTER, networking.EnvoyFilter_LISTENER_FILTER:
		kinds = []string{PatchedListeners}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION:
		kinds, routes = []string{PatchedRoutes}, true
	case networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		kinds, routes = []string{PatchedRoutes, PatchedHosts}, true
	case networking.EnvoyFilter_CLUSTER:
		kinds = []string{PatchedClusters}
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		kinds = []string{PatchedExtensions}
	case networking.EnvoyFilter_BOOTSTRAP:
		kinds, start = []string{PatchedBootstraps}, true
	}
	sides := []string{Inbound, Outbound, Gateways}
	switch p.Spec.GetMatch().GetContext() {
	case networking.EnvoyFilter_ANY:
	case networking.EnvoyFilter_SIDECAR_INBOUND:
		sides = sides[:1]
	case networking.EnvoyFilter_SIDECAR_OUTBOUND:
		sides = sides[1:2]
	case networking.EnvoyFilter_GATEWAY:
		sides = sides[2:]
	default:
		return nil
	}
	if start && sides[0] == Outbound {
		sides = []string{Inbound}
	}
	var out []Place
	for _, side := range sides {
		if routes && side == Inbound {
			out = append(out, At(PatchedListeners, side))
			continue
		}
		for _, kind := range kinds {
			if kind != PatchedHosts || side == Outbound {
				out = append(out, At(kind, side))
			}
		}
	}
	return out
}

// Places lists where the filter may matter, each once.
func (f *EnvoyFilter) Places() []Place {
	var out []Place
	for _, p := range f.Patches {
		out = append(out, p.Places...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func decodeEnvoyFilter(e *entry, c *configv1.IstioConfig) (any, error) {
	decoded, err := decodeSpec(e, c, &networking.EnvoyFilter{})
	if err != nil {
		return nil, err
	}
	f := &EnvoyFilter{Config: *decoded.(*Config[*networking.EnvoyFilter])}
	for i, spec := range f.Spec.GetConfigPatches() {
		p := &Patch{Index: i, Spec: spec, Operation: envoyapi.Operation(spec)}
		if p.Places = places(p); len(p.Places) == 0 {
			continue
		}
		if p.Proxy, err = newProxyMatch(spec.GetMatch().GetProxy()); err != nil {
			return nil, fmt.Errorf("spec.configPatches[%d].%w", i, err)
		}
		if p.Operation != networking.EnvoyFilter_Patch_REMOVE {
			if p.Value, err = envoyapi.Decode(spec.GetApplyTo(), spec.GetPatch().GetValue()); err != nil {
				return nil, fmt.Errorf("spec.configPatches[%d].patch.value: %w", i, err)
			}
		}
		f.Patches = append(f.Patches, p)
	}
	return f, nil
}

// EnvoyFilters lists the filters for clients in the namespace that may matter at the place: by priority, those that are for everybody
// before the namespace's own, the oldest first. Whom they select is left to the caller.
func (s *Snapshot) EnvoyFilters(to string, place Place) []*EnvoyFilter {
	var found []*EnvoyFilter
	for _, t := range []string{"*", to} {
		s.patches.scan(join(t, string(place))+sep, func(_ string, f *EnvoyFilter) bool {
			found = append(found, f)
			return true
		})
	}
	slices.SortStableFunc(found, func(a, b *EnvoyFilter) int { return int(a.Spec.GetPriority()) - int(b.Spec.GetPriority()) })
	return found
}

// EnvoyFiltersTopics names the answers of EnvoyFilters.
func EnvoyFiltersTopics(to string, place Place) []Topic {
	return []Topic{{SubjectEnvoyFilters, "*", string(place)}, {SubjectEnvoyFilters, to, string(place)}}
}

// ProxyMatches calls f for the conditions that EnvoyFilters for clients in the namespace have on the proxy itself; one may come several
// times.
func (s *Snapshot) ProxyMatches(namespace string, f func(*ProxyMatch)) {
	for _, to := range []string{"*", namespace} {
		s.conditions.scan(to+sep, func(_ string, p *ProxyMatch) bool {
			f(p)
			return true
		})
	}
}

// ProxyMatchesTopics names the answers of ProxyMatches.
func ProxyMatchesTopics(namespace string) []Topic {
	return []Topic{{SubjectProxyMatches, "*", ""}, {SubjectProxyMatches, namespace, ""}}
}

func (w *writer) postEnvoyFilter(v *EnvoyFilter, add bool) {
	for _, to := range v.ExportedTo {
		for _, place := range v.Places() {
			put(w.state.patches, add, join(to, string(place), age(v.Created), v.Key.Namespace, v.Key.Name), v)
			w.touch(SubjectEnvoyFilters, to, string(place))
			if to != "*" {
				w.differs([]string{to}, add, Topic{SubjectEnvoyFilters, "*", string(place)})
			}
		}
		for _, p := range v.Patches {
			if p.Proxy != nil {
				put(w.state.conditions, add, join(to, v.Key.Namespace, v.Key.Name, p.Proxy.ID), p.Proxy)
				w.touch(SubjectProxyMatches, to, "")
			}
		}
		w.selects(to, v.tested(), add)
	}
}

// gatewayLabel is what the workloads of a Kubernetes Gateway are labelled with.
const gatewayLabel = "gateway.networking.k8s.io/gateway-name"

// Selective reports whether the filter is for some workloads only.
func (f *EnvoyFilter) Selective() bool { return len(f.tested()) > 0 }

// tested are the labels whose keys decide for whom the filter is.
func (f *EnvoyFilter) tested() map[string]string {
	if len(f.Spec.GetTargetRefs()) > 0 {
		return map[string]string{gatewayLabel: ""}
	}
	return f.Spec.GetWorkloadSelector().GetLabels()
}

// Selects reports whether the filter is for workloads with these labels.
func (f *EnvoyFilter) Selects(labels map[string]string) bool {
	if refs := f.Spec.GetTargetRefs(); len(refs) > 0 {
		for _, ref := range refs {
			if name := labels[gatewayLabel]; name != "" && strings.EqualFold(ref.GetKind(), "Gateway") && ref.GetName() == name {
				return true
			}
		}
		return false
	}
	return Matches(f.Spec.GetWorkloadSelector().GetLabels(), labels)
}
