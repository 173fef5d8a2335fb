package inject_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/inject"
)

// configOf parses testdata with a mesh configuration, after replacements of text in config and values.
func configOf(t testing.TB, mesh string, replace ...string) *inject.Config {
	t.Helper()
	m, err := inject.ParseMesh([]byte(mesh))
	if err != nil {
		t.Fatal(err)
	}
	r := strings.NewReplacer(replace...)
	c, err := inject.ParseConfig([]byte(r.Replace(read(t, "config.yaml"))), []byte(r.Replace(read(t, "values.yaml"))), m, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// podOf parses a Pod; annotations and further fields of spec are given in YAML's flow style.
func podOf(t testing.TB, annotations, spec string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	text := "metadata: {name: web, namespace: shop, labels: {app: web}, annotations: {" + annotations + "}}\nspec:\n" + indent(spec)
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return pod
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

const app = `containers: [{name: web, image: nginx, ports: [{containerPort: 80, name: http}]}]`

func injected(t testing.TB, c *inject.Config, r inject.Request) inject.Result {
	t.Helper()
	before := r.Pod.DeepCopy()
	result, err := c.Inject(r)
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(before, r.Pod) {
		t.Fatal("Inject has changed the Pod that it was given")
	}
	return result
}

func names(list []corev1.Container) string {
	var out []string
	for i := range list {
		out = append(out, list[i].Name)
	}
	return strings.Join(out, " ")
}

func proxyOf(t testing.TB, pod *corev1.Pod) *corev1.Container {
	t.Helper()
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == "istio-proxy" }); i >= 0 {
			return &list[i]
		}
	}
	t.Fatalf("no istio-proxy in %s", names(pod.Spec.Containers))
	return nil
}

func envOf(c *corev1.Container, name string) string {
	value := ""
	for _, v := range c.Env {
		if v.Name == name {
			value = v.Value
		}
	}
	return strings.TrimSpace(value)
}

func TestSelection(t *testing.T) {
	cases := []struct {
		name, namespace, labels, annotations, spec, policy string
		want                                               bool
		reason, warning                                    string
	}{
		{name: "the policy enabled injects", want: true},
		{name: "the policy disabled does not", policy: "disabled", reason: "policy"},
		{name: "a label asks for it", policy: "disabled", labels: `sidecar.istio.io/inject: "true"`, want: true},
		{name: "an annotation asks for it", policy: "disabled", annotations: `sidecar.istio.io/inject: "true"`, want: true},
		{name: "an annotation forbids it", annotations: `sidecar.istio.io/inject: "false"`, reason: "annotation"},
		{name: "the label wins over the annotation", labels: `sidecar.istio.io/inject: "false"`, annotations: `sidecar.istio.io/inject: "true"`,
			reason: "label"},
		{name: "a label without effect is a warning", labels: `sidecar.istio.io/inject: "on"`, want: true, warning: `"on"`},
		{name: "host network forbids it", spec: "hostNetwork: true\n" + app, labels: `sidecar.istio.io/inject: "true"`, reason: "network"},
		{name: "Kubernetes' own namespaces are left alone", namespace: "kube-system", labels: `sidecar.istio.io/inject: "true"`,
			reason: "kube-system"},
		{name: "neverInjectSelector forbids it", labels: `job: x, always: "yes"`, reason: "neverInjectSelector"},
		{name: "a label wins over neverInjectSelector", labels: `job: x, sidecar.istio.io/inject: "true"`, want: true},
		{name: "alwaysInjectSelector injects in spite of the policy", policy: "disabled", labels: `always: "yes"`, want: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := configOf(t, "")
			if c.policy != "" {
				config = configOf(t, "", "policy: enabled", "policy: "+c.policy)
			}
			spec := app
			if c.spec != "" {
				spec = c.spec
			}
			pod := podOf(t, c.annotations, spec)
			if c.namespace != "" {
				pod.Namespace = c.namespace
			}
			if err := yaml.Unmarshal([]byte("{"+c.labels+"}"), &pod.Labels); err != nil {
				t.Fatal(err)
			}
			r := injected(t, config, inject.Request{Pod: pod})
			if r.Injected != c.want || !strings.Contains(r.Reason, c.reason) || (r.Reason == "") != c.want {
				t.Errorf("injected %t because %q; want %t, %q", r.Injected, r.Reason, c.want, c.reason)
			}
			if !strings.Contains(strings.Join(r.Warnings, "\n"), c.warning) {
				t.Errorf("warnings %q, want one about %s", r.Warnings, c.warning)
			}
		})
	}
}

