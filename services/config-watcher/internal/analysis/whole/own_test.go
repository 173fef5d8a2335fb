package whole

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

const (
	web = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio-injection: enabled}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: web, image: web}, {name: istio-proxy, image: proxy}]}}
---
`
	bare = `
{apiVersion: v1, kind: Service, metadata: {name: old, namespace: out}, spec: {selector: {app: old}, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: out, labels: {istio-injection: disabled}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: old, namespace: out, labels: {app: old}}, spec: {containers: [{name: old, image: old}]}}
---
`
)

func peer(namespace, name, spec string) string {
	return fmt.Sprintf("{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: %s, namespace: %s}, spec: {%s}}\n---\n",
		name, namespace, spec)
}

func rule(host, policy string) string {
	return fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: r, namespace: shop}, spec: {host: %s, "+
		"%s}}\n---\n", host, policy)
}

// pods are Pods with a sidecar in an injected namespace, of a revision and with an image each, "canary proxy:2".
func pods(of ...string) string {
	text := "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio-injection: enabled}}}\n---\n"
	for i, pod := range of {
		revision, image, _ := strings.Cut(pod, " ")
		text += fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d, namespace: shop, annotations: {istio.io/rev: %s}}, spec: "+
			"{containers: [{name: istio-proxy, image: '%s'}]}}\n---\n", i, revision, image)
	}
	return text
}

// injectorOfOne writes version 1 of the proxy.
const injectorOfOne = `{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-sidecar-injector, namespace: istio-system}, data: {values: '{"global": {"hub": "docker.io/istio", "tag": "1"}}'}}`

// TestOwnCodes has a good and a bad case for each code that Istio has no message for; want lists "code field".
func TestOwnCodes(t *testing.T) {
	const tls = "MutualTLSMismatch spec.trafficPolicy.tls"
	disable, mutual := "trafficPolicy: {tls: {mode: DISABLE}}", "trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}"
	strict := peer("istio-system", "default", "mtls: {mode: STRICT}")
	service := func(spec string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: ext, namespace: shop}, spec: {type: ExternalName, ports: [{name: http, port: " +
			"80}], " + spec + "}}"
	}
	regex := func(s string) string {
		return web + `{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: v, namespace: shop}, spec: {hosts: [web], http: [{match: [{uri: {regex: "` + s + `"}}], route: [{destination: {host: web}}]}]}}`
	}
	jwt := func(rules string) string {
		return web + "{apiVersion: security.istio.io/v1, kind: RequestAuthentication, metadata: {name: j, namespace: shop}, spec: {jwtRules: " +
			"[{issuer: i, " + rules + "}]}}"
	}
	access := func(app string) string {
		return "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: a, namespace: shop}, spec: {selector: " +
			"{matchLabels: {app: " + app + "}}}}"
	}
	const enforced = "PolicyNotEnforced spec.selector.matchLabels"
	asked := func(provider, rule string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, labels: {app: a}}, spec: {containers: [{name: istio-proxy, " +
			"image: a, ports: [{name: db, containerPort: 5432}]}]}}\n---\n{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, " +
			"spec: {selector: {app: a}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-db, port: 90, targetPort: db}]}}\n---\n" +
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'extensionProviders: [{name: http, " +
			"envoyExtAuthzHttp: {service: a.shop.svc.cluster.local, port: 80}}, {name: grpc, envoyExtAuthzGrpc: {service: " +
			"a.shop.svc.cluster.local, port: 80}}]'}}\n---\n{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: a, " +
			"namespace: shop}, spec: {selector: {matchLabels: {app: a}}, action: CUSTOM, provider: {name: " + provider + "}, rules: [" + rule + "]}}"
	}
	const proxyless = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, labels: {app: a}, annotations: " +
		"{inject.istio.io/templates: grpc-agent}}, spec: {containers: [{name: istio-proxy, image: a}]}}\n---\n"
	patch := func(spec string) string {
		return web + "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: e, namespace: shop}, spec: {priority: 1, " +
			"configPatches: [{" + spec + "}]}}"
	}
	discovery := func(selectors string) string {
		return web + "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'discoverySelectors: [" +
			selectors + "]'}}"
	}
	ingress := func(class, service string) string {
		return "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: shop}, spec: {ingressClassName: " + class +
			", rules: [{http: {paths: [{path: /, pathType: Prefix, backend: {service: {" + service + "}}}]}}]}}"
	}
	const lua = `patch: {operation: INSERT_BEFORE, value: {name: envoy.filters.http.lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}`
	entry := func(labels, spec string) string {
		return web + "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w, namespace: shop}, spec: {address: " +
			"192.0.2.1, " + spec + ", labels: {" + labels + "}}}"
	}
	for name, tc := range map[string]struct {
		yaml string
		want []string
	}{
		"plain text to a strict mesh":     {web + strict + rule("web", disable), []string{tls}},
		"plain text to a permissive mesh": {web + rule("web", disable), nil},
		"mutual TLS to a strict mesh":     {web + strict + rule("web", mutual), nil},
		"mutual TLS to a mesh without": {web + peer("istio-system", "default", "mtls: {mode: DISABLE}") + rule("web", mutual),
			[]string{tls}},
		"mutual TLS to a Pod outside": {web + bare + rule("old.out.svc.cluster.local", mutual), []string{tls}},
		"plain text to a Pod outside": {web + bare + strict + rule("old.out.svc.cluster.local", disable), nil},
		"the namespace's counts": {web + strict + peer("shop", "default", "mtls: {mode: PERMISSIVE}") +
			rule("web", disable), nil},
		"the workload's counts": {web + peer("shop", "web", "selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}") +
			rule("web", disable), []string{tls}},
		"the port's counts": {web + strict +
			peer("shop", "web", "selector: {matchLabels: {app: web}}, portLevelMtls: {8080: {mode: PERMISSIVE}}") + rule("web", disable), nil},
		"of a port": {web + strict +
			rule("web", "trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}]}"),
			[]string{"MutualTLSMismatch spec.trafficPolicy.portLevelSettings[0].tls"}},
		"a rule of the Gateway API twice": {`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: shop},
