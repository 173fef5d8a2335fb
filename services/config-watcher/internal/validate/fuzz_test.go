package validate

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// FuzzDocument passes files through the parser, strict decoding and every check. Nothing may panic, and a refusal must
// have a reason.
func FuzzDocument(f *testing.F) {
	for _, kind := range []string{"VirtualService", "DestinationRule", "Gateway", "Sidecar", "ServiceEntry", "WorkloadEntry",
		"PeerAuthentication", "Service", "Pod"} {
		f.Add([]byte(of(kind, "{hosts: [a], http: [{route: [{destination: {host: a}, weight: 1}], match: [{uri: {regex: '('}}], timeout: 1s}], "+
			"host: b, servers: [{}], ports: [{}]}")))
	}
	f.Add([]byte(anIngress("{defaultBackend: {resource: {kind: a, name: b}}, rules: [{host: '*.a', http: {paths: [{path: '/a/*', pathType: " +
		"Exact, backend: {service: {name: a, port: {name: b}}}}, {}]}}, {}], tls: [{}]}")))
	for _, kind := range kinds.NamesOf(kinds.GroupGatewayAPI) {
		for _, version := range kinds.Find(kinds.GroupGatewayAPI, kind).Versions {
			f.Add([]byte("{apiVersion: gateway.networking.k8s.io/" + version + ", kind: " + kind + ", metadata: {name: a}, spec: " +
				"{controllerName: a/b, gatewayClassName: a, parentRef: {name: a}, parentRefs: [{name: a, port: 1}], " +
				"listeners: [{name: a, port: 80, protocol: HTTP, tls: null}, {}], hostnames: [a.b, 1.2.3.4], " +
				"targetRefs: [{group: '', kind: Service, name: a}], validation: {hostname: a, " +
				"wellKnownCACertificates: System}, from: [{group: a, kind: b, namespace: c}], to: [{group: '', kind: Secret}], rules: [{matches: " +
				"[{path: {value: /a}, headers: [{name: a, value: b}]}], filters: [{type: RequestMirror}], backendRefs: [{name: a, port: 80}]}]}}"))
		}
	}
	f.Add([]byte(ef("HTTP_FILTER", "context: GATEWAY, proxy: {proxyVersion: '^1'}", "operation: ADD, value: {"+lua+"}")))
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'trustDomain: a'}"))
	f.Add([]byte("a: &a [x]\nb: *a\n---\n- 1\n--- |\n x\n"))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: networking.istio.io/v1, kind: Gateway}, null, 3]"))
	f.Add([]byte(strings.Repeat("[", 500)))
	f.Add([]byte(strings.Repeat("- ", 500)))
	f.Add([]byte("a: {\xff: \x00}"))
	f.Add([]byte("a: &a {b: &b [x, x]}\nc: {<<: [*a, {d: *b}], b: 1, <<: *a}\n"))
	f.Add([]byte("a: &a [" + strings.Repeat("{b: 1},", 300) + "]\nb: &b [" + strings.Repeat("*a,", 300) + "]\nc: [" +
		strings.Repeat("*b,", 300) + "]"))
	f.Add([]byte("? " + strings.Repeat("k", 5000) + "\n: {a: {b: {c: d}}}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		start := time.Now()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		defer func() {
			// The most that decoding the largest document may take. A few aliases in a short one would take far more.
			if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 512<<20 {
				t.Errorf("%d MiB were allocated for %d bytes", (after.TotalAlloc-before.TotalAlloc)>>20, len(content))
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("%d bytes took %s", len(content), took)
			}
		}()
		docs, problems := manifest.Parse("f", content)
		for _, p := range problems {
			if p.Reason == "" {
				t.Errorf("problem without a reason: %+v", p)
			}
		}
		for _, d := range docs {
			o, err := Document(d)
			if (o == nil) == (err == nil) {
				t.Fatalf("object %v and error %v", o, err)
			}
			if err != nil && strings.Contains(err.Error(), "defect of Fairlead") {
				t.Errorf("a rule panicked: %v", err)
			}
			if err == nil && o.Key.Name == "" {
				t.Error("accepted without a name")
			}
		}
	})
}
