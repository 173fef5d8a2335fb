package whole

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	security "istio.io/api/security/v1beta1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/routeorder"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkConditions finds conditions in the status of objects of the mesh that are not true.
func checkConditions(r *run) {
	for _, o := range r.objects {
		if !strings.HasSuffix(o.Key.Group, ".istio.io") && o.Key.Group != groupGateway {
			continue
		}
		status, _ := o.doc.Tree["status"].(map[string]any)
		list, _ := status["conditions"].([]any)
		for i, item := range list {
			c, _ := item.(map[string]any)
			if c["status"] == "False" {
				r.report(o, finding.ConditionFalse, fmt.Sprintf("status.conditions[%d]", i), c["type"],
					fmt.Sprintf("is false: %v: %v", c["reason"], c["message"]), "mend what the message says")
			}
		}
	}
}

// checkJWKS finds sources of token keys that cannot work, or that let somebody else choose the keys.
func checkJWKS(r *run) {
	for o, ra := range bodies[*security.RequestAuthentication](r, "RequestAuthentication") {
		for i, rule := range ra.GetJwtRules() {
			field := fmt.Sprintf("spec.jwtRules[%d].jwksUri", i)
			if rule.GetJwksUri() == "" {
				if rule.GetJwks() == "" {
					r.report(o, finding.JWKSTrap, fmt.Sprintf("spec.jwtRules[%d]", i), rule.GetIssuer(),
						"names no keys: they are looked for at the issuer's OpenID document, which must be reachable from the control plane", "set jwksUri")
				}
				continue
			}
			u, err := url.Parse(rule.GetJwksUri())
			if err != nil {
				continue
			}
			address, err := netip.ParseAddr(u.Hostname())
			switch {
			case u.Hostname() == "localhost" || err == nil && (address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsUnspecified()):
				r.report(o, finding.JWKSTrap, field, rule.GetJwksUri(), "names the machine of the control plane itself: such addresses are not fetched",
					"name the issuer's host")
			case u.Scheme == "http":
				r.report(o, finding.JWKSTrap, field, rule.GetJwksUri(), "is fetched without TLS: who is on the way chooses the keys", "use https")
			}
		}
	}
}

// minimumGatewayAPI is the bundle of the Gateway API whose kinds are served as Istio of this version expects.
var minimumGatewayAPI = version.MustParseSemantic("v1.4.0")

// checkGatewayAPI finds CRDs of the Gateway API that are too old.
func checkGatewayAPI(r *run) {
	for _, o := range r.kind("CustomResourceDefinition") {
		const name = "gateway.networking.k8s.io/bundle-version"
		bundle, there := o.Annotations[name]
		if !strings.HasSuffix(o.Key.Name, "."+groupGateway) || !there {
			continue
		}
		if v, err := version.ParseSemantic(bundle); err == nil && v.LessThan(minimumGatewayAPI) {
			r.report(o, finding.GatewayAPIOld, manifest.Field("metadata.annotations", name), bundle, "is older than "+minimumGatewayAPI.String(),
				"apply the CRDs of a newer bundle")
		}
	}
}

// checkAttachedRoutes finds matches of the Gateway API that are never reached, and what routes of files take from
// others.
func checkAttachedRoutes(r *run) {
	var objects []routeorder.Object
	for _, o := range r.objects {
		if o.Valid != nil && routeorder.Reads(o.Key) {
			objects = append(objects, routeorder.Object{Object: o.Valid, File: o.doc.File})
		}
	}
	for _, f := range routeorder.Analyze(routeorder.Config{Domain: r.cfg.Domain, Now: r.cfg.Now}, objects) {
		r.report(r.objects[f.Key], f.Code, f.Field, nil, f.Reason, f.Remedy)
	}
}

// deprecatedFields lists the fields of an object that Istio's API calls deprecated.
func deprecatedFields(o *Object) object.Problems {
	m, ok := o.Body.(proto.Message)
	if !ok {
		return nil
	}
	var out object.Problems
	walkDeprecated(m.ProtoReflect(), "spec", func(field string, f protoreflect.FieldDescriptor) {
		out = append(out, object.Problem{Field: field, Reason: "is deprecated", Remedy: replacements[string(f.FullName())]})
	})
	slices.SortFunc(out, func(a, b object.Problem) int { return strings.Compare(a.Field, b.Field) })
	return out
}

// replacements say what to write in place of deprecated fields.
var replacements = map[string]string{
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay.percent":                        "use percentage",
	"istio.networking.v1alpha3.HTTPRoute.mirror_percent":                                "use mirrorPercentage",
	"istio.networking.v1alpha3.CorsPolicy.allow_origin":                                 "use allowOrigins",
	"istio.networking.v1alpha3.OutlierDetection.consecutive_errors":                     "use consecutiveGatewayErrors or consecutive5xxErrors",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.minimum_ring_size": "use ringHash.minimumRingSize",
	"istio.networking.v1alpha3.Port.target_port":                                        "remove it: it has no effect",
	"istio.networking.v1alpha3.SidecarPort.target_port":                                 "remove it: it has no effect",
}

func walkDeprecated(m protoreflect.Message, path string, found func(string, protoreflect.FieldDescriptor)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := manifest.Field(path, f.JSONName())
		if o, ok := f.Options().(*descriptorpb.FieldOptions); ok && o.GetDeprecated() {
			found(at, f)
		}
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
					walkDeprecated(e.Message(), manifest.Field(at, k.String()), found)
					return true
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				walkDeprecated(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i), found)
			}
		default:
			walkDeprecated(v.Message(), at, found)
		}
		return true
	})
}

// registry is an endpoint of meshNetworks that names a registry.
type registry struct{ network, registry string }

// registries lists the registries that meshNetworks names and that are no cluster of this mesh, sorted.
func registries(text string) []registry {
	var networks struct {
		Networks map[string]struct {
			Endpoints []struct {
				FromRegistry string `json:"fromRegistry"`
			} `json:"endpoints"`
		} `json:"networks"`
	}
	if yaml.Unmarshal([]byte(text), &networks) != nil {
		return nil
	}
	var out []registry
	for name, n := range networks.Networks {
		for _, e := range n.Endpoints {
			if e.FromRegistry != "" && e.FromRegistry != "Kubernetes" {
				out = append(out, registry{name, e.FromRegistry})
			}
		}
	}
	slices.SortFunc(out, func(a, b registry) int { return strings.Compare(a.network+" "+a.registry, b.network+" "+b.registry) })
	return out
}