spec: {gatewayClassName: istio, listeners: [{name: l, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: g}], rules: [{}, {}]}}
`, []string{"AttachedRouteUnreachable spec.rules[1].matches[0]"}},
		"of a subset that selects nobody": {web + strict +
			rule("web", "subsets: [{name: v, labels: {app: web, version: v9}, trafficPolicy: {tls: {mode: DISABLE}}}]"),
			[]string{"SubsetSelectsNothing spec.subsets[0].labels"}},
		"two policies of a namespace": {web + peer("shop", "a", "mtls: {mode: STRICT}") +
			peer("shop", "b", "mtls: {mode: STRICT}"), []string{"PeerAuthenticationsConflict spec", "PeerAuthenticationsConflict spec"}},
		"alias of an address": {web + service("externalName: 192.0.2.1"),
			[]string{"ExternalNameTrap spec.externalName"}},
		"alias of itself": {web + service("externalName: ext.shop.svc.cluster.local"),
			[]string{"ExternalNameTrap spec.externalName"}},
		"alias of nothing": {web + service("externalName: nowhere.shop.svc.cluster.local"),
			[]string{"ExternalNameTrap spec.externalName"}},
		"alias of a Service":             {web + service("externalName: web.shop.svc.cluster.local"), nil},
		"alias of a host":                {web + service("externalName: www.example.com"), nil},
		"expression without a wildcard":  {regex("/api"), []string{"RegexTrap spec.http[0].match[0].uri.regex"}},
		"expression like a file pattern": {regex("/api/*"), []string{"RegexTrap spec.http[0].match[0].uri.regex"}},
		"expression":                     {regex("/api/.*"), nil},
		"keys without TLS": {jwt("jwksUri: http://i.example.com/keys"),
			[]string{"JWKSTrap spec.jwtRules[0].jwksUri"}},
		"keys of the control plane itself": {jwt("jwksUri: https://127.0.0.1/keys"),
			[]string{"JWKSTrap spec.jwtRules[0].jwksUri"}},
		"no keys": {jwt("audiences: [a]"), []string{"JWKSTrap spec.jwtRules[0]"}},
		"policy of a workload without a proxy": {pods("canary proxy:1") + "{apiVersion: v1, kind: Pod, metadata: {name: open, namespace: shop, " +
			"labels: {app: open, sidecar.istio.io/inject: 'false'}}, spec: {containers: [{name: a, image: a}]}}\n---\n" +
			access("open"), []string{enforced}},
		"policy of a workload whose ports pass the proxy by": {"{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, annotations: " +
			"{traffic.sidecar.istio.io/excludeInboundPorts: '80'}, labels: {app: a}}, spec: {containers: [{name: istio-proxy, image: a}]}}\n---\n" +
			access("a"), []string{enforced}},
		"a provider for HTTP is asked about any port": {asked("http", "{}"), []string{enforced}},
		"about the port of TCP":                       {asked("http", "{to: [{operation: {ports: ['5432']}}]}"), []string{enforced}},
		"about all but one port":                      {asked("http", "{to: [{operation: {notPorts: ['8080']}}]}"), []string{enforced}},
		"about all but the port of TCP":               {asked("http", "{to: [{operation: {notPorts: ['5432']}}]}"), nil},
		"about the port of HTTP":                      {asked("http", "{to: [{operation: {ports: ['8080']}}]}"), nil},
		"about paths":                                 {asked("http", "{to: [{operation: {paths: [/a]}}]}"), nil},
		"about paths and ports":                       {asked("http", "{to: [{operation: {paths: [/a]}}, {operation: {ports: ['5432']}}]}"), []string{enforced}},
		"a provider for gRPC is asked about any port": {asked("grpc", "{}"), nil},
		"tokens of a proxyless server": {proxyless + "{apiVersion: security.istio.io/v1, kind: RequestAuthentication, metadata: {name: j, " +
			"namespace: shop}, spec: {selector: {matchLabels: {app: a}}, jwtRules: [{issuer: i, jwksUri: https://i.example.com/keys}]}}",
			[]string{"TokensNotVerified spec.selector.matchLabels"}},
		"callers of a proxyless server": {proxyless + access("a"), nil},
		"keys":                          {jwt("jwksUri: https://i.example.com/keys"), nil},
		"patch by an old name of Envoy's": {
			patch("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.http_connection_manager}}}}, " + lua),
			[]string{"EnvoyFilterInternals spec", "PatchInternals spec.configPatches[0].match.listener.filterChain.filter.name"}},
		"patch by a name of Istio's": {
			patch("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, " +
				"subFilter: {name: istio.stats}}}}}, " + lua),
			[]string{"EnvoyFilterInternals spec", "PatchInternals spec.configPatches[0].match.listener.filterChain.filter.subFilter.name"}},
		"patch by a name of today": {
			patch("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}, " + lua),
			[]string{"EnvoyFilterInternals spec"}},
		"network without a gateway": {entry("app: web", "network: far"), []string{"NetworkWithoutGateway "}},
		"network by a label": {entry("app: web, topology.istio.io/network: far", "serviceAccount: a"),
			[]string{"NetworkWithoutGateway "}},
		"network with a gateway": {entry("app: web", "network: far") +
			"\n---\n{apiVersion: v1, kind: Service, metadata: {name: east-west, namespace: shop, labels: {topology.istio.io/network: far}}, spec: " +
			"{selector: {app: web}, ports: [{name: tls, port: 15443}]}}", nil},
		"entry for the host of a Service": {web +
			"{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: s, namespace: shop}, spec: {hosts: " +
			"[web.shop.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: " +
			"192.0.2.1}]}}", []string{"ServiceHidden spec.hosts[0]"}},
		"sidecar where nothing has a proxy": {bare +
			"{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: s, namespace: out}, spec: {egress: [{hosts: ['./*']}]}}",
			[]string{"NamespaceWithoutProxies metadata.namespace"}},
		"sidecar where Pods would get one": {web +
			"{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: s, namespace: shop}, spec: {egress: [{hosts: ['./*']}]}}", nil},
		"ingress of somebody else": {web + ingress("nginx", "name: ghost, port: {number: 80}"),
			[]string{"IngressClassNotFound spec.ingressClassName"}},
		"ingress of a class of the mesh": {web + ingress("mine", "name: ghost, port: {number: 80}") +
			"\n---\n{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: mine}, spec: {controller: istio.io/ingress-controller}}",
			[]string{"HostNotFound spec.rules[0].http.paths[0].backend.service.name", "NothingSelected spec"}},
		"service that selects nothing": {web +
			"{apiVersion: v1, kind: Service, metadata: {name: ghost, namespace: shop}, spec: {selector: {app: ghost}, ports: [{name: http, port: " +
			"80}]}}", []string{"ServiceSelectsNothing spec.selector"}},
		"wrong values of annotations": {web +
			`{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, annotations: {sidecar.istio.io/proxyCPU: lots, sidecar.istio.io/interceptionMode: ALL, traffic.sidecar.istio.io/includeOutboundIPRanges: "10.0.0.0/8,x", status.sidecar.istio.io/port: "-1", proxy.istio.io/config: "nosuchfield: 1", sidecar.istio.io/rewriteAppHTTPProbers: maybe}}, spec: {containers: [{name: istio-proxy, image: proxy}]}}`, slices.Repeat([]string{"AnnotationInvalid"}, 6)},
		"right values of annotations": {web +
			`{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop, annotations: {sidecar.istio.io/proxyCPU: 100m, sidecar.istio.io/interceptionMode: TPROXY, traffic.sidecar.istio.io/includeOutboundIPRanges: "10.0.0.0/8,192.0.2.0/24", status.sidecar.istio.io/port: "0", proxy.istio.io/config: "concurrency: 1", traffic.sidecar.istio.io/includeInboundPorts: "*"}}, spec: {containers: [{name: istio-proxy, image: proxy}]}}`, nil},
		"discovery of labels that nothing has": {discovery("{matchLabels: {mesh: yes-please}}"),
			[]string{"DiscoverySelectsNothing data.mesh.discoverySelectors[0]"}},
		"discovery of a namespace's name": {
			discovery("{matchLabels: {kubernetes.io/metadata.name: shop}}, {matchExpressions: [{key: istio-injection, operator: Exists}]}"), nil},
		"proxies of two revisions in one place": {pods("default docker.io/istio/proxyv2:1", "canary docker.io/istio/proxyv2:2") +
			injectorOfOne, nil},
		"a proxy of another version than its revision": {pods("default docker.io/istio/proxyv2:1", "canary proxy:1", "canary proxy:2",
			"canary proxy:2") + injectorOfOne, []string{"ProxyVersionSkew spec.containers[0].image"}},
		"a proxy of another version than its injector": {pods("default docker.io/istio/proxyv2:2") + injectorOfOne,
			[]string{"ProxyVersionSkew spec.containers[0].image"}},
		"proxies of two versions in one place": {web +
			"{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: shop}, spec: {containers: [{name: istio-proxy, image: " +
			"proxy}]}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: shop}, spec: {initContainers: [{name: istio-proxy, image: " +
			"older}], containers: [{name: c, image: c}]}}", []string{"ProxyVersionSkew spec.initContainers[0].image"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, m := range analyzed(t, Config{}, nil, tc.yaml).Messages {
				if m.Code == finding.AnnotationInvalid {
					m.Field = ""
				}
				got = append(got, string(m.Code)+" "+m.Field)
				if m.Reason == "" || m.Remedy == "" || m.Location == "" {
					t.Errorf("incomplete: %+v", m)
				}
			}
			slices.Sort(got)
			if !slices.EqualFunc(got, tc.want, func(a, b string) bool { return a == b || strings.TrimSpace(a) == b }) {
				t.Errorf("told %q, want %q", got, tc.want)
			}
		})
	}
}

func TestDatesOfCertificates(t *testing.T) {
	ca := testkit.PKI(t)
	chain, key := ca.NewServer("a.example.com")
	secret := fmt.Sprintf("---\n{apiVersion: v1, kind: Secret, metadata: {name: pair, namespace: shop}, stringData: {tls.crt: %q, tls.key: "+
		"%q}}\n", chain, key)
	gateway := web + `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: shop}
