// Package patch applies EnvoyFilters to the resources that translators have built. WithEnvoyFilters wraps a translator:
// it finds the EnvoyFilters for the class, applies them to a copy of the resource, and validates the result. An
// EnvoyFilter that would break the resource is left out, and named in the error that package plan reports.
//
// Each resource type has a file: listener.go (with filter chains and filters), routeconfig.go, virtualhost.go (VHDS),
// cluster.go (with extension configs), bootstrap.go. list.go has the operations on lists of filters, routes and virtual
// hosts, validate.go the checks of results.
package patch

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/bootstrap"
)

// WithEnvoyFilters returns a translator that patches what t builds. It returns t itself if EnvoyFilters cannot patch
// the type.
func WithEnvoyFilters(t plan.Translator) plan.Translator {
	switch t.TypeURL() {
	case resourcev3.ListenerType:
		return wrap(t, mesh.PatchedListeners, networking.EnvoyFilter_LISTENER, sideOfListener, newListeners)
	case resourcev3.RouteType:
		return wrap(t, mesh.PatchedRoutes, networking.EnvoyFilter_INVALID, sideOfRoutes, newRoutes)
	case resourcev3.VirtualHostType:
		return patchedVirtualHosts{wrap(t, mesh.PatchedHosts, networking.EnvoyFilter_INVALID, sideOfRoutes, newHosts)}
	case resourcev3.ClusterType:
		return wrap(t, mesh.PatchedClusters, networking.EnvoyFilter_CLUSTER, sideOfCluster, newClusters)
	case resourcev3.ExtensionConfigType:
		return wrap(t, mesh.PatchedExtensions, networking.EnvoyFilter_EXTENSION_CONFIG, nil, newExtensions)
	case bootstrap.TypeURL:
		return wrap(t, mesh.PatchedBootstraps, networking.EnvoyFilter_INVALID, sideOfBootstrap, newBootstraps)
	default:
		return t
	}
}

// patched is a translator whose resources are patched.
type patched struct {
	plan.Translator
	// contexts are the patch contexts of the type, by side of the proxy.
	contexts map[string]mesh.PatchContext
	// adds is the applyTo of patches that add a resource; INVALID if there are none.
	adds networking.EnvoyFilter_ApplyTo
	// side returns the side of the proxy that a resource is on; nil if EnvoyFilters add all resources of the type.
	side func(s site, m proto.Message) string
	// of returns how a resource is patched; m is nil for a resource that a patch adds.
	of func(s site, m proto.Message) resource
}

func wrap(t plan.Translator, kind string, adds networking.EnvoyFilter_ApplyTo, side func(site, proto.Message) string,
	of func(site, proto.Message) resource) patched {
	contexts := map[string]mesh.PatchContext{}
	for _, side := range []string{mesh.Inbound, mesh.Outbound, mesh.Gateways} {
		contexts[side] = mesh.At(kind, side)
	}
	return patched{t, contexts, adds, side, of}
}

// site is the resource that is built, and its translator without patches.
type site struct {
	r     *input.Reader
	name  string
	inner plan.Translator
}

// resource patches one resource.
type resource interface {
	// concerns reports whether a patch may change the resource. It must not read anything of the class.
	concerns(p *mesh.Patch) bool
	// patch applies patches in order to m, which it owns. It returns nil if they remove the resource.
	patch(m proto.Message, patches []*use) (proto.Message, error)
	// validate returns an error for a resource that Envoy would reject.
	validate(m proto.Message) error
}

// use is a patch that is applied to one resource; done is true once it has changed something.
type use struct {
	*mesh.Patch
	filter *mesh.EnvoyFilter
	done   bool
}

func (u *use) errorf(format string, args ...any) error {
	return fmt.Errorf("spec.configPatches[%d]: %w", u.Index, fmt.Errorf(format, args...))
}

