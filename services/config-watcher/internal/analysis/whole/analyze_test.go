package whole

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// today is the time of the tests.
var today = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// analyzed is the result for texts of objects, which are all that there is.
func analyzed(t testing.TB, cfg Config, suppress []Suppression, texts ...string) Result {
	t.Helper()
	if cfg.Now.IsZero() {
		cfg.Now = today
	}
	m := New(cfg)
	for i, text := range texts {
		m.content(fmt.Sprintf("f%d.yaml", i), []byte(text))
	}
	r, err := m.Analyze(t.Context(), suppress)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// short lists messages as "code Kind ns/name field".
func short(list []finding.Finding) []string {
	out := []string{}
	for _, m := range list {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", m.Code, m.Key, m.Field)))
	}
	return out
}

// TestCases keeps what is told of the meshes that tests/oracle gives to istioctl as well: severity, code, line and text
// of each message. A person reads the differences.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("../../../../../tests/oracle/analysis/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var b strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range splitCases(string(text)) {
			title, body, _ := strings.Cut(part, "\n")
			fmt.Fprintf(&b, "%s: %s\n", strings.TrimSuffix(filepath.Base(name), ".yaml"), title)
			for _, m := range analyzed(t, Config{Partial: true}, nil, body).Messages {
				_, line := m.File()
				fmt.Fprintf(&b, "  %s %s %s:%d %s: %s\n", m.Severity, m.Code, m.Key, line, m.Field, m.Description())
				if m.Remedy == "" || m.Reason == "" || line == 0 {
					t.Errorf("%s: incomplete: %+v", title, m)
				}
			}
		}
	}
	testkit.Golden(t, "testdata/cases.txt", []byte(b.String()))
}

// splitCases divides a file of meshes; each begins with the rest of the line "#### name".
func splitCases(text string) []string { return strings.Split("\n"+text, "\n#### ")[1:] }