spec: {selector: {app: web}, servers: [{port: {number: 8080, name: https, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, credentialName: pair}}]}
` + secret
	ingress := edge + secret
	told := func(text string, at time.Time) string {
		var out []string
		for _, m := range analyzed(t, Config{Now: at}, nil, text).Messages {
			if strings.Contains(m.Error(), "PRIVATE") {
				t.Errorf("told a key: %v", m)
			}
			out = append(out, string(m.Code)+" "+m.Field)
		}
		return strings.Join(out, ",")
	}
	const field = " spec.servers[0].tls.credentialName"
	end := notAfter(t, chain)
	for name, tc := range map[string]struct {
		at   time.Time
		want string
	}{
		"an hour before its end": {end.Add(-time.Hour), "CredentialExpiring" + field},
		"after its end":          {end.Add(time.Minute), "CredentialExpired" + field},
		"before its begin":       {end.Add(-100 * 365 * 24 * time.Hour), "CredentialExpired" + field},
	} {
		if got := told(gateway, tc.at); got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
		if got, want := told(ingress, tc.at), strings.ReplaceAll(tc.want, field, " spec.tls[0].secretName"); got != want {
			t.Errorf("%s, of an Ingress: %q", name, got)
		}
	}
}

// edge is an Ingress of the mesh, with its gateway.
const edge = web + `
{apiVersion: v1, kind: Pod, metadata: {name: edge, namespace: shop, labels: {istio: ingressgateway}}, spec: {containers: [{name: istio-proxy, image: proxy}]}}
---
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: mine}, spec: {controller: istio.io/ingress-controller}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, namespace: shop}
spec: {ingressClassName: mine, tls: [{secretName: pair}], defaultBackend: {service: {name: web, port: {number: 80}}}}
`

// A Secret that is refused is not told to be missing.
func TestRefusedSecretsAreThere(t *testing.T) {
	var got []string
	for _, m := range analyzed(t, Config{}, nil,
		edge+"---\n{apiVersion: v1, kind: Secret, metadata: {name: pair, namespace: shop}, type: kubernetes.io/tls, stringData: {tls.crt: "+
			"x}}").Messages {
		got = append(got, string(m.Code)+" "+m.Object)
	}
	slices.Sort(got)
	if got = slices.Compact(got); strings.Join(got, ", ") != "CredentialUnusable Ingress shop/i, ObjectRefused Secret shop/pair" {
		t.Errorf("told %q", got)
	}
}

func notAfter(t *testing.T, chain []byte) time.Time {
	t.Helper()
	block, _ := pem.Decode(chain)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert.NotAfter
}
