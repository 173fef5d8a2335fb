package running

import (
	"fmt"
	"strings"
	"testing"
)

// TestShadowed has objects in the order of their creation: the first is the oldest.
func TestShadowed(t *testing.T) {
	v := func(ns, name, spec string) string { return networkingObject("VirtualService", ns, name, spec) }
	d := func(name, spec string) string { return networkingObject("DestinationRule", "shop", name, spec) }
	g := func(name, spec string) string { return networkingObject("Gateway", "edge", name, spec) }
	http := func(name, hosts, routes string) string {
		return v("shop", name, "{hosts: ["+hosts+"], http: ["+routes+"]}")
	}
	const route = "route: [{destination: {host: reviews}}]"
	at := func(name, match string) string {
		return v("shop", name, "{hosts: [a.example.com], gateways: [edge/front], http: [{"+match+route+"}]}")
	}
	tls := func(port int, protocol, host, tls string) string {
		return fmt.Sprintf("{selector: {istio: ingress}, servers: [{port: {number: %d, name: p, protocol: %s}, hosts: [%s], tls: {%s}}]}", port,
			protocol, host, tls)
	}
	const files = "mode: SIMPLE, serverCertificate: /a, privateKey: /b"
	for name, tc := range map[string]struct {
		yaml []string
		want []string
		says string
	}{
		"one host": {[]string{http("a", "reviews", "{"+route+"}"), http("b", "reviews.shop.svc.cluster.local", "{"+route+"}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[0]"}, "VirtualService shop/a is older"},
		"two hosts": {[]string{http("a", "reviews", "{"+route+"}"), http("b", "other.example.com, reviews", "{"+route+"}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[1]"}, ""},
		"host and wildcard": {[]string{http("a", `"*.svc.cluster.local"`, "{"+route+"}"), http("b", "reviews", "{"+route+"}")}, nil, ""},
		"host of a gateway": {[]string{http("a", "a.example.com", "{"+route+"}"), at("b", "")}, nil, ""},
		"ports": {[]string{http("a", "reviews", "{match: [{port: 9080}], "+route+"}"),
			http("b", "reviews", "{match: [{port: 7070}], "+route+"}")}, nil, ""},
		"some ports": {[]string{http("a", "reviews", "{match: [{port: 9080}], "+route+"}"),
			http("b", "reviews", "{match: [{port: 9080, uri: {prefix: /b}}], "+route+"}, {"+route+"}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.http[0]"}, "host reviews.shop.svc.cluster.local"},
		"sources": {[]string{http("a", "reviews", "{match: [{sourceLabels: {app: a}}], "+route+"}"), http("b", "reviews", "{"+route+"}")},
			nil, ""},
		"the same source": {[]string{http("a", "reviews", "{match: [{sourceLabels: {app: a}}], "+route+"}"),
			http("b", "reviews", "{match: [{sourceLabels: {app: a, version: v1}}], "+route+"}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[0]"}, ""},
		"HTTP and TCP": {[]string{http("a", "reviews", "{"+route+"}"), v("shop", "b", "{hosts: [reviews], tcp: [{"+route+"}]}")}, nil, ""},
		"TCP": {[]string{v("shop", "a", "{hosts: [reviews], tcp: [{"+route+"}]}"),
			v("shop", "b", "{hosts: [reviews], tcp: [{match: [{destinationSubnets: [10.0.0.0/8]}], "+route+"}]}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[0]"}, ""},
		"TCP of a subnet": {[]string{v("shop", "a", "{hosts: [reviews], tcp: [{match: [{destinationSubnets: [10.0.0.0/8]}], "+route+"}]}"),
			v("shop", "b", "{hosts: [reviews], tcp: [{"+route+"}]}")}, nil, ""},
		"TLS": {
			[]string{
				v("shop", "a", "{hosts: [www.example.com], tls: [{match: [{sniHosts: [www.example.com]}], route: [{destination: {host: "+
					"www.example.com}}]}]}"),
				v("shop", "b", "{hosts: [www.example.com], tls: [{match: [{sniHosts: [www.example.com]}], route: [{destination: {host: "+
					"www.example.com}}]}]}")}, []string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[0]"}, ""},
		"exported to others": {[]string{v("shop", "a", "{hosts: [reviews], exportTo: [.], http: [{"+route+"}]}"),
			v("bank", "b", "{hosts: [reviews.shop.svc.cluster.local], exportTo: [.], http: [{route: [{destination: {host: ratings}}]}]}")}, nil, ""},
		"exported to some": {[]string{v("shop", "a", "{hosts: [reviews], exportTo: [.], http: [{"+route+"}]}"),
			http("b", "reviews", "{"+route+"}")}, nil, ""},
		"exported to all": {[]string{http("a", "reviews", "{"+route+"}"),
			v("shop", "b", "{hosts: [reviews], exportTo: [.], http: [{"+route+"}]}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[0]"}, ""},
		"delegated": {[]string{v("shop", "part", "{http: [{match: [{uri: {prefix: /a}}], "+route+"}]}"),
			http("a", "reviews", "{delegate: {name: part}}"), http("b", "reviews", "{"+route+"}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[0]"}, ""},
		"delegated to nobody": {[]string{http("a", "reviews", "{delegate: {name: part}}"), http("b", "reviews", "{"+route+"}")},
			[]string{"DelegateNotFound VirtualService shop/a spec.http[0].delegate"}, ""},

		"joined at a gateway": {[]string{at("a", "match: [{uri: {prefix: /a}}], "), at("b", "match: [{uri: {prefix: /b}}], "),
			at("c", "")}, nil, ""},
		"catch-all twice at a gateway": {[]string{at("a", ""), at("b", "match: [{uri: {prefix: /}}], ")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.hosts[0]"}, "at gateway edge/front"},
		"part of a catch-all": {
			[]string{at("a", ""), v("shop", "b", "{hosts: [a.example.com], gateways: [edge/front], http: [{match: [{uri: {exact: /b}}], "+route+
				"}, {"+route+"}]}")},
			[]string{"VirtualServiceShadowed VirtualService shop/b spec.http[1]"}, ""},
		"match for another gateway": {
			[]string{at("a", ""), v("shop", "b", "{hosts: [a.example.com], gateways: [mesh, edge/front], http: [{match: [{gateways: [mesh]}], "+
				route+"}]}")}, nil, ""},

		"rules": {
			[]string{d("a", "{host: ratings.bank.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: RANDOM}}, subsets: [{name: v1}]}"),
				d("b", "{host: ratings.bank.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}, subsets: [{name: v2}, {name: "+
					"v1, labels: {a: b}}]}")},
			[]string{"DestinationRuleShadowed DestinationRule shop/b spec.trafficPolicy",
				"DestinationRuleShadowed DestinationRule shop/b spec.subsets[1]"}, "DestinationRule shop/a"},
		"rules that say the same": {[]string{d("a", "{host: ratings.bank.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: RANDOM}}}"),
			d("b", "{host: ratings.bank.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: RANDOM}}}")}, nil, ""},
		"rules that are joined": {[]string{d("a", "{host: ratings.bank.svc.cluster.local, subsets: [{name: v1}]}"),
			d("b", "{host: ratings.bank.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: RANDOM}}}")}, nil, ""},
		"rules of other namespaces": {
			[]string{networkingObject("DestinationRule", "bank", "a", "{host: ratings, trafficPolicy: {loadBalancer: {simple: RANDOM}}}"),
				d("b", "{host: ratings.bank.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}")}, nil, ""},
		"rules for chosen workloads": {[]string{d("a", "{host: ratings.bank.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: RANDOM}}}"),
			d("b", "{host: ratings.bank.svc.cluster.local, workloadSelector: {matchLabels: {app: a}}, trafficPolicy: {loadBalancer: {simple: "+
				"ROUND_ROBIN}}}")}, nil, ""},

		"protocols of a port": {[]string{g("a", tls(80, "TLS", "b.example.com", files))},
			[]string{"GatewayShadowed Gateway edge/a spec.servers[0].port"}, "Gateway edge/front is older"},
		"another port": {[]string{g("a", tls(443, "TLS", "b.example.com", files))}, nil, ""},
		"HTTP of a port": {
			[]string{g("a", "{selector: {istio: ingress}, servers: [{port: {number: 80, name: http, protocol: HTTP2}, hosts: ['*']}]}")}, nil, ""},
		"protocols of other gateways": {
			[]string{strings.ReplaceAll(g("a", tls(80, "TLS", "b.example.com", files)), "istio: ingress", "istio: egress"),
				"{apiVersion: v1, kind: Pod, metadata: {name: egress-0, namespace: edge, labels: {istio: egress}}, spec: {containers: [{name: a, " +
					"image: b}]}}"}, nil, ""},
		"protocols by another selector": {
			[]string{strings.ReplaceAll(g("a", tls(80, "TLS", "b.example.com", files)), "istio: ingress", "app: ingress")},
			[]string{"GatewayShadowed Gateway edge/a spec.servers[0].port"}, ""},
		"one TLS host": {[]string{g("a", tls(443, "HTTPS", "b.example.com", files)),
			g("b", tls(443, "HTTPS", `"*/B.example.com", c.example.com`, files))},
			[]string{"GatewayShadowed Gateway edge/b spec.servers[0].hosts[0]"}, "terminates TLS for the host on port 443"},
		"TLS passed through twice": {[]string{g("a", tls(443, "TLS", "b.example.com", "mode: PASSTHROUGH")),
			g("b", tls(443, "TLS", "b.example.com", "mode: PASSTHROUGH"))}, nil, ""},
		"TLS terminated and passed": {[]string{g("a", tls(443, "HTTPS", "b.example.com", files)),
			g("b", tls(443, "TLS", "b.example.com", "mode: PASSTHROUGH"))}, []string{"GatewayShadowed Gateway edge/b spec.servers[0].hosts[0]"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append([]string{base}, tc.yaml...)...)
			f.want(tc.want...)
			if all := f.All(); tc.says != "" && (len(all) == 0 || !strings.Contains(all[0].Error(), tc.says)) {
				t.Errorf("%q does not say %q", texts(all), tc.says)
			}
			f.sameFromScratch()
		})
	}
}

// TestFindingsFollowObjects: findings appear and vanish with the objects that they depend on.
func TestFindingsFollowObjects(t *testing.T) {
	f := newFixture(t, base)
	f.Changes()
	f.apply(to("host: late, subset: v1"))
	f.want("HostNotFound VirtualService shop/x spec.http[0].route[0].destination.host")
	if d := f.Changes(); len(d.Appeared) != 1 || len(d.Vanished) != 0 {
		t.Errorf("changes %+v", d)
	}
	f.apply("{apiVersion: v1, kind: Service, metadata: {name: late, namespace: shop}, spec: {ports: [{port: 80}]}}")
	f.want("SubsetNotFound VirtualService shop/x spec.http[0].route[0].destination.subset")
	f.apply(networkingObject("DestinationRule", "istio-system", "late", `{host: "*.shop.svc.cluster.local", subsets: [{name: v1}]}`))
	f.want()
	f.Changes()
	f.apply(networkingObject("DestinationRule", "shop", "late", "{host: late, subsets: [{name: v2}]}"))
	f.want("SubsetNotFound VirtualService shop/x spec.http[0].route[0].destination.subset")
	f.remove("DestinationRule shop/late")
	f.want()
	if d := f.Changes(); len(d.Appeared)+len(d.Vanished) != 0 {
		t.Errorf("what came and went is a change: %+v", d)
	}
	f.remove("Service shop/late")
	f.want("HostNotFound VirtualService shop/x spec.http[0].route[0].destination.host")
	f.remove("VirtualService shop/x")
	f.want()
	known := map[topic]bool{}
	for _, j := range f.analyzed {
		for _, topic := range j.topics {
			known[topic] = true
		}
	}
	if len(f.readers) != len(known) {
		t.Errorf("%d topics are kept, of which objects have read %d", len(f.readers), len(known))
	}

	// The gateway's workload, its Secret, a namespace, the mesh's settings.
	f.remove("Pod edge/ingress-0")
	f.want("NothingSelected Gateway edge/front spec.selector")
	f.apply("{apiVersion: v1, kind: Pod, metadata: {name: ingress-1, namespace: edge, labels: {istio: ingress}}, spec: {containers: [{name: " +
		"a, image: b}]}}")
	f.want()
	f.apply("{apiVersion: v1, kind: Pod, metadata: {name: ingress-1, namespace: edge, labels: {istio: none}}, spec: {containers: [{name: a, " +
		"image: b}]}}")
	f.want("NothingSelected Gateway edge/front spec.selector")
	f.apply("{apiVersion: v1, kind: Pod, metadata: {name: ingress-1, namespace: edge, labels: {istio: ingress}}, spec: {containers: [{name: " +
		"a, image: b}]}}")
	f.apply(networkingObject("Gateway", "edge", "secure",
		"{selector: {istio: ingress}, servers: [{port: {number: 443, name: s, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, "+
			"credentialName: pair}}]}"))
	f.want("CredentialNotFound Gateway edge/secure spec.servers[0].tls.credentialName")
	f.apply(secretYAML(t, "edge", "pair", "tls.crt", "tls.key"))
	f.want()
	f.remove("Secret edge/pair")
	f.want("CredentialNotFound Gateway edge/secure spec.servers[0].tls.credentialName")
	f.remove("Gateway edge/secure")
	f.apply(rule("{host: reviews, exportTo: [soon]}"))
	f.want("NamespaceNotFound DestinationRule shop/x spec.exportTo[0]")
	f.apply("{apiVersion: v1, kind: Namespace, metadata: {name: soon}}")
	f.want()
	f.remove("Namespace soon")
	f.want("NamespaceNotFound DestinationRule shop/x spec.exportTo[0]")
	f.remove("DestinationRule shop/x")
	f.apply(networkingObject("VirtualService", "bank", "x",
		"{hosts: [ratings], http: [{route: [{destination: {host: reviews.shop.svc.cluster.local}}]}]}"))
	f.want()
	f.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'defaultServiceExportTo: [.]'}}")
	f.want("HostNotFound VirtualService bank/x spec.http[0].route[0].destination.host")
	f.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'discoverySelectors: " +
		"[{matchLabels: {kubernetes.io/metadata.name: bank}}]'}}")
	f.want("HostNotFound VirtualService bank/x spec.http[0].route[0].destination.host")
	f.sameFromScratch()
}

// TestDryRun: DryRun returns the findings of changes and leaves the mesh as it was.
func TestDryRun(t *testing.T) {
	f := newFixture(t, base, to("host: reviews"),
		networkingObject("Gateway", "edge", "secure",
			"{selector: {istio: ingress}, servers: [{port: {number: 443, name: s, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, "+
				"credentialName: pair}}]}"),
		secretYAML(t, "edge", "pair", "tls.crt", "tls.key"))
	f.Changes()
	f.want()
	changes := func(yaml ...string) (out []normaliseChange) {
		for _, text := range yaml {
			for _, o := range decode(t, "mesh.yaml", text) {
				o.Created = f.clock.Add(1)
				out = append(out, normaliseChange{Key: o.Key, Object: o})
			}
		}
		return out
	}
	own, others := f.DryRun(changes(networkingObject("VirtualService", "shop", "young",
		"{hosts: [reviews], http: [{route: [{destination: {host: nobody}}]}]}")))
	if len(own) != 2 || len(others) != 0 {
		t.Errorf("own %q, others %q", texts(own), texts(others))
	}
	f.want()
	gone := []normaliseChange{{Key: f.key("Service shop/reviews")}, {Key: f.key("Secret edge/pair")}, {Key: f.key("Pod edge/ingress-0")},
		{Key: f.key("Namespace empty")}}
	own, others = f.DryRun(gone[:2])
	if len(own) != 0 || len(others) != 4 { // route, two rules, credential
		t.Errorf("own %q, others %q", texts(own), texts(others))
	}
	f.want()
	if own, others = f.DryRun(gone); len(own) != 0 || len(others) != 5 { // no workload serves the Gateways: their credentials are not checked
		t.Errorf("own %q, others %q", texts(own), texts(others))
	}
	f.want()
	if d := f.Changes(); len(d.Appeared)+len(d.Vanished) != 0 {
		t.Errorf("changes %+v", d)
	}
	f.sameFromScratch()
}