func TestBadAnnotationsAreRefusedByName(t *testing.T) {
	config := configOf(t, "")
	for annotation, want := range map[string]string{
		`sidecar.istio.io/interceptionMode: redirect`:                 "say REDIRECT, TPROXY or NONE",
		`status.sidecar.istio.io/port: http`:                          "write a number",
		`readiness.status.sidecar.istio.io/periodSeconds: "-1"`:       "write one in digits",
		`traffic.sidecar.istio.io/includeOutboundIPRanges: 10.0.0.1`:  "ADDRESS/BITS",
		`traffic.sidecar.istio.io/excludeOutboundIPRanges: "*"`:       "ADDRESS/BITS",
		`traffic.sidecar.istio.io/excludeInboundPorts: "80;1"`:        "write a number",
		`traffic.sidecar.istio.io/excludeInterfaces: "a b"`:           "write names",
		`prometheus.istio.io/merge-metrics: perhaps`:                  "say one of them",
		`proxy.istio.io/config: "concurrency: many"`:                  "write a ProxyConfig",
		`proxy.istio.io/config: "drainDuration: 1ms"`:                 "drainDuration",
		`proxy.istio.io/config: "discoveryAddress: x"`:                "HOST:PORT",
		`proxy.istio.io/config: "statusPort: 0"`:                      "statusPort",
		`proxy.istio.io/config: "tracing: {zipkin: {address: ':1'}}"`: "tracing.zipkin.address",
		`proxy.istio.io/config: "privateKeyProvider: {cryptomb: {}}"`: "pollDelay",
		`sidecar.istio.io/proxyCPU: much`:                             "100m",
		`sidecar.istio.io/proxyMemory: "1Gi\n"`:                       "control characters",
		`sidecar.istio.io/logLevel: chatty`:                           "say one of trace, debug",
		`sidecar.istio.io/componentLogLevel: debug`:                   "NAME:LEVEL",
		`sidecar.istio.io/agentLogLevel: "info\n- --more"`:            "NAME:LEVEL",
		`sidecar.istio.io/bootstrapOverride: "A b"`:                   "name of an object",
		`sidecar.istio.io/proxyImage: "a/b:1\nname: c"`:               "an image has",
		`sidecar.istio.io/proxyImageType: "x y"`:                      "an image has",
		`traffic.sidecar.istio.io/includeOutboundPorts: "80;1"`:       "write a number",
		`fairlead.dev/application-stop-delay: 1.5s`:                   "whole seconds",
		`fairlead.dev/application-stop-delay: 30s`:                    "terminationGracePeriodSeconds, 30",
		`inject.istio.io/templates: nothing`:                          "broken, extra, gateway, sidecar, text",
		`prometheus.io/port: "15090"`:                                 "name a port of the application",
		`prometheus.istio.io/scrape-targets: "70000"`:                 "between 1 and 65535",
		`proxy.istio.io/overrides: "{"`:                               "remove it",
		`sidecar.istio.io/status: "{"`:                                "remove it",
		`inject.istio.io/templates: broken`:                           "on purpose",
		`inject.istio.io/templates: text`:                             "not an object",
	} {
		t.Run(annotation, func(t *testing.T) {
			pod := podOf(t, annotation, app)
			r, err := config.Inject(inject.Request{Pod: pod})
			if err == nil {
				t.Fatal("it is injected")
			}
			name, _, _ := strings.Cut(annotation, ":")
			for _, part := range []string{"Pod shop/web", want} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v: does not say %q", err, part)
				}
			}
			if !strings.Contains(annotation, "broken") && !strings.Contains(annotation, "text") && !strings.Contains(err.Error(), name) {
				t.Errorf("%v: does not name %s", err, name)
			}
			if r.Injected || r.Pod != pod {
				t.Error("a Pod that is refused is changed")
			}
		})
	}
}

