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

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/envoyapi"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// EnvoyFilter is an EnvoyFilter whose patches are decoded.
type EnvoyFilter struct {
	Config[*networking.EnvoyFilter]
	// Patches in the object's order.
	Patches []*Patch
}

// Older is Config.Older.
func (f *EnvoyFilter) Older(o *EnvoyFilter) bool { return f.Config.Older(&o.Config) }

// Name is "<namespace>/<name>".
func (f *EnvoyFilter) Name() string { return f.Key.path() }

// Patch is one element of spec.configPatches.
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
	// Contexts in which the patch may have an effect.
	Contexts []PatchContext
}

func decodeEnvoyFilter(e *entry, r *configv1.Resource) (any, error) {
	decoded, err := decodeConfig(e, r, &networking.EnvoyFilter{})
	if err != nil {
		return nil, err
	}
	f := &EnvoyFilter{Config: *decoded}
	for i, spec := range f.Spec.GetConfigPatches() {
		p := &Patch{Index: i, Spec: spec, Operation: envoyapi.Operation(spec)}
		if p.Contexts = patchContexts(p); len(p.Contexts) == 0 {
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

func (w *writer) indexEnvoyFilter(e *entry, add bool) {
	v := e.value.(*EnvoyFilter)
	for _, to := range v.ExportedTo {
		for _, context := range v.PatchContexts() {
			put(w, &w.next.envoyFilters, add, join(to, string(context), age(v.Created), v.Key.Namespace, v.Key.Name), v)
			w.touch(SubjectEnvoyFilters, to, string(context))
			if to != "*" {
				w.countPrivate([]string{to}, add, Topic{SubjectEnvoyFilters, "*", string(context)})
			}
		}
		for _, p := range v.Patches {
			if p.Proxy != nil {
				put(w, &w.next.proxyMatches, add, join(to, v.Key.Namespace, v.Key.Name, p.Proxy.ID), p.Proxy)
				w.touch(SubjectProxyMatches, to, "")
			}
		}
		w.countRelevantLabels(to, v.selector(), add)
	}
}

// EnvoyFilters lists the filters for proxies of the namespace with patches in the context: by priority, those for all
// namespaces before the namespace's own, the oldest first. The caller looks at the selectors (EnvoyFilter.Selects).
func (s *Snapshot) EnvoyFilters(to string, context PatchContext) []*EnvoyFilter {
	found := slices.Concat(s.envoyFilters.list(join("*", string(context))+sep), s.envoyFilters.list(join(to, string(context))+sep))
	slices.SortStableFunc(found, func(a, b *EnvoyFilter) int { return int(a.Spec.GetPriority()) - int(b.Spec.GetPriority()) })
	return found
}

// EnvoyFiltersTopics names the answers of EnvoyFilters.
func EnvoyFiltersTopics(to string, context PatchContext) []Topic {
	return []Topic{{SubjectEnvoyFilters, "*", string(context)}, {SubjectEnvoyFilters, to, string(context)}}
}

// gatewayLabel is the label of the workloads of a Kubernetes Gateway; its value is the Gateway's name.
const gatewayLabel = authz.GatewayLabel

// Selective reports whether the filter is for some workloads only.
func (f *EnvoyFilter) Selective() bool { return len(f.selector()) > 0 }

// selector has the label keys that decide which workloads the filter is for.
func (f *EnvoyFilter) selector() map[string]string {
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

// ProxyMatch is match.proxy of a patch: a condition on the metadata that a proxy states.
type ProxyMatch struct {
	// ID is equal for equal conditions.
	ID       string
	version  *regexp.Regexp // nil: any
	metadata map[string]string
}

// versionMetadata is the key of the node's metadata that has the version of the proxy's image.
const versionMetadata = "ISTIO_VERSION"

// Meets reports whether a proxy with these text entries in its metadata meets the condition.
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

// ProxyMatches calls f for the conditions on proxies that EnvoyFilters for the namespace have. f may be called several
// times for equal conditions.
func (s *Snapshot) ProxyMatches(namespace string, f func(*ProxyMatch)) {
	for _, to := range []string{"*", namespace} {
		for _, p := range s.proxyMatches.list(to + sep) {
			f(p)
		}
	}
}

// ProxyMatchesTopics names the answers of ProxyMatches.
func ProxyMatchesTopics(namespace string) []Topic {
	return []Topic{{SubjectProxyMatches, "*", ""}, {SubjectProxyMatches, namespace, ""}}
}
