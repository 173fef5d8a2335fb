package inject_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"fairlead.dev/services/installer/internal/inject"
)

// annotations that fuzzing gives values.
var fuzzed = []string{
	"proxy.istio.io/config", "proxy.istio.io/overrides", "sidecar.istio.io/status", "inject.istio.io/templates",
	"sidecar.istio.io/userVolumeMount",
	"traffic.sidecar.istio.io/includeOutboundIPRanges", "status.sidecar.istio.io/port", "prometheus.istio.io/scrape-targets",
	"prometheus.io/port",
	"sidecar.istio.io/proxyCPU", "sidecar.istio.io/interceptionMode", "sidecar.istio.io/proxyImageType", "k8s.v1.cni.cncf.io/networks",
}

// FuzzAnnotations looks for annotations with which injection panics, changes its input, or makes a Pod that cannot be
// injected again.
func FuzzAnnotations(f *testing.F) {
	for i, value := range []string{"concurrency: 2", `{"containers":[{"name":"istio-proxy","env":[{"name":"A"}]}]}`,
		`{"containers":["istio-proxy"]}`, "gateway,extra", `{"a":{"mountPath":"/a"}}`, "10.0.0.0/8", "0", "80:/m", "80", "1"} {
		f.Add(i, value, i+1, value)
	}
	config := configOf(f, "")
	f.Fuzz(func(t *testing.T, first int, a string, second int, b string) {
		pod := podOf(t, "", app)
		pod.Annotations = map[string]string{fuzzed[abs(first)%len(fuzzed)]: a, fuzzed[abs(second)%len(fuzzed)]: b}
		again(t, config, pod)
	})
}

func abs(n int) int { return max(n, -(n + 1)) }

func again(t *testing.T, config *inject.Config, pod *corev1.Pod) {
	t.Helper()
	before := pod.DeepCopy()
	r, err := config.Inject(inject.Request{Pod: pod})
	if !equality.Semantic.DeepEqual(before, pod) {
		t.Fatal("Inject has changed the Pod that it was given")
	}
	if err != nil || !r.Injected {
		return
	}
	if _, err := config.Inject(inject.Request{Pod: r.Pod}); err != nil {
		t.Fatalf("the injected Pod cannot be injected again: %v", err)
	}
}

// FuzzPods looks for Pods with which injection panics or changes its input.
func FuzzPods(f *testing.F) {
	for _, spec := range []string{app, `containers: [{name: istio-proxy, image: auto}]`,
		`{initContainers: [{name: istio-proxy}, {name: istio-init, args: ["-u"]}], ` +
			`containers: [{name: a, readinessProbe: {httpGet: {port: x}}}]}`,
	} {
		text, err := json.Marshal(podOf(f, `sidecar.istio.io/interceptionMode: TPROXY`, spec))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	config := configOf(f, "")
	f.Fuzz(func(t *testing.T, text []byte) {
		var pod corev1.Pod
		if json.Unmarshal(text, &pod) != nil {
			t.Skip()
		}
		before := pod.DeepCopy()
		r, err := config.Inject(inject.Request{Pod: &pod})
		if !equality.Semantic.DeepEqual(before, &pod) {
			t.Fatal("Inject has changed the Pod that it was given")
		}
		if err == nil {
			if _, err := inject.Patch(text, r.Pod); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzConfig looks for injection and mesh configurations that cannot be parsed without a panic, or used without one.
func FuzzConfig(f *testing.F) {
	f.Add(read(f, "config.yaml"), read(f, "values.yaml"), "defaultConfig: {drainDuration: 1m}")
	f.Add("policy: enabled\ntemplates: {sidecar: '{{ toYaml .Values }}'}", "global: {tag: 1}", "defaultConfig: {proxyHeaders: {server: null}}")
	f.Fuzz(func(t *testing.T, config, values, mesh string) {
		m, err := inject.ParseMesh([]byte(mesh))
		if err != nil {
			return
		}
		for _, parse := range []func([]byte, []byte) (*inject.Config, error){
			func(c, v []byte) (*inject.Config, error) { return inject.ParseConfig(c, v, m, "r") },
			func(c, v []byte) (*inject.Config, error) { return inject.ParseForFiles(c, v, m, "") },
		} {
			if c, err := parse([]byte(config), []byte(values)); err == nil {
				_, _ = c.Inject(inject.Request{Pod: podOf(t, "", app)})
			}
		}
	})
}
