package route

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// reader is what builder reads about destinations and about the class.
type reader interface {
	Namespace() string
	Labels() map[string]string
	FollowExternalName(hostname string) *configv1.Service
	DestinationRule(hostname string) *mesh.DestinationRule
}

// builder turns the HTTP routes of VirtualServices into Envoy's, for one listener port of one class.
type builder struct {
	reader reader
	mesh   *meshv1alpha1.MeshConfig
	// gateways that the routes are for: "mesh", or "<namespace>/<name>" of Gateways.
	gateways map[string]bool
	// port is the port that the client addressed. It is also the destination's port if neither the route nor the
	// service decides it.
	port uint32
	// secure is true if the listener terminates TLS.
	secure bool
	// domain is that of the virtual host if it has but one, without a wildcard; else "".
	domain string
	// withoutRewrites is true for clients that rewrite nothing.
	withoutRewrites bool
}

// virtualService returns the routes of a VirtualService for this port, source and gateway, in order, up to the first
// that matches everything. There may be none, which is no error.
func (b *builder) virtualService(vs *mesh.VirtualService) ([]*routev3.Route, error) {
	var out []*routev3.Route
	for i, in := range vs.Spec.GetHttp() {
		matches := in.GetMatch()
		if len(matches) == 0 {
			matches = []*networking.HTTPMatchRequest{nil}
		}
		for j, m := range matches {
			if !b.matchesListener(vs, m) {
				continue
			}
			route, err := b.route(virtualServiceOrigin(vs), in, m)
			if err != nil {
				where := fmt.Sprintf("http[%d]", i)
				if m != nil {
					where = fmt.Sprintf("http[%d].match[%d]", i, j)
				}
				return nil, fmt.Errorf("VirtualService %s/%s: %s.%w", vs.Key.Namespace, vs.Key.Name, where, err)
			}
			if deadline := deadlineRoute(route); deadline != nil {
				out = append(out, deadline)
			}
			out = append(out, route)
			if matchesEverything(route.GetMatch()) {
				return out, nil
			}
		}
	}
	return out, nil
}

// hasRoutes reports whether virtualService returns any route.
func (b *builder) hasRoutes(vs *mesh.VirtualService) bool {
	return slices.ContainsFunc(vs.Spec.GetHttp(), func(in *networking.HTTPRoute) bool {
		return len(in.GetMatch()) == 0 ||
			slices.ContainsFunc(in.GetMatch(), func(m *networking.HTTPMatchRequest) bool { return b.matchesListener(vs, m) })
	})
}

// matchesListener reports whether a match is for this port, gateway and source, which do not depend on the request.
func (b *builder) matchesListener(vs *mesh.VirtualService, m *networking.HTTPMatchRequest) bool {
	if m == nil {
		return true
	}
	if m.GetPort() != 0 && m.GetPort() != b.port {
		return false
	}
	for _, gateway := range m.GetGateways() {
		if name := contract.GatewayName(gateway, vs.Key.Namespace); b.gateways[name] {
			// sourceLabels and sourceNamespace limit sidecars only.
			return name != contract.MeshGateway || b.matchesSource(m)
		}
	}
	return len(m.GetGateways()) == 0 && b.matchesSource(m)
}

// matchesSource reports whether the class is a source that a match allows.
func (b *builder) matchesSource(m *networking.HTTPMatchRequest) bool {
	if len(m.GetSourceLabels()) > 0 && !mesh.Matches(m.GetSourceLabels(), b.reader.Labels()) {
		return false
	}
	return m.GetSourceNamespace() == "" || m.GetSourceNamespace() == b.reader.Namespace()
}

// origin is the object that a route is built from.
type origin struct {
	name     string
	metadata *corev3.Metadata
}

func virtualServiceOrigin(vs *mesh.VirtualService) origin {
	return origin{vs.Key.Name, originMetadata("networking.istio.io", "virtual-service", vs.Key.Namespace, vs.Key.Name)}
}

