package storeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// getInForce returns the version of an object that is in force, from whichever source.
func (s *Server) getInForce(ctx context.Context, k object.Key) (*configv1.Object, error) {
	if o := s.elsewhere.Get(k); o != nil {
		_, less := s.elsewhere.Others(o)
		return s.inForce(slices.Insert(less, 0, o), s.stayUntil(), true)
	}
	all := s.elsewhere.All()
	if err := s.knownNamespace(ctx, k.Namespace, all); err != nil {
		return nil, err
	}
	var names []string
	for _, list := range all {
		if o := list[0].Key; o.Group == k.Group && o.Kind == k.Kind && o.Namespace == k.Namespace {
			names = append(names, o.Name)
		}
	}
	return nil, status.Errorf(codes.NotFound, "%s: not found%s", k, nearest.Hint(k.Name, names))
}

// listInForce returns the objects in force of a kind and namespace, from all sources; empty means all.
func (s *Server) listInForce(ctx context.Context, req *configv1.ListRequest, readable func(object.Key) bool) (*configv1.ListResponse,
	error) {
	all := s.elsewhere.All()
	if err := s.knownNamespace(ctx, req.Namespace, all); err != nil {
		return nil, err
	}
	until := s.stayUntil()
	out := &configv1.ListResponse{}
	for _, list := range all {
		k := list[0].Key
		if !kinds.Matches(req.Kind, k) || req.Namespace != "" && req.Namespace != k.Namespace || !readable(k) {
			continue
		}
		o, err := s.inForce(list, until, !req.WithoutManifests)
		if err != nil {
			return nil, err
		}
		out.Objects = append(out.Objects, o)
	}
	return out, nil
}

// knownKind refuses an unknown kind; empty means all kinds.
func knownKind(kind string) error {
	if _, _, known := kinds.ByName(kind); known || kind == "" {
		return nil
	}
	return object.Problems{unknownKind(kind)}
}

func unknownKind(kind string) object.Problem {
	remedy := "kinds are written like VirtualService"
	if near := nearest.Name(kind, kinds.Names()); near != "" {
		remedy = fmt.Sprintf("did you mean %q?", near)
	}
	return object.Problem{Field: "kind", Value: object.Quote(kind), Reason: "unknown kind", Remedy: remedy}
}

// knownNamespace refuses a namespace without any object; empty means all. Its message suggests only namespaces that the
// caller may list.
func (s *Server) knownNamespace(ctx context.Context, namespace string, all [][]*object.Object) error {
	if namespace == "" || namespace == kinds.DefaultNamespace || namespace == kinds.MeshNamespace {
		return nil
	}
	identity, err := callerOf(ctx)
	if err != nil {
		return err
	}
	seen, names := map[string]bool{}, []string{}
	for _, list := range all {
		k := list[0].Key
		name := k.Namespace
		if k.Group == "" && k.Kind == "Namespace" {
			name = k.Name
		}
		if name == namespace {
			return nil
		}
		if name == "" || seen[name] {
			continue
		}
		if seen[name] = true; s.access.May(identity, access.List, object.Key{Namespace: name}) == nil {
			names = append(names, name)
		}
	}
	hint := nearest.Hint(namespace, names)
	if hint == "" && len(names) > 0 {
		slices.Sort(names)
		hint = "; there are " + object.Cut(strings.Join(names, ", "), 300)
	}
	return status.Errorf(codes.NotFound, "namespace %q: no object is in it, and no Namespace is called so%s", namespace, hint)
}

// stay names an object of one source at one place.
type stay struct {
	source   string
	key      object.Key
	location string
}

// stayUntil returns the objects whose file is gone and that stay until a time.
func (s *Server) stayUntil() map[stay]time.Time {
	out := map[stay]time.Time{}
	for _, src := range s.sources {
		for _, f := range src.Status().Staying {
			for _, o := range f.Objects {
				out[stay{src.Name(), o.Key, o.Location}] = f.Until
			}
		}
	}
	return out
}

// inForce converts the first object of a list, which is in force, for callers.
func (s *Server) inForce(list []*object.Object, until map[stay]time.Time, withManifest bool) (*configv1.Object, error) {
	o := list[0]
	var out *configv1.Object
	// The store may have changed since. It may also serve an object that it cannot read from its last good state.
	if it, err := s.store.Get(o.Key); o.Source == memory.Name && err == nil {
		if out = bareProto(it); withManifest {
			out = s.objectProto(it)
		}
	} else {
		out = &configv1.Object{
			Key:        &configv1.ObjectKey{ApiVersion: o.APIVersion, Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name},
			Generation: o.Generation, HeldClosed: o.Held,
		}
		if withManifest {
			if out.Manifest, err = render(o); err != nil {
				return nil, status.Errorf(codes.Internal, "%s: %v", o.Key, err)
			}
			out.Manifest = withFindings(out.Manifest, s.findings.Of(o.Key))
		}
	}
	out.Source, out.Location, out.Overrides = o.Source, o.Location, places(list[1:])
	if t, stays := until[stay{o.Source, o.Key, o.Location}]; stays {
		out.StaysUntil = timestamppb.New(t)
	}
	return out, nil
}

func place(o *object.Object) *configv1.Place {
	if o == nil {
		return nil
	}
	return &configv1.Place{Source: o.Source, Location: o.Location}
}

func places(list []*object.Object) []*configv1.Place {
	return lists.Map(list, place)
}

// render makes JSON of an object that is not from the store. Parts that config-watcher does not keep are replaced by a
// text that is not a valid value, so that nobody writes the JSON back by mistake.
func render(o *object.Object) ([]byte, error) {
	tree := map[string]any{}
	if o.Key.Group == contract.GroupGatewayAPI && o.Body != nil || isWhole(o.Body) {
		js, err := json.Marshal(o.Body)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(js, &tree); err != nil {
			return nil, err
		}
		delete(tree, "status")
	}
	meta := map[string]any{"name": o.Key.Name}
	tree["apiVersion"], tree["kind"], tree["metadata"] = o.APIVersion, o.Key.Kind, meta
	if o.Key.Namespace != "" {
		meta["namespace"] = o.Key.Namespace
	}
	if len(o.Labels) > 0 {
		meta["labels"] = o.Labels
	}
	if len(o.Annotations) > 0 {
		meta["annotations"] = o.Annotations
	}
	if !o.Created.IsZero() {
		meta["creationTimestamp"] = o.Created.UTC().Format(time.RFC3339)
	}
	elsewhere := fmt.Sprintf("(only in %s)", cmp.Or(o.Location, o.Source))
	switch b := o.Body.(type) {
	case proto.Message:
		tree["spec"] = b // Istio's types encode themselves
	case *object.Ban:
		spec := map[string]any{"identity": b.Identity}
		if b.Reason != "" {
			spec["reason"] = b.Reason
		}
		if !b.Until.IsZero() {
			spec["until"] = b.Until.UTC().Format(time.RFC3339)
		}
		tree["spec"] = spec
	case *object.Pod, *object.Node:
		tree["spec"] = elsewhere
	case *object.Credential, nil:
		switch o.Key.Kind {
		case "Secret", "ConfigMap":
			tree["data"] = elsewhere
		}
	}
	return json.Marshal(tree)
}

// isWhole reports whether a body is kept as it was decoded.
func isWhole(body any) bool {
	switch body.(type) {
	case *corev1.Endpoints: //nolint:staticcheck // users have them
		return true
	case *corev1.Service, *corev1.ConfigMap, *discoveryv1.EndpointSlice, *networkingv1.Ingress, *networkingv1.IngressClass:
		return true
	}
	return false
}
