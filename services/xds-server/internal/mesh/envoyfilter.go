package mesh

import (
	"fmt"
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
