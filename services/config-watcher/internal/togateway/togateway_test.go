package togateway_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/togateway"
	"fairlead.dev/services/config-watcher/internal/validate"
)

const gateway = `
{apiVersion: v1, kind: Service, metadata: {name: ingress, namespace: edge}, spec: {selector: {istio: ingressgateway},
	ports: [{port: 80}]}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: shop}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*.web.com"]}
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: ["a.web.com"], tls: {mode: SIMPLE, credentialName: cert}}
---
`

func virtualService(name, spec string) string {
	return "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: " + name +
		", namespace: shop}, spec: {gateways: [g], " +
		spec + "}}\n---\n"
}

func objects(t *testing.T, text string) (out []*object.Object) {
	t.Helper()
	docs, problems := manifest.Parse("in.yaml", []byte(text))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, doc := range docs {
		o, err := validate.Document(doc)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, o)
	}
	return out
}

func convert(t *testing.T, text string) *togateway.Result {
	t.Helper()
	return togateway.Convert(togateway.Config{Class: "istio", Domain: "cluster.local"}, objects(t, text))
}

// TestConvert compares what objects become with testdata/out.
func TestConvert(t *testing.T) {
	for name, text := range map[string]string{
		"virtualservice": gateway + virtualService("web", `hosts: [a.web.com, b.web.com], http: [
			{name: cart, match: [{uri: {prefix: /cart/}, headers: {x-user: {exact: "7"}}}, {uri: {exact: /cart}}],
			 headers: {request: {set: {x: "1"}, remove: [z]}}, timeout: 3s, route: [{destination: {host: cart, port: {number: 80}},
				weight: 90},
			 {destination: {host: cart.other.svc.cluster.local, port: {number: 81}}, weight: 10}]},
			{match: [{uri: {regex: "/old/.*"}, method: {exact: GET}, queryParams: {q: {exact: "1"}}}], redirect: {uri: /new,
				authority: c.com}},
			{rewrite: {authority: d.com}, route: [{destination: {host: web, port: {number: 80}}}]}]`),
		"ingress": `
{apiVersion: v1, kind: Service, metadata: {name: istio-ingressgateway, namespace: istio-system}, spec: {selector: {istio: ingressgateway},
	ports: [{port: 80}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, namespace: shop, annotations: {kubernetes.io/ingress.class: istio}}
spec:
  tls: [{hosts: [a.web.com], secretName: cert}]
  rules:
  - host: a.web.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}},
      {path: /cart, pathType: Prefix, backend: {service: {name: cart, port: {number: 80}}}},
      {path: /exact, pathType: Exact, backend: {service: {name: exact, port: {number: 80}}}}]}
`,
		"redirect": strings.ReplaceAll(gateway, `hosts: ["*.web.com"]}`, `hosts: ["*.web.com"], tls: {httpsRedirect: true}}`) +
			virtualService("web", `hosts: [a.web.com], http: [{route: [{destination: {host: web, port: {number: 80}}}]}]`),
	} {
		t.Run(name, func(t *testing.T) {
			r := convert(t, text)
			var out strings.Builder
			if err := r.Write(&out); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "# replaced: %v\n# kept: %v\n", r.Replaced, r.Kept)
			if r.Requests < 5000 {
				t.Errorf("only %d requests", r.Requests)
			}
			testkit.Golden(t, "testdata/"+name+".yaml", []byte(out.String()))
		})
	}
}

// TestRandom converts random VirtualServices of two hosts: most orders of rules can be said, and some cannot.
func TestRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	moved, stayed := 0, 0
	for range 60 {
		text := gateway
		for i := range 2 {
			var rules []string
			for j := range 1 + random.IntN(3) {
				match := fmt.Sprintf("uri: {%s: %s}", pick("exact", "prefix", "regex"), pick("/", "/a", "/a/", "/a/b", "/b"))
				if random.IntN(3) == 0 {
					match += ", method: {exact: " + pick("GET", "PUT") + "}"
				}
				if random.IntN(3) == 0 {
					match += ", headers: {h: {exact: " + pick("x", "z") + "}}"
				}
				rules = append(rules, fmt.Sprintf("{match: [{%s}], route: [{destination: {host: s%d, port: {number: 80}}}]}", match, j))
			}
			text += virtualService(fmt.Sprintf("v%d", i), "hosts: ["+pick("a.web.com", "'*.web.com'")+"], http: ["+strings.Join(rules,
				", ")+"]")
		}
		r := convert(t, text)
		for _, k := range r.Kept {
			stayed++
			if strings.Contains(k.Reason, "would be answered otherwise") {
				t.Errorf("the order of rules has not told what a request has: %s\n%s", k, text)
			}
		}
		moved += len(r.Replaced)
	}
	if moved < 30 || stayed < 30 {
		t.Errorf("%d moved, %d stayed", moved, stayed)
	}
}