func TestTextThatIsNoObjectIsTold(t *testing.T) {
	for name, tc := range map[string]struct{ text, says string }{
		"broken YAML":        {"a: [", "not valid YAML"},
		"no kind":            {"a: b", "no apiVersion and kind"},
		"mesh configuration": {"trustDomain: a", "--mesh-config-file"},
	} {
		got := analyzed(t, Config{}, nil, "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {istio-injection: enabled}}}\n---\n"+
			tc.text).Messages
		if len(got) != 1 || got[0].Code != finding.TextUnreadable || !strings.Contains(got[0].Error(), tc.says) ||
			!strings.HasPrefix(got[0].Location, "f0.yaml:3") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestTheFirstOfTwoEqualObjectsCounts(t *testing.T) {
	service := func(port string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {ports: [{name: " + port + ", port: 80}]}}"
	}
	r := analyzed(t, Config{}, nil, service("http"), service("other"))
	if got := short(r.Messages); !slices.Equal(got, []string{"ObjectTwice Service shop/a"}) {
		t.Errorf("files: %v", got)
	}
	if !strings.HasPrefix(r.Messages[0].Location, "f1.yaml:1") {
		t.Errorf("told at %s", r.Messages[0].Location)
	}
	// An object of the API server, which has no file, gives way in silence.
	m := New(Config{Now: today})
	m.content("f.yaml", []byte(service("http")))
	docs, _ := manifest.Parse("", []byte(service("other")))
	m.Load(docs[0])
	if got, err := m.Analyze(t.Context(), nil); err != nil || len(got.Messages) > 0 {
		t.Errorf("file over API server: %v, %v", got, err)
	}
}

func TestMessagesAreSuppressed(t *testing.T) {
	pod := func(annotations string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, annotations: {" + annotations +
			"}}, spec: {containers: [{name: web, image: web}]}}"
	}
	const wrong = `sidecar.istio.io/injct: "true"`
	for name, tc := range map[string]struct {
		pod, flag string
		told      bool
	}{
		"by nobody":                        {pod(wrong), "", true},
		"by annotation, Istio's code":      {pod(wrong + `, galley.istio.io/analyze-suppress: "IST0103,IST0108"`), "", false},
		"by annotation, Fairlead's code":   {pod(wrong + `, galley.istio.io/analyze-suppress: AnnotationUnknown`), "", false},
		"by annotation, all":               {pod(wrong + `, galley.istio.io/analyze-suppress: "*"`), "", false},
		"by annotation, another code":      {pod(wrong + `, galley.istio.io/analyze-suppress: IST0103`), "", true},
		"by flag":                          {pod(wrong), "IST0108=Pod web.shop", false},
		"by flag, all of a namespace":      {pod(wrong), "IST0108=Pod *.shop", false},
		"by flag, all of everything":       {pod(wrong), "*=*", false},
		"by flag, another namespace":       {pod(wrong), "IST0108=Pod *.bank", true},
		"by flag, another kind":            {pod(wrong), "IST0108=Service *", true},
		"by flag, a part between the ends": {pod(wrong), "annotationunknown=P*w*b.sh*", false},
	} {
		var suppress []Suppression
		if tc.flag != "" {
			s, err := ParseSuppression(tc.flag)
			if err != nil {
				t.Fatal(err)
			}
			suppress = append(suppress, s)
		}
		r := analyzed(t, Config{}, suppress, tc.pod)
		if told := len(r.Messages) > 0; told != tc.told || told == (r.Suppressed > 0) {
			t.Errorf("%s: %v, %d suppressed", name, short(r.Messages), r.Suppressed)
		}
	}
	for _, wrong := range []string{"", "IST0103", "IST0103=", "=Pod a.b", "IST9999=Pod a.b", "Nothing=Pod a.b"} {
		if _, err := ParseSuppression(wrong); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q is taken: %v", wrong, err)
		}
	}
}

// TestNothingIsMissingThatCannotBeKnown: messages that something is missing need objects of its kind.
func TestNothingIsMissingThatCannotBeKnown(t *testing.T) {
	const route = "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: shop}, spec: {hosts: [web], " +
		"http: [{route: [{destination: {host: web}}]}]}}"
	const gateway = "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: g, namespace: shop}, spec: {selector: {istio: " +
		"edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}}"
	for name, tc := range map[string]struct {
		cfg  Config
		want []string
	}{
		"all is known": {Config{}, []string{"HostNotFound VirtualService shop/web spec.http[0].route[0].destination.host",
			"NothingSelected Gateway shop/g spec.selector"}},
		"files alone":            {Config{Partial: true}, nil},
		"Services are forbidden": {Config{Unreadable: []string{"Service"}}, []string{"NothingSelected Gateway shop/g spec.selector"}},
		"Pods are forbidden": {Config{Unreadable: []string{"Pod"}},
			[]string{"HostNotFound VirtualService shop/web spec.http[0].route[0].destination.host"}},
		"another is forbidden": {Config{Unreadable: []string{"Sidecar"}},
			[]string{"HostNotFound VirtualService shop/web spec.http[0].route[0].destination.host", "NothingSelected Gateway shop/g spec.selector"}},
		"entries are not readable": {Config{Unreadable: []string{"ServiceEntry", "Pod"}}, nil},
	} {
		r := analyzed(t, tc.cfg, nil, route, gateway,
			"{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio-injection: disabled}}}")
		got := short(r.Messages)
		slices.Sort(got)
		if !slices.Equal(got, append([]string{}, tc.want...)) {
			t.Errorf("%s: %v", name, got)
		}
		if partly := len(tc.want) < 2; partly && !slices.Contains(r.Skipped, finding.HostNotFound) &&
			!slices.Contains(r.Skipped, finding.NothingSelected) {
			t.Errorf("%s: skipped %v", name, r.Skipped)
		}
	}
}

func TestAPanicOfACheckIsAMessage(t *testing.T) {
	m := New(Config{Now: today})
	m.index()
	m.check(func(*run) { panic("boom") })
	if len(m.messages) != 1 || m.messages[0].Code != finding.InternalError || !strings.Contains(m.messages[0].Error(), "boom") {
		t.Errorf("%v", m.messages)
	}
}

func TestMessagesAboutOneObjectAreBounded(t *testing.T) {
	var routes []string
	for range 2 * maxTold {
		routes = append(routes, "{match: [{uri: {prefix: /a}}], route: [{destination: {host: web}}]}")
	}
	r := analyzed(t, Config{}, nil,
		"{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: shop}, spec: {hosts: [web], http: ["+
			strings.Join(routes, ", ")+"]}}")
	if n := len(r.Messages); n == 0 || n > maxTold {
		t.Errorf("%d messages", n)
	}
}

// TestHostileObjectsAreToldOf: objects that lack what the checks read, or have it twice or wrongly, are no panic.
func TestHostileObjectsAreToldOf(t *testing.T) {
	for kind, group := range map[string]string{
		"Pod": "v1", "Service": "v1", "ConfigMap": "v1", "Secret": "v1", "Namespace": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1",
		"DaemonSet": "apps/v1", "Job": "batch/v1", "CronJob": "batch/v1",
		"MutatingWebhookConfiguration": "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration": "admissionregistration.k8s.io/v1",
		"CustomResourceDefinition": "apiextensions.k8s.io/v1",
		"Ingress":                  "networking.k8s.io/v1", "IngressClass": "networking.k8s.io/v1", "VirtualService": "networking.istio.io/v1",
		"DestinationRule": "networking.istio.io/v1", "Gateway": "networking.istio.io/v1",
		"ServiceEntry": "networking.istio.io/v1", "Sidecar": "networking.istio.io/v1", "WorkloadEntry": "networking.istio.io/v1",
		"EnvoyFilter": "networking.istio.io/v1alpha3", "PeerAuthentication": "security.istio.io/v1",
		"RequestAuthentication": "security.istio.io/v1", "AuthorizationPolicy": "security.istio.io/v1", "Telemetry": "telemetry.istio.io/v1",
		"WasmPlugin": "extensions.istio.io/v1alpha1",
	} {
		for _, rest := range []string{"", "spec: null", "spec: []", "spec: {}", "spec: {selector: null, template: null}",
			"spec: {template: {spec: {containers: [null, {}]}}}", "webhooks: [null, {}]", "data: null, status: []",
			"spec: {http: [{}], servers: [{}], ports: [{}], hosts: [null], rules: [{}], configPatches: [{}], jwtRules: [{}], egress: [{}], " +
				"subsets: [{}]}", "status: {conditions: [null, 1, {}]}", "metadata: []", "metadata: {annotations: [], labels: 1}"} {
			text := "{apiVersion: " + group + ", kind: " + kind
			if !strings.HasPrefix(rest, "metadata") {
				text += ", metadata: {name: a, namespace: istio-system, annotations: {sidecar.istio.io/inject: null}}"
			}
			for _, m := range analyzed(t, Config{}, nil, strings.TrimSuffix(text+", "+rest, ", ")+"}").Messages {
				if m.Code == finding.InternalError {
					t.Errorf("%s with %q: %v", kind, rest, m)
				}
			}
		}
	}
}

func TestNamespaceOfObjectsWithoutOne(t *testing.T) {
	r := analyzed(t, Config{Namespace: "shop"}, nil,
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{name: other, port: 80}]}}\n---\n{apiVersion: v1, kind: "+
			"Namespace, metadata: {name: b}}")
	want := []string{"NamespaceNotInjected Namespace b metadata.labels", "PortWithoutProtocol Service shop/a spec.ports[0].name"}
	if got := short(r.Messages); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestTenThousandObjectsTakeFiveSecondsOfOneCore: other work on the machine does not count.
