package differential_test

import (
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/authz"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// Extensions that nodes list: all that policies need or use, as Envoy does, those of an Envoy without filter chains,
// and those of an Envoy that verifies no token.
var (
	complete = []string{"envoy.filters.http.filter_chain", "envoy.filters.http.rbac", "envoy.filters.http.ext_authz", "envoy.filters.http.jwt_authn",
		"envoy.access_loggers.stats"}
	unchained = complete[1:]
	tokenless = complete[:3]
)

// listing makes a node list the extensions.
func listing(n *core.Node, extensions []string) *core.Node {
	for _, name := range extensions {
		n.Extensions = append(n.Extensions, &core.Extension{Name: name})
	}
	return n
}

// scopes of policies: a namespace, or of the root namespace the mesh; a workload; gateways.
var scopes = []string{
	"{}", "{}", "selector: {matchLabels: {app: d}}", "selector: {matchLabels: {app: e}}", "selector: {matchLabels: {istio: ingressgateway}}",
	"targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}]",
}

// drawAuthorizationPolicy draws a policy of every action, for HTTP and TCP, which may be tried only, or closed.
func drawAuthorizationPolicy(t *rapid.T, ns, name string, n int) *configv1.Resource {
	spec := &security.AuthorizationPolicy{}
	fill(rapid.SampledFrom(scopes).Draw(t, "for"), spec)
	fill(rapid.SampledFrom([]string{
		"action: ALLOW", "action: DENY", "action: DENY", "action: AUDIT", "{action: CUSTOM, provider: {name: asked}}",
		"{action: CUSTOM, provider: {name: called}}", "{action: CUSTOM, provider: {name: missing}}",
	}).Draw(t, "action"), spec)
	fill(rapid.SampledFrom([]string{
		"{}", "rules: [{}]",
		"rules: [{from: [{source: {namespaces: ['" + ns + "']}}], to: [{operation: {paths: [/" + ns + "]}}]}]",
		"rules: [{from: [{source: {principals: [cluster.local/ns/" + ns + "/sa/default]}}]}]",
		"rules: [{from: [{source: {requestPrincipals: ['*']}}], when: [{key: 'request.auth.claims[a]', values: [b]}]}]",
		"rules: [{to: [{operation: {ports: ['3306']}}]}, {when: [{key: 'request.headers[x]', notValues: ['" + ns + "']}]}]",
	}).Draw(t, "rules"), spec)
	return meshtest.Config(mesh.KindAuthorizationPolicy, ns, name, spec, meshtest.Aged(time.Duration(n)), meshtest.ExportedTo(ns),
		drawAnnotation(t))
}

// drawAnnotation makes a policy dry run, or held closed, now and then.
func drawAnnotation(t *rapid.T) func(*configv1.IstioConfig) {
	kind := rapid.IntRange(0, 5).Draw(t, "dry run or closed")
	return func(c *configv1.IstioConfig) {
		switch kind {
		case 4:
			c.Annotations = map[string]string{authz.DryRunAnnotation: "true"}
		case 5:
			c.HeldClosed = true
		}
	}
}

// usableKey is the public key of RFC 7515, appendix A.3.
const usableKey = `{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",` +
	`"y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`

// drawRequestAuthentication draws one with up to two issuers, with keys and without.
func drawRequestAuthentication(t *rapid.T, ns, name string, n int) *configv1.Resource {
	spec := &security.RequestAuthentication{}
	fill(rapid.SampledFrom(scopes).Draw(t, "for"), spec)
	for range rapid.IntRange(0, 2).Draw(t, "issuers") {
		rule := &security.JWTRule{Issuer: rapid.SampledFrom([]string{ns, "issuer.example.com"}).Draw(t, "issuer")}
		rule.Jwks = rapid.SampledFrom([]string{usableKey, `{"keys":[]}`, ""}).Draw(t, "keys")
		rule.FromHeaders = rapid.SampledFrom([][]*security.JWTHeader{nil, {{Name: "x-token", Prefix: "Token "}}}).Draw(t, "place")
		spec.JwtRules = append(spec.JwtRules, rule)
	}
	return meshtest.Config(mesh.KindRequestAuthentication, ns, name, spec, meshtest.Aged(time.Duration(n)), meshtest.ExportedTo(ns),
		drawAnnotation(t))
}

// fill merges YAML into a message. Broken YAML is a broken test.
func fill(text string, m proto.Message) {
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		panic(err)
	}
	part := m.ProtoReflect().New().Interface()
	if err := protojson.Unmarshal(raw, part); err != nil {
		panic(err)
	}
	proto.Merge(m, part)
}

// providers are the authorization providers that policies name: one of each type. Their services are of one namespace,
// so that no other can make the name mean another service.
func providers(n int) []*meshv1alpha1.MeshConfig_ExtensionProvider {
	return []*meshv1alpha1.MeshConfig_ExtensionProvider{
		{Name: "asked", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp{
			EnvoyExtAuthzHttp: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider{
				Service: "x/" + hosts[n%2], Port: 80, FailOpen: n%3 == 0,
			},
		}},
		{Name: "called", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{
				Service: "istio-system/" + hosts[3], Port: 8080,
			},
		}},
	}
}