// TestKept has what stays, with the reason.
func TestKept(t *testing.T) {
	to := func(host string) string { return "route: [{destination: {host: " + host + ", port: {number: 80}}}]" }
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"an order that a specific path breaks": {gateway + virtualService("v",
			"hosts: [a.web.com], http: [{match: [{uri: {prefix: /a}}], "+to("a")+
				"}, {match: [{uri: {exact: /ab}}], "+to("b")+"}]"), []string{"VirtualService shop/v: spec.http[0]: comes before"}},
		"an order that makes no difference": {gateway + virtualService("v",
			"hosts: [a.web.com], http: [{match: [{uri: {prefix: /a}}], "+to("a")+
				"}, {match: [{uri: {exact: /b}}], "+to("b")+"}]"), nil},
		"a subset": {gateway + virtualService("v",
			"hosts: [a.web.com], http: [{route: [{destination: {host: a, subset: v1, port: {number: 80}}}]}]"),
			[]string{"in.yaml:14: VirtualService shop/v: spec.http[0].route[0].destination.subset: is not rewritten; make a Service"}},
		"a rewrite": {gateway + virtualService("v", "hosts: [a.web.com], http: [{rewrite: {uri: /}, "+to("a")+"}]"),
			[]string{"spec.http[0].rewrite.uri: is not rewritten; write a URLRewrite"}},
		"a fault": {gateway + virtualService("v",
			"hosts: [a.web.com], http: [{fault: {abort: {httpStatus: 500, percentage: {value: 1}}}, "+to("a")+"}]"),
			[]string{"spec.http[0].fault: is not rewritten"}},
		"a host without a Service": {gateway + virtualService("v", "hosts: [a.web.com], http: [{"+to("example.com")+"}]"),
			[]string{"destination.host: is no host of a Service"}},
		"a host with one that stays": {gateway + virtualService("v", "hosts: [a.web.com], http: [{rewrite: {uri: /}, "+to("a")+"}]") +
			virtualService("w", "hosts: [a.web.com], http: [{match: [{uri: {exact: /x}}], "+to("b")+"}]") +
			virtualService("x", "hosts: [b.web.com], http: [{"+to("b")+"}]"),
			[]string{"spec.http[0].rewrite.uri", "VirtualService shop/w: spec.hosts: shares the host a.web.com"}},
		"mutual TLS": {strings.ReplaceAll(gateway, "SIMPLE", "MUTUAL") + virtualService("v", "hosts: [a.web.com], http: [{"+to("a")+"}]"),
			[]string{"Gateway shop/g: spec.servers[1].tls: only mode SIMPLE", "spec.gateways[0]: Gateway shop/g is not rewritten"}},
		"sidecars": {gateway + strings.ReplaceAll(virtualService("v", "hosts: [a.web.com], http: [{"+to("a")+"}]"), "[g]", "[g, mesh]"),
			[]string{"spec.gateways[1]: is also for sidecars"}},
	} {
		r := convert(t, c.text)
		var got []string
		for _, k := range r.Kept {
			got = append(got, k.String())
		}
		ok := len(got) == len(c.want)
		for i, want := range c.want {
			ok = ok && strings.Contains(got[i], want)
		}
		if !ok {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestBackendsThatAreNotThere: of what is moved the command tells which Services the objects lack, of the Ingress that
// names them, and of VirtualServices.
func TestBackendsThatAreNotThere(t *testing.T) {
	ingress := func(name, service string) string {
		return "\n---\n{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: " + name + ", namespace: shop, annotations: " +
			"{kubernetes.io/ingress.class: istio}}, spec: {rules: [{host: i.com, http: {paths: [{path: /" + name + ", pathType: Exact, " +
			"backend: {service: {name: " + service + ", port: {number: 80}}}}]}}]}}\n"
	}
	const service = "\n---\n{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}\n"
	r := convert(t, gateway+service+ingress("a", "web")+ingress("b", "gone")+"\n---\n"+virtualService("vs", `hosts: [a.web.com], http: [
		{route: [{destination: {host: lost, port: {number: 81}}}]}]`))
	var got []string
	for _, k := range r.Remarks {
		got = append(got, k.Object.String()+": "+k.Reason)
	}
	want := []string{"Ingress shop/b: Service shop/gone is not among the objects",
		"VirtualService shop/vs: Service shop/lost is not among the objects"}
	if !slices.Equal(got, want) || len(r.Kept) > 0 {
		t.Errorf("remarks %q, want %q; kept %v", got, want, r.Kept)
	}
}

// TestIngressOfAnyHost moves rules for wildcards, for every host, and of the three types of paths.
func TestIngressOfAnyHost(t *testing.T) {
	r := convert(t, `
{apiVersion: v1, kind: Service, metadata: {name: istio-ingressgateway, namespace: istio-system}, spec: {selector: {istio: ingressgateway},
	ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, namespace: shop, annotations: {kubernetes.io/ingress.class: istio}}
spec:
  defaultBackend: {service: {name: web, port: {number: 80}}}
  rules:
  - host: "*.wild.example.com"
    http: {paths: [{path: /a, pathType: Exact, backend: {service: {name: web, port: {name: http}}}},
      {path: /b, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}},
      {path: /c, pathType: ImplementationSpecific, backend: {service: {name: web, port: {number: 80}}}}]}
`)
	if len(r.Kept) != 0 || len(r.Replaced) != 1 {
		t.Errorf("replaced: %v, kept: %v", r.Replaced, r.Kept)
	}
	var out strings.Builder
	if err := r.Write(&out); err != nil || !strings.Contains(out.String(), "name: any-wild-example-com-") {
		t.Errorf("%s%v", out.String(), err)
	}
}