func TestTenThousandObjectsTakeFiveSecondsOfOneCore(t *testing.T) {
	text := large(10_000)
	var r Result
	testkit.Quick(t, 5*testkit.RaceFactor*time.Second, func() time.Duration {
		return testkit.CPUTime(t, func() { r = analyzed(t, Config{}, nil, text) })
	})
	if len(r.Messages) == 0 {
		t.Error("the mesh has mistakes, and no message")
	}
}

func BenchmarkAnalyze(b *testing.B) {
	text := large(10_000)
	for b.Loop() {
		analyzed(b, Config{}, nil, text)
	}
}

// large is a mesh of n objects with some mistakes: Services with a Deployment, a VirtualService and a DestinationRule.
func large(n int) string {
	var b strings.Builder
	for i := range n / 4 {
		ns, name := fmt.Sprintf("ns-%d", i%50), fmt.Sprintf("app-%d", i)
		fmt.Fprintf(&b, `---
{apiVersion: v1, kind: Service, metadata: {name: %[2]s, namespace: %[1]s}, spec: {selector: {app: %[2]s}, ports: [{name: http, port: 80}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[2]s, namespace: %[1]s}, spec: {selector: {matchLabels: {app: %[2]s}}, template: {metadata: {labels: {app: %[2]s, tier: web}}, spec: {containers: [{name: web, image: web}]}}}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: %[2]s, namespace: %[1]s}, spec: {hosts: [%[2]s], http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: %[2]s, subset: v1}}]}, {route: [{destination: {host: app-%[3]d}}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: %[2]s, namespace: %[1]s}, spec: {host: %[2]s, subsets: [{name: v1, labels: {tier: web}}]}}
`, ns, name, i+i%10)
	}
	return b.String()
}

// The project's own sample, and a mesh without labels, are sound.
func TestSoundMeshesHaveNoFindings(t *testing.T) {
	sample, err := os.ReadFile("../../../../../samples/bookinfo/mesh.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const bare = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: shop}, spec: {hosts: [web], http: [{route: [{destination: {host: web}}]}]}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default, namespace: shop}, spec: {mtls: {mode: STRICT}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: shop, labels: {app: web}}, spec: {containers: [{name: web, image: web}, {name: istio-proxy, image: proxy}]}}
`
	for name, text := range map[string]string{"bookinfo": string(sample), "without labels": bare} {
		for _, m := range analyzed(t, Config{Partial: true}, nil, text).Messages {
			t.Errorf("%s: %v", name, m)
		}
	}
}