// Names adds the names of resources that EnvoyFilters add.
func (p patched) Names(r *input.Reader) ([]string, error) {
	names, err := p.Translator.Names(r)
	if err != nil || p.adds == networking.EnvoyFilter_INVALID {
		return names, err
	}
	added := p.additions(r, func(name string) bool { return name != "" && name != "*" }) // which no resource can be called
	if len(added) == 0 {
		return names, nil
	}
	names = slices.Clone(names)
	for _, u := range added {
		names = append(names, cache.GetResourceName(u.Value))
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// additions lists the patches for the class that add a resource with a wanted name.
func (p patched) additions(r *input.Reader, wanted func(name string) bool) []*use {
	var found []*use
	for _, side := range r.Sides() {
		for _, f := range r.EnvoyFilters(p.contexts[side]) {
			for _, patch := range f.Patches {
				switch {
				case patch.Spec.GetApplyTo() != p.adds || patch.Operation != networking.EnvoyFilter_Patch_ADD:
				case !isOn(side, patch) || !wanted(cache.GetResourceName(patch.Value)):
				case slices.ContainsFunc(found, func(o *use) bool { return o.Patch == patch }): // for both sides
				case r.Selected(f) && r.Meets(patch.Proxy):
					found = append(found, &use{Patch: patch, filter: f})
				}
			}
		}
	}
	return found
}

// isOn reports whether a patch's context includes a side of the proxy.
func isOn(side string, p *mesh.Patch) bool {
	switch p.Spec.GetMatch().GetContext() {
	case networking.EnvoyFilter_ANY:
		return true
	case networking.EnvoyFilter_SIDECAR_INBOUND:
		return side == mesh.Inbound
	case networking.EnvoyFilter_SIDECAR_OUTBOUND:
		return side == mesh.Outbound
	case networking.EnvoyFilter_GATEWAY:
		return side == mesh.Gateways
	default:
		return false
	}
}

// Build builds one resource and patches it, or builds a resource that an EnvoyFilter adds.
func (p patched) Build(r *input.Reader, name string) (proto.Message, error) {
	m, err := p.Translator.Build(r, name)
	var left *plan.Incomplete
	if err != nil && !errors.As(err, &left) {
		return nil, err
	}
	m, err = p.patch(r, name, m)
	if left != nil {
		var more *plan.Incomplete
		if err == nil || errors.As(err, &more) {
			err = &plan.Incomplete{Err: errors.Join(left.Err, err)}
		}
	}
	return m, err
}

// patch patches a resource, or builds one that an EnvoyFilter adds if there is none of the name.
func (p patched) patch(r *input.Reader, name string, m proto.Message) (proto.Message, error) {
	at := site{r, name, p.Translator}
	if m == nil {
		return p.add(at)
	}
	if p.side == nil {
		return m, nil // patches only add resources of the type
	}
	context := p.contexts[p.side(at, m)]
	filters := r.EnvoyFilters(context)
	if len(filters) == 0 {
		return m, nil
	}
	made := p.of(at, m)
	return apply(made, r, m, choose(r, made, context, filters))
}

// add builds a resource that an EnvoyFilter adds; of several EnvoyFilters the first wins.
func (p patched) add(at site) (proto.Message, error) {
	if p.adds == networking.EnvoyFilter_INVALID {
		return nil, nil
	}
	var out proto.Message
	var refused []error
	for _, u := range p.additions(at.r, func(n string) bool { return n == at.name }) {
		var err error
		if out != nil {
			err = u.errorf("another EnvoyFilter adds %q, give it a name of its own", at.name)
		} else if err = p.of(at, nil).validate(u.Value); err == nil {
			out = u.Value
			at.r.Patched(u.filter)
		}
		if err != nil {
			refused = append(refused, fmt.Errorf("EnvoyFilter %s: %w", u.filter.Name(), err))
		}
	}
	return out, incomplete(refused)
}

// set is the patches of one EnvoyFilter for one resource.
type set struct {
	filter  *mesh.EnvoyFilter
	patches []*mesh.Patch
}

// choose finds the patches for a resource with a patch context. It reads the workload last, so that resources without
// patches for it are shared.
func choose(r *input.Reader, made resource, context mesh.PatchContext, filters []*mesh.EnvoyFilter) []set {
	var sets []set
	for _, f := range filters {
		s := set{filter: f}
		for _, p := range f.Patches {
			if slices.Contains(p.Contexts, context) && made.concerns(p) && r.Selected(f) && r.Meets(p.Proxy) {
				s.patches = append(s.patches, p)
			}
		}
		if len(s.patches) > 0 {
			sets = append(sets, s)
		}
	}
	return sets
}

// apply applies all sets. If the result is invalid, it applies the sets one by one and leaves out those that make it
// invalid.
func apply(made resource, r *input.Reader, m proto.Message, sets []set) (proto.Message, error) {
	if len(sets) == 0 {
		return m, nil
	}
	out, done, err := try(made, m, sets)
	var refused []error
	if err != nil {
		var good []set
		out, done = m, nil
		for _, s := range sets {
			with := append(slices.Clone(good), s)
			better, used, err := try(made, m, with)
			if err != nil {
				refused = append(refused, fmt.Errorf("EnvoyFilter %s is left out: %w", s.filter.Name(), err))
				continue
			}
			good, out, done = with, better, used
		}
	}
	for _, f := range done {
		r.Patched(f)
	}
	return out, incomplete(refused)
}

// try applies sets to a copy. A panic is returned as an error, because the patches caused it.
func try(made resource, m proto.Message, sets []set) (out proto.Message, done []*mesh.EnvoyFilter, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("patching panicked: %v\n%s", p, debug.Stack())
		}
	}()
	var uses []*use
	for _, s := range sets {
		for _, p := range s.patches {
			uses = append(uses, &use{Patch: p, filter: s.filter})
		}
	}
	if out, err = made.patch(proto.Clone(m), uses); err != nil {
		return nil, nil, err
	}
	for _, u := range uses {
		if u.done && !slices.Contains(done, u.filter) {
			done = append(done, u.filter)
		}
	}
	if len(done) == 0 {
		return m, nil, nil
	}
	if out != nil {
		err = made.validate(out)
	}
	return out, done, err
}

func incomplete(refused []error) error {
	if len(refused) == 0 {
		return nil
	}
	return &plan.Incomplete{Err: errors.Join(refused...)}
}