func TestInjectionTwiceIsInjectionOnce(t *testing.T) {
	for name, pod := range map[string]*corev1.Pod{
		"a plain Pod": podOf(t, "", app),
		"probes and metrics": podOf(t, `prometheus.io/port: "80", prometheus.io/path: /m`,
			`containers: [{name: web, image: nginx, ports: [{containerPort: 80, name: http}], readinessProbe: {httpGet: {path: /r, port: http}}, livenessProbe: {grpc: {port: 9}}, lifecycle: {preStop: {tcpSocket: {port: 9}}}}]`),
		"an own proxy": podOf(t, "",
			`containers: [{name: istio-proxy, image: auto, env: [{name: MINE, value: x}], securityContext: {runAsUser: 7}}, {name: web, image: nginx}]`),
		"an own init": podOf(t, "",
			`{containers: [{name: web, image: nginx}], initContainers: [{name: istio-init, image: auto, env: [{name: MINE, value: x}]}, {name: mine, image: x}]}`),
		"a gateway": podOf(t, "inject.istio.io/templates: gateway",
			`containers: [{name: istio-proxy, image: auto, ports: [{containerPort: 8443}]}]`),
		"a native sidecar": podOf(t, `sidecar.istio.io/nativeSidecar: "true"`,
			`{containers: [{name: web, image: nginx}], initContainers: [{name: mine, image: x}]}`),
		"several templates": podOf(t, "inject.istio.io/templates: both", app),
		"volumes and secrets": podOf(t, "",
			`{imagePullSecrets: [{name: mine}], volumes: [{name: data, emptyDir: {}}], containers: [{name: web, image: nginx}]}`),
		"a held application": podOf(t, `proxy.istio.io/config: "holdApplicationUntilProxyStarts: true"`, app),
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf(t, "defaultConfig: {proxyMetadata: {A: b}}")
			once := injected(t, config, inject.Request{Pod: pod, Env: map[string]string{"ISTIO_META_NETWORK": "n1"}})
			twice := injected(t, config, inject.Request{Pod: once.Pod, Env: map[string]string{"ISTIO_META_NETWORK": "n1"}})
			before, err := json.Marshal(once.Pod)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := inject.Patch(before, twice.Pod)
			if err != nil || string(patch) != "[]" {
				t.Errorf("the second injection changes %s (%v)", patch, err)
			}
		})
	}
}

func TestPatchMakesTheInjectedPod(t *testing.T) {
	config := configOf(t, "")
	pod := podOf(t, `prometheus.io/port: "80"`,
		`{containers: [{name: web, image: nginx, readinessProbe: {tcpSocket: {port: 80}}}], initContainers: [{name: mine, image: x}]}`)
	before, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	before = []byte(strings.Replace(string(before), `"spec":{`, `"spec":{"fieldOfTheFuture":1,`, 1))
	after := injected(t, config, inject.Request{Pod: pod}).Pod
	patch, err := inject.Patch(before, after)
	if err != nil {
		t.Fatal(err)
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Apply(before)
	if err != nil {
		t.Fatal(err)
	}
	var patched corev1.Pod
	if err := json.Unmarshal(got, &patched); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(&patched, after) {
		t.Errorf("patched: %s", got)
	}
	if !strings.Contains(string(got), "fieldOfTheFuture") {
		t.Error("a field that this program does not know is lost")
	}
	if _, err := inject.Patch([]byte("{"), after); err == nil {
		t.Error("half of an object is patched")
	}
}