func (b *builder) route(from origin, in *networking.HTTPRoute, m *networking.HTTPMatchRequest) (*routev3.Route, error) {
	match, err := requestMatch(m)
	if err != nil {
		return nil, err
	}
	operations, err := headers(in.GetHeaders())
	if err != nil {
		return nil, err
	}
	out := &routev3.Route{
		Name:                    routeName(in, m),
		Match:                   match,
		StatPrefix:              m.GetStatPrefix(),
		Metadata:                from.metadata,
		RequestHeadersToAdd:     operations.requestAdd,
		RequestHeadersToRemove:  operations.requestRemove,
		ResponseHeadersToAdd:    operations.responseAdd,
		ResponseHeadersToRemove: operations.responseRemove,
	}
	if err := b.action(out, in, operations.authority); err != nil {
		return nil, err
	}
	if out.TypedPerFilterConfig, err = filterOverrides(in); err != nil {
		return nil, err
	}
	out.Decorator = &routev3.Decorator{Operation: b.operation(out, from.name)}
	// The route configuration is validated too, but that error would not name the VirtualService.
	if err := validate(out); err != nil {
		return nil, err
	}
	return out, nil
}

func (b *builder) action(out *routev3.Route, in *networking.HTTPRoute, authority string) error {
	switch {
	case in.GetRedirect() != nil:
		redirect, err := b.redirect(in.GetRedirect())
		if err != nil {
			return fmt.Errorf("redirect.%w", err)
		}
		out.Action = &routev3.Route_Redirect{Redirect: redirect}
	case in.GetDirectResponse() != nil:
		out.Action = &routev3.Route_DirectResponse{DirectResponse: directResponse(in.GetDirectResponse())}
	default:
		action, err := b.forward(out, in, authority)
		if err != nil {
			return err
		}
		out.Action = &routev3.Route_Route{Route: action}
	}
	return nil
}

func filterOverrides(in *networking.HTTPRoute) (map[string]*anypb.Any, error) {
	out := map[string]*anypb.Any{}
	if in.GetFault() != nil {
		fault, err := fault(in.GetFault())
		if err != nil {
			return nil, fmt.Errorf("fault.%w", err)
		}
		if out[hcm.FaultFilter], err = typedconfig.Checked(fault); err != nil {
			return nil, fmt.Errorf("fault: %w", err)
		}
	}
	if in.GetCorsPolicy() != nil {
		cors, err := cors(in.GetCorsPolicy())
		if err != nil {
			return nil, fmt.Errorf("corsPolicy.%w", err)
		}
		if out[hcm.CORSFilter], err = typedconfig.Checked(cors); err != nil {
			return nil, fmt.Errorf("corsPolicy: %w", err)
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

func routeName(in *networking.HTTPRoute, m *networking.HTTPMatchRequest) string {
	if m.GetName() != "" {
		return in.GetName() + "." + m.GetName()
	}
	return in.GetName()
}

// operation names the route in traces by its destination, or else by the object it is from, and by its path.
func (b *builder) operation(route *routev3.Route, object string) string {
	var path string
	switch p := route.GetMatch().GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		path = p.Prefix + "*"
	case *routev3.RouteMatch_PathSeparatedPrefix:
		path = p.PathSeparatedPrefix + "*"
	case *routev3.RouteMatch_Path:
		path = p.Path
	case *routev3.RouteMatch_SafeRegex:
		path = p.SafeRegex.GetRegex()
	}
	if c, ok := resourcename.ParseCluster(route.GetRoute().GetCluster()); ok {
		return fmt.Sprintf("%s:%d%s", c.Hostname, c.Port, path)
	}
	return fmt.Sprintf("%s:%d%s", object, b.port, path)
}

// originMetadata names the object that a resource was built from, where Istio's tools read it.
func originMetadata(group, kind, namespace, name string) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"istio": {Fields: map[string]*structpb.Value{
			"config": structpb.NewStringValue(fmt.Sprintf("/apis/%s/v1/namespaces/%s/%s/%s", group, namespace, kind, name)),
		}},
	}}
}
